"""A run's learning curve as one small JSON result, for benchmarks/results/."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpg.bench import machine
from sdpg.report import curves
from sdpg.run import listing

POINTS = 200  # at most

# name in the result -> (name in metrics.jsonl, what it is multiplied by)
COLUMNS = curves.AXES | {
    "return": (listing.RETURN, 1),
    "length": ("Train/mean_episode_length", 1),
    "memory_mb": ("Perf/memory_mb", 1),
    "peak_memory_mb": ("Perf/peak_memory_mb", 1),
    "grad_norm": ("Loss/actor_grad_norm", 1),
}


@dataclass(frozen=True)
class Options:
    """Keep a run's learning curve, with an evaluation of its last checkpoint."""

    run: Path = Path()
    """A run folder."""
    label: str = "sdpg"
    """Its name in figures; runs that differ only in the seed share one."""
    episodes: int = 64
    """Of the evaluation."""
    task: str | None = None
    """The run's task, if it is a module:Class: its code is imported because you say so, not because a file does."""


def run(options: Options) -> dict[str, Any]:
    from sdpg.evaluate import evaluate

    evaluation = evaluate(options.run, options.episodes, task=options.task)
    evaluation.pop("checkpoint")  # a path
    argv = listing.read_config(options.run)["sessions"][0]["argv"]
    command = shlex.join(["sdpg", *argv[1:]])  # however it was started
    return learning(options.run, options.label, command, evaluation)


def learning(
    run_dir: Path | str, label: str, command: str, evaluation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """From metrics.jsonl and config.json of a run folder; `evaluation` is what `sdpg eval --json` said of it."""
    config, rows = curves.load(Path(run_dir))
    cfg, kept = config["cfg"], curves.thin(rows, POINTS)
    began = (config.get("sessions") or [{}])[0]
    return {
        "kind": "learning",
        "task": cfg["task"],
        "obs": cfg.get("obs", "state"),
        "preset": cfg.get("preset"),
        "label": label,
        "seed": cfg.get("seed"),
        "num_nominal": cfg.get("num_nominal"),
        "num_auxiliary": cfg.get("num_auxiliary"),
        "command": command,
        # A preset may change under its name: what it was when the run began, and the code, if it was a git checkout.
        "options": cfg.get("algo"),
        "commit": (began.get("git") or {}).get("commit"),
        "machine": machine.describe(cfg.get("threads") or None),
        "curve": {name: [curves.number(row.get(key), scale) for row in kept] for name, (key, scale) in COLUMNS.items()},
        "saving": sum(row.get("Perf/save_seconds") or 0.0 for row in rows) / rows[-1]["seconds"],  # share of its time
        "evaluation": dict(evaluation or {}),
    }
