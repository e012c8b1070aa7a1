"""(task, preset) -> a run's configuration, as differences from the defaults.

`paper`: the paper's table of hyper-parameters. `cpu`: what learned most per minute on two cores (docs/algorithm.md
tells what was tried).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sdpg.config import TrainCfg

Delta = dict[str, Any]

# The paper's values, per task: (run, algorithm).
_ENTROPY: Delta = {"entropy": True, "auto_temperature": True}
PAPER: dict[str, tuple[Delta, Delta]] = {
    "hopper": ({"iterations": 10_000}, _ENTROPY),
    "walker": ({"iterations": 20_000}, _ENTROPY),
    "ant": (
        {"iterations": 10_000},
        {"actor_widths": (256, 64, 32), "critic_lr": 2e-3, "target_decay": 0.2},
    ),
    "humanoid": (
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

# On top of the paper's: what pays on few cores. With a quarter of the branches the critic takes a quarter of the steps,
# and the actor four times as many: the critic needs a larger learning rate to keep up.
_CPU_RUN: Delta = {"num_auxiliary": 15, "iterations": 1000}
_CPU_ALGO: Delta = {"antithetic": True, "regression_steps": 4, "regression_fraction": 0.5, "critic_lr": 1e-3}
CPU: dict[str, tuple[Delta, Delta]] = {
    "cartpole": (
        {"num_nominal": 32, "iterations": 120},
        {"horizon": 16, "critic_lr": 2e-3, "target_decay": 0.2, "initial_std": 0.5, "output_gain": 0.01, "warmup": 10},
    ),
    "hopper": ({"iterations": 800}, {}),
    "walker": ({"iterations": 1800}, {}),
    "ant": ({"iterations": 2000}, {"critic_lr": 2e-3}),
    "humanoid": ({"iterations": 5000}, {}),
}


def resolve(task: str, preset: str = "cpu", obs: str = "state", algorithm: str = "sdpg") -> TrainCfg:
    """The configuration of a run before the command line's own options."""
    run, algo = PAPER.get(task, ({}, _ENTROPY))
    cfg = TrainCfg(task=task, preset=preset, obs=obs, algorithm=algorithm)  # type: ignore[arg-type]
    if preset == "cpu":
        more_run, more_algo = CPU.get(task, ({}, {}))
        run, algo = run | _CPU_RUN | more_run, algo | _CPU_ALGO | more_algo
    return replace(cfg, **run, algo=replace(cfg.algo, **algo))
