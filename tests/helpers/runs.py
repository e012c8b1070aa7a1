"""Tiny runs, and where things are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdpg.config import TrainCfg
from sdpg.presets import resolve

TESTS = Path(__file__).parents[1]
SRC = TESTS.parent / "src"


def tiny(task: str = "cartpole", obs: str = "state", **changes: Any) -> TrainCfg:
    """A run whose iteration takes milliseconds; `horizon` goes to the algorithm."""
    cfg = resolve(task, obs=obs)
    small = {"actor_widths": (16,), "critic_widths": (16,), "critic_batch": 64, "warmup": 2}
    algo = replace(cfg.algo, horizon=changes.pop("horizon", 6), **small)  # type: ignore[call-arg]
    run = {"num_nominal": 3, "num_auxiliary": 2, "iterations": 4, "threads": 1, "checkpoint_every": 2}
    return replace(cfg, algo=algo, **(run | changes))


def subprocess_env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": "1"}
