"""Presets of SDPG.

`paper`: the paper's table of hyper-parameters. `cpu`: what learned most per minute on two cores (docs/experiments.md
tells what was tried).
"""

from __future__ import annotations

from sdpg.presets import sdpg_robots as robots
from sdpg.presets.delta import Delta, Values

NOTHING = Delta()
_ENTROPY: Values = {"entropy": True, "auto_temperature": True}

PAPER = robots.PAPER | {
    "hopper": Delta({"iterations": 10_000}, _ENTROPY),
    "walker": Delta({"iterations": 20_000}, _ENTROPY),
    "ant": Delta({"iterations": 10_000}, {"actor_widths": (256, 64, 32), "critic_lr": 2e-3, "target_decay": 0.2}),
    "humanoid": Delta(
        {"iterations": 100_000},
        {
            "actor_widths": (256, 128),
            "critic_widths": (128, 128),
            "horizon": 16,
            "critic_lr": 5e-4,
            "target_decay": 0.2,
            "log_std_bounds": (-2.2, 0.0),
            "entropy": True,  # fixed temperature, as released; the paper's table says no
        },
    ),
}
_IMAGES = Delta({}, {"actor_chunk": 256})
PAPER_PIXELS = robots.PAPER_PIXELS | {
    "hopper": Delta({"iterations": 20_000}),
    "ant": Delta({"iterations": 20_000}, {"encoder_features": 256}),
    "humanoid": Delta({"iterations": 200_000}, {"encoder_features": 256}),
}

# On top of the paper's, for every robot. Many nominals, few branches. Nominals have noise of their own, from none in
# the first row to all of it in the last, and the critic learns from them alone; what is climbed is how the policy
# answers to noise, not what a blind branch survives. Directions that count by what is at stake, and a view that grows
# longer, make a fall cost what it should; with a long view from the beginning a seed stood still for good. Noise falls
# by a schedule as well. Branches act blindly, so they do it for a quarter of the segment only. There is less of an
# action to begin with, in mean and noise: under strong noise nobody stays on their feet, so the best that is left is a
# dive, which many seeds then never leave.
_CPU = Delta(
    {"num_nominal": 256, "num_auxiliary": 3, "iterations": 1000},
    {
        "antithetic": True,
        "branch_steps": 8,
        "nominal_noise": 1.0,
        "critic_branches": 0.0,
        "critic_passes": 8,
        "critic_batch": 512,
        "critic_lr": 2e-3,
        "critic_schedule": "constant",
        "reward_scale": 0.1,
        "regression_steps": 8,
        "regression_fraction": 0.25,
        "initial_std": 0.5,
        "output_gain": 0.1,
        "exploration": "fixed",
        "final_std": 0.2,
        "final_gamma": 0.997,
        "stakes": 0.5,
    },
)
# From images the same, in many small steps, as an encoder needs them. It would learn the noise of every sample by
# heart; the guide, which sees the state, does not.
_CPU_IMAGES = Delta(
    {},
    {
        "encoder": "half",
        "actor_lr": 1e-3,
        "image_origin": "first",
        "image_motion": True,
        "guide_passes": 1,
        "regression_steps": 32,
        "regression_fraction": 1.0 / 32.0,
    },
)
CPU = robots.CPU | {
    "hopper": Delta({"iterations": 660}),
    "walker": Delta({"iterations": 1200}),
    "ant": Delta({"iterations": 2400}),
    "humanoid": Delta({"iterations": 2000}, {"horizon": 32}),
}
CPU_PIXELS = robots.CPU_PIXELS | {
    "ant": Delta({"iterations": 1200}),  # what an hour or two of one core has time for
    "humanoid": Delta({"iterations": 1600}),
}
# Ours, the quick start, has a setting of its own: it is learned in minutes, with a quarter of the worlds. With few
# branches the critic takes few steps and the actor several: the critic needs larger ones, to the end.
_CARTPOLE = Delta(
    {"num_nominal": 32, "num_auxiliary": 15, "iterations": 120},
    {
        "antithetic": True,
        "horizon": 16,
        "initial_std": 0.5,
        "output_gain": 0.01,
        "warmup": 10,
        "regression_steps": 4,
        "regression_fraction": 0.5,
        "critic_lr": 2e-3,
        "critic_schedule": "constant",
        "target_decay": 0.2,
        "reward_scale": 0.1,
    },
)
_CARTPOLE_PIXELS = Delta({"iterations": 240}, {"encoder": "half", "actor_lr": 1e-3, "regression_fraction": 0.25})


def delta(task: str, preset: str, obs: str) -> Delta:
    seeing = obs != "state"
    result = PAPER.get(task, Delta({}, _ENTROPY))
    if seeing:
        result |= _IMAGES | PAPER_PIXELS.get(task, NOTHING)
    if preset != "cpu":
        return result
    if task == "cartpole":
        return result | _CARTPOLE | (_CARTPOLE_PIXELS if seeing else NOTHING)
    result |= _CPU | CPU.get(task, NOTHING)
    if seeing:
        result |= _CPU_IMAGES | CPU_PIXELS.get(task, NOTHING)
    return result
