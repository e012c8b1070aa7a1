"""What tests share: tiny runs, and modules with tasks of a stranger's."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does, before torch is imported

import pytest
import torch

from sdpg.config import TrainCfg
from sdpg.presets import resolve
from sdpg.run import checkpoint

SRC = Path(__file__).parents[1] / "src"


def tiny(task: str = "cartpole", obs: str = "state", **changes: Any) -> TrainCfg:
    """A run whose iteration takes milliseconds; `horizon` goes to the algorithm."""
    cfg = resolve(task, obs=obs)
    algo = replace(
        cfg.algo, horizon=changes.pop("horizon", 6), actor_widths=(16,), critic_widths=(16,), critic_batch=64, warmup=2
    )
    run = {"num_nominal": 3, "num_auxiliary": 2, "iterations": 4, "threads": 1, "checkpoint_every": 2}
    return replace(cfg, algo=algo, **(run | changes))


def vouch(folder: Path) -> None:
    """Make a checkpoint's hashes fit what is there, as one who means harm would."""
    files = [folder / name for name in (checkpoint.TENSORS, checkpoint.STATE) if (folder / name).exists()]
    data = {file.name: file.read_bytes() for file in files}
    entries = {name: {"size": len(b), "sha256": hashlib.sha256(b).hexdigest()} for name, b in data.items()}
    (folder / checkpoint.MANIFEST).write_text(json.dumps({"files": entries}))


def subprocess_env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """(name, source) -> the name of a module that `module:Class` finds in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


NAN_TASK = """
import torch
from sdpg.tasks.cartpole import Cartpole

class Broken(Cartpole):
    def reward(self, x, memory, action):
        return {"fine": x.qpos[..., 0].clone(), "speed": torch.full_like(x.qpos[..., 0], torch.nan)}
"""
