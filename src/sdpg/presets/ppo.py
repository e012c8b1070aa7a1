"""Presets of PPO.

`paper`: what SDPG's authors trained their state policies with, and their number of worlds. `cpu`: what learned most per
minute on two cores (docs/algorithms.md tells what was tried).
"""

from __future__ import annotations

from sdpg.presets.delta import Delta, Values

_WIDE: Values = {"actor_widths": (512, 256, 128), "critic_widths": (512, 256, 128)}
PAPER = {
    "hopper": Delta({"iterations": 2000}),
    "walker": Delta({"iterations": 2000}),
    "ant": Delta({"iterations": 2000}, {"epochs": 1}),
    "humanoid": Delta({"num_nominal": 4096, "iterations": 2000}, {"minibatches": 16, **_WIDE}),
}

# A quarter of the worlds, and less noise and smaller actions to begin with: a robot that stays on its feet has more to
# learn from.
_CPU = Delta(
    {"num_nominal": 256, "iterations": 2000},
    {"initial_std": 0.5, "epochs": 4, "desired_kl": 0.01},
)
_SMALL: Values = {"output_gain": 0.1, "epochs": 2, "minibatches": 8, "desired_kl": 0.02}
# Slow joints filter noise, so there is more of it, and it stays; rewards are a tenth of a step's and less.
_LEGS: Values = {
    "actor_widths": (256, 128, 64),
    "critic_widths": (256, 128, 64),
    "horizon": 24,
    "lr": 1e-3,
    "initial_std": 0.8,
    "entropy_weight": 0.003,
    "reward_scale": 1.0,
}
CPU = {
    "cartpole": Delta({"num_nominal": 64, "iterations": 300}, _SMALL),
    "go2_terrain": Delta({"num_nominal": 512}, _LEGS),
}
_CPU_IMAGES = Delta(
    {"num_nominal": 64, "iterations": 1000},
    {"encoder": "small", "image_origin": "first", "image_motion": True, "epochs": 3, "minibatches": 4},
)
CPU_PIXELS = {"cartpole": Delta({"iterations": 200})}


def delta(task: str, preset: str, obs: str) -> Delta:
    result = Delta({"num_nominal": 1024}) | PAPER.get(task, Delta())
    if preset == "cpu":
        result |= _CPU | CPU.get(task, Delta())
        if obs != "state":
            result |= _CPU_IMAGES | CPU_PIXELS.get(task, Delta())
    return result
