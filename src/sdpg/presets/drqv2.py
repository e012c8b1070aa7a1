"""Presets of DrQ-v2.

`paper`: the official code's values, with those that SDPG's authors chose for its tasks (32 worlds, and how long).
`cpu`: smaller networks, batches and buffers; a beginning, not the result of a search.
"""

from __future__ import annotations

from sdpg.presets.delta import Delta

# Of 32 worlds with 32 steps an iteration has 1024 steps; the authors' frames are two to a step.
PAPER = {
    "hopper": Delta({"iterations": 1465}),
    "walker": Delta({"iterations": 1465}, {"n_step": 1, "batch": 512, "std_steps": 100_000}),
    "ant": Delta({"iterations": 5860}, {"seed_steps": 16_000}),
    "humanoid": Delta({"iterations": 17_579}, {"lr": 8e-5, "features": 100, "std_steps": 2_000_000}),
}
_CPU = Delta(
    {"num_nominal": 8, "iterations": 2000},
    {"buffer": 100_000, "batch": 128, "encoder": "small", "hidden": 256, "lr": 3e-4, "std_steps": 50_000},
)
# What five minutes of a core are enough for, about 8,000 updates: small batches, noise that is gone after a third of
# the steps, and targets that follow quickly.
CPU = {
    "cartpole": Delta(
        {"iterations": 200},
        {
            "buffer": 50_000,
            "seed_steps": 1000,
            "random_steps": 1000,
            "std_steps": 5000,
            "batch": 64,
            "target_rate": 0.05,
        },
    )
}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = Delta({"num_nominal": 32}) | PAPER.get(task, Delta())
    return result | _CPU | CPU.get(task, Delta()) if preset == "cpu" else result
