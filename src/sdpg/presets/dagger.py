"""Presets of DAgger.

`paper`: what SDPG's authors used for their comparison. `cpu`: fewer worlds, a smaller network and buffer, and a student
that goes on until it is much closer to its teacher.
"""

from __future__ import annotations

from sdpg.presets.delta import Delta

PAPER = {
    "hopper": Delta({"iterations": 20_000}, {"encoder_features": 256}),
    "walker": Delta({"iterations": 20_000}, {"steps": 48, "encoder_features": 256}),
    "ant": Delta({"iterations": 20_000}, {"steps": 64, "encoder_features": 256, "actor_widths": (256, 64, 32)}),
    "humanoid": Delta({"iterations": 120_000}, {"steps": 256, "encoder_features": 256}),
}
_CPU = Delta(
    {"num_nominal": 32, "iterations": 1000},
    {
        "encoder": "half",
        "image_origin": "first",
        "image_motion": True,
        "buffer": 20_000,
        "seed_steps": 1000,
        "min_updates": 16,
        "max_updates": 64,
        "threshold": 0.002,
        "lr": 1e-3,
        "betas": (0.9, 0.999),
    },
)
CPU = {"cartpole": Delta({"iterations": 100})}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = Delta({"num_nominal": 32}) | PAPER.get(task, Delta())
    return result | _CPU | CPU.get(task, Delta()) if preset == "cpu" else result
