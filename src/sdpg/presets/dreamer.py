"""Presets of DreamerV3.

`paper`: the published values for control from pixels, with as many worlds and steps as SDPG's authors gave the version
of 2023. `cpu`: the smallest model, which replays little and learns faster; a beginning, not the result of a search.
"""

from __future__ import annotations

from sdpg.presets.delta import Delta

# Of 16 worlds with 32 steps an iteration has 512 steps; the authors' frames are two to a step. Buffers hold all that
# such a run sees, up to the authors' million.
PAPER = {
    "hopper": Delta({"iterations": 489}, {"buffer": 300_000}),
    "walker": Delta({"iterations": 489}, {"buffer": 300_000}),
    "ant": Delta({"iterations": 977}, {"buffer": 600_000}),
    "humanoid": Delta({"iterations": 1954}),
}
_CPU = Delta(
    {"num_nominal": 8, "iterations": 2000},
    {
        "steps": 16,
        "size": "1m",
        "buffer": 100_000,
        "train_ratio": 32.0,
        "length": 32,
        "lr": 3e-4,
        "warmup": 100,
    },
)
CPU = {"cartpole": Delta({"iterations": 200}, {"buffer": 50_000})}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = Delta({"num_nominal": 16}) | PAPER.get(task, Delta())
    return result | _CPU | CPU.get(task, Delta()) if preset == "cpu" else result
