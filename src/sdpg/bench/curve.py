"""A run's learning curve as one small JSON result, for benchmarks/results/."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpg.bench import machine
from sdpg.errors import SdpgError

POINTS = 200  # at most

# name in the result -> (name in metrics.jsonl, what it is multiplied by)
COLUMNS = {
    "iteration": ("iteration", 1),
    "minutes": ("seconds", 1 / 60),
    "env_steps": ("Train/env_steps", 1),
    "return": ("Train/mean_reward", 1),
    "length": ("Train/mean_episode_length", 1),
}


def _number(value: Any, scale: float) -> float | None:
    """Five digits are plenty; a missing or non-finite number is null."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) and scale == 1 else float(f"{value * scale:.5g}")


@dataclass(frozen=True)
class Options:
    """Keep a run's learning curve, with an evaluation of its last checkpoint."""

    run: Path = Path()
    """A run folder."""
    label: str = "sdpg"
    """Its name in figures; runs that differ only in the seed share one."""
    episodes: int = 64
    """Of the evaluation."""


def run(options: Options) -> dict[str, Any]:
    from sdpg.evaluate import evaluate

    evaluation = evaluate(options.run, options.episodes)
    evaluation.pop("checkpoint")  # a path
    argv = json.loads((options.run / "config.json").read_text())["sessions"][0]["argv"]
    return learning(options.run, options.label, shlex.join([Path(argv[0]).name, *argv[1:]]), evaluation)


def learning(
    run_dir: Path | str, label: str, command: str, evaluation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """From metrics.jsonl and config.json of a run folder; `evaluation` is what `sdpg eval --json` said of it."""
    folder = Path(run_dir)
    try:
        cfg = json.loads((folder / "config.json").read_text())
        lines = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SdpgError(f"'{folder}' is not a run folder: {error}") from error
    cfg = cfg.get("cfg", cfg)
    rows = [json.loads(line) for line in lines]
    stride = max(1, math.ceil(len(rows) / POINTS))
    kept = rows[::-1][::stride][::-1]  # evenly, the last one always among them
    return {
        "kind": "learning",
        "task": cfg["task"],
        "preset": cfg.get("preset"),
        "label": label,
        "seed": cfg.get("seed"),
        "num_nominal": cfg.get("num_nominal"),
        "num_auxiliary": cfg.get("num_auxiliary"),
        "command": command,
        "machine": machine.describe(cfg.get("threads") or None),
        "curve": {name: [_number(row.get(key), scale) for row in kept] for name, (key, scale) in COLUMNS.items()},
        "evaluation": dict(evaluation or {}),
    }
