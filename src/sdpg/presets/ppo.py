"""Presets of PPO."""

from __future__ import annotations

from sdpg.presets.delta import Delta


def delta(task: str, preset: str, obs: str) -> Delta:
    return Delta({"num_nominal": 256})
