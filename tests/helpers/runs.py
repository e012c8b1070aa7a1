"""Tiny runs, and where things are."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sdpg.config import TrainCfg
from sdpg.presets import resolve
from sdpg.run import checkpoint, listing, log

TESTS = Path(__file__).parents[1]
SRC = TESTS.parent / "src"


def tiny(task: str = "cartpole", obs: str = "state", **changes: Any) -> TrainCfg:
    """A run whose iteration takes milliseconds; `horizon` goes to the algorithm. In float32 on every machine."""
    cfg = resolve(task, obs=obs)
    small = {"actor_widths": (16,), "critic_widths": (16,), "critic_batch": 64, "warmup": 2, "precision": "float32"}
    algo = replace(cfg.algo, horizon=changes.pop("horizon", 6), **small)  # type: ignore[call-arg]
    run = {"num_nominal": 3, "num_auxiliary": 2, "iterations": 4, "threads": 1, "checkpoint_every": 2}
    return replace(cfg, algo=algo, **(run | changes))


def make_run(
    folder: Path,
    returns: list[float | None] | None = None,
    status: dict[str, Any] | None = None,
    seconds: float = 6.0,
    **cfg: Any,
) -> Path:
    """A run folder without checkpoints: a row of `seconds` seconds per return."""
    folder.mkdir(parents=True)
    algo = {"horizon": 8, "actor_widths": [16, 8]} | cfg.pop("algo", {})
    asked = {"task": "cartpole", "obs": "state", "algorithm": "sdpg", "seed": 0, "iterations": 3, "minutes": None}
    asked |= {"num_nominal": 4, "num_auxiliary": 1} | cfg | {"algo": algo}
    config = {"cfg": asked, "sessions": [{"started": "2026-01-02T03:04:05", "versions": {"sdpg": "0.1.0"}}]}
    (folder / listing.CONFIG).write_text(json.dumps(config))
    rows = [
        {
            "iteration": i,
            "seconds": seconds * i,
            "Train/mean_reward": value,
            "Train/env_steps": 64 * i,
            "Loss/actor": 1.0 / i,
        }
        for i, value in enumerate(returns or [], start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status is not None:
        (folder / listing.STATUS).write_text(json.dumps(status))
    return folder


def vouch(folder: Path) -> None:
    """Make a checkpoint's hashes fit what is there, as one who means harm would."""
    files = [folder / name for name in (checkpoint.TENSORS, checkpoint.STATE) if (folder / name).exists()]
    data = {file.name: file.read_bytes() for file in files}
    entries = {name: {"size": len(b), "sha256": hashlib.sha256(b).hexdigest()} for name, b in data.items()}
    (folder / checkpoint.MANIFEST).write_text(json.dumps({"files": entries}))


def subprocess_env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": "1"}


NAN_TASK = """
import torch
from sdpg.tasks.cartpole import Cartpole

class Broken(Cartpole):
    def reward(self, x, memory, action):
        return {"fine": x.qpos[..., 0].clone(), "speed": torch.full_like(x.qpos[..., 0], torch.nan)}
"""


CHANGING = ("seconds", "Perf/")  # metrics that are never twice the same


class Recorder:
    """Keeps what a run reports; `stop` becomes true after an iteration."""

    def __init__(self, stop_after: int | None = None):
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stop_after, self.iteration = stop_after, 0

    def __call__(self, what: str, facts: Mapping[str, Any]) -> None:
        self.events.append((what, dict(facts)))
        if what == "iteration":
            self.iteration = facts["iteration"]

    def stop(self) -> bool:
        return self.stop_after is not None and self.iteration >= self.stop_after

    def messages(self) -> list[str]:
        return [facts["message"] for what, facts in self.events if what == "warning"]


def saved_tensors(run: Path) -> dict[str, Any]:
    flat = checkpoint.flatten(checkpoint.load(checkpoint.find(run)).state)
    return {name: value for name, value in flat.items() if name != "run/seconds"}


def assert_same(a: Path, b: Path) -> None:
    """Parameters, optimisers, environments and metrics, bit for bit."""
    first, second = saved_tensors(a), saved_tensors(b)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, second[name]), name
        else:
            assert value == second[name], name
    for one, two in zip(log.read(a), log.read(b), strict=True):
        assert {k: v for k, v in one.items() if not k.startswith(CHANGING)} == {
            k: v for k, v in two.items() if not k.startswith(CHANGING)
        }
