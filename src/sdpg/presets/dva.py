"""Presets of D.Va: SHAC's, with the encoders and lengths that images need."""

from __future__ import annotations

from sdpg.presets import shac
from sdpg.presets.delta import Delta

NOTHING = Delta()
PAPER = {"humanoid": Delta({"iterations": 60_000}, {"encoder_features": 256})}
_CPU = Delta({"iterations": 1000}, {"encoder": "half", "image_origin": "first", "image_motion": True, "actor_lr": 1e-3})
CPU = {"cartpole": Delta({"iterations": 240})}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = shac.delta(task, preset, obs)
    if obs == "state":
        return result
    if preset == "cpu":
        return result | _CPU | CPU.get(task, NOTHING)
    return result | Delta({"num_nominal": 64, "iterations": 30_000}) | PAPER.get(task, NOTHING)
