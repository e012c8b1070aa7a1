"""Trackers: the right calls in the right order, a resume in the same place, and no harm when they fail."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import tiny

from sdpg import log, track, train
from sdpg.cli import main
from sdpg.errors import SdpgError


class Fake(ModuleType):
    """A tracker's module: init() gives an object with log() and finish(), as wandb's and trackio's do."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.begun: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = 0
        self.fails = ""  # the call that raises

    def _call(self, name: str) -> None:
        if name == self.fails:
            raise RuntimeError(f"no network in {name}\nand a second line")

    def init(self, **options: Any) -> Fake:
        self._call("init")
        self.begun.append(options)
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._call("log")
        self.rows.append((step, numbers))

    def finish(self) -> None:
        self._call("finish")
        self.finished += 1


@pytest.fixture(params=["wandb", "trackio"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fake:
    module = Fake(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


def _train(fake: Fake, run: Path, resume: bool = False, **changes: Any) -> list[str]:
    """The warnings of a run that is tracked by `fake`."""
    warnings: list[str] = []

    def report(what: str, facts: Any) -> None:
        if what == "warning":
            warnings.append(facts["message"])

    train.train(tiny(track=fake.__name__, **changes), run, resume, report)
    return warnings


def test_a_run_and_its_resume_are_one(fake: Fake, tmp_path: Path) -> None:
    assert _train(fake, tmp_path / "run", iterations=2, track_project="mine") == []
    assert _train(fake, tmp_path / "run", resume=True, iterations=4, track_project="mine") == []
    first, second = fake.begun
    assert first["project"] == "mine" and first["resume"] == second["resume"] == "allow"
    assert first["name"] == second["name"] == json.loads((tmp_path / "run" / track.TRACK).read_text())["id"]
    assert first["name"].startswith("cartpole-run-")
    assert first.get("id") == second.get("id") == (first["name"] if fake.__name__ == "wandb" else None)
    assert first["config"]["algo"]["horizon"] == 6
    assert fake.finished == 2
    assert [step for step, _ in fake.rows] == [1, 2, 3, 4]
    for (_, numbers), row in zip(fake.rows, log.read(tmp_path / "run"), strict=True):
        assert numbers == log.numbers(row)
        assert "Perf/total_fps" in numbers and "iteration" not in numbers


def test_rows_that_a_resume_makes_again_are_not_sent_again(fake: Fake, tmp_path: Path) -> None:
    """Killed at 5, resumed from the checkpoint at 2, killed again at 3, resumed from 2: each row is sent once."""
    cfg, warnings = tiny(track=fake.__name__), list[str]()

    def session(rows: range, resume_at: int | None) -> None:
        sinks = track.open_trackers(cfg, tmp_path, warnings.append)
        run_log = log.RunLog(tmp_path, warnings.append, resume_at, sinks)
        for i in rows:
            run_log.write({"iteration": i, "x": float(i)})
        run_log.close()

    session(range(1, 6), None)
    session(range(3, 4), 2)
    session(range(3, 8), 2)
    assert [step for step, _ in fake.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert warnings == []
    # another project has none of them
    cfg = replace(cfg, track_project="other")
    session(range(6, 8), 5)
    assert [step for step, _ in fake.rows[7:]] == [6, 7]


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_a_tracker_that_fails_costs_one_warning(call: str, fake: Fake, tmp_path: Path) -> None:
    fake.fails = call
    (warning,) = _train(fake, tmp_path / "run", iterations=3)
    assert f"no network in {call}" in warning and "\n" not in warning and fake.__name__ in warning
    assert len(log.read(tmp_path / "run")) == 3


def test_a_damaged_id_costs_one_warning(fake: Fake, tmp_path: Path) -> None:
    _train(fake, tmp_path / "run", iterations=2)
    (tmp_path / "run" / track.TRACK).write_text("{")
    assert len(_train(fake, tmp_path / "run", resume=True, iterations=3)) == 1
    assert len(log.read(tmp_path / "run")) == 3


def test_a_tracker_that_is_not_there_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SdpgError, match=r"pip install 'sdpg\[wandb\]'"):
        train.train(tiny(track="wandb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    track.require("none")


def test_a_resumed_run_may_change_its_tracker(tmp_path: Path, fake: Fake) -> None:
    train.train(tiny(iterations=2), tmp_path / "run")
    assert not (tmp_path / "run" / track.TRACK).exists()
    argv = ["train", "--resume", str(tmp_path / "run"), "--iterations", "3", "--quiet", "--track", fake.__name__]
    assert main(argv) == 0
    assert [step for step, _ in fake.rows] == [3]
    assert train.read_config(tmp_path / "run")["cfg"]["track"] == fake.__name__
