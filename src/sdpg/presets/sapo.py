"""Presets of SAPO. `paper`: the values of its authors. `cpu`: fewer iterations."""

from __future__ import annotations

from sdpg.presets.delta import Delta

NOTHING = Delta()
PAPER = {"humanoid": Delta({}, {"actor_widths": (256, 128), "critic_widths": (128, 128)})}
CPU = {"cartpole": Delta({"num_nominal": 32, "iterations": 150}, {"horizon": 16})}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = Delta({"iterations": 5000}) | PAPER.get(task, NOTHING)
    return result | Delta({"iterations": 1000}) | CPU.get(task, NOTHING) if preset == "cpu" else result
