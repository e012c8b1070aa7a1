"""Presets of SHAC, on which those of D.Va are built.

`paper`: the values of its authors, who had no walker. `cpu`: fewer worlds and iterations.
"""

from __future__ import annotations

from sdpg.presets.delta import Delta

NOTHING = Delta()
PAPER = {
    "hopper": Delta({"num_nominal": 256}, {"critic_lr": 2e-4}),
    "humanoid": Delta(
        {}, {"actor_widths": (256, 128), "critic_widths": (128, 128), "critic_lr": 5e-4, "target_decay": 0.995}
    ),
}
CPU = {"cartpole": Delta({"num_nominal": 32, "iterations": 150}, {"horizon": 16})}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = Delta({"iterations": 2000}) | PAPER.get(task, NOTHING)
    return (
        result | Delta({"num_nominal": 64, "iterations": 1000}) | CPU.get(task, NOTHING) if preset == "cpu" else result
    )
