"""Trackers: the right calls in the right order, a resume in the same place, and no harm when they fail."""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers.runs import subprocess_env, tiny

from sdpg import train
from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.run import log, trackers
from sdpg.run.listing import read_config


class Fake(ModuleType):
    """A tracker's module: init() gives an object with log() and finish(), as wandb's and trackio's do."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.begun: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = 0
        self.fails = ""  # the call that raises, online if it is init
        self.mode, self.logged_in = "online", True  # as the user has set up wandb

    def _call(self, name: str) -> None:
        if name == self.fails:
            raise RuntimeError(f"no network in {name}\nand a second line")

    def setup(self) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))

    def login(self, prompt: bool, verify: bool) -> bool:
        assert not prompt and not verify  # no question to a user who is away, no wait for a network
        return self.logged_in

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **options: Any) -> Fake:
        print("* welcome")
        self._call("init" if options.get("mode") != "offline" else "init offline")
        self.begun.append(options)
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._call("log")
        self.rows.append((step, numbers))

    def finish(self) -> None:
        print("* goodbye")
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
    assert first["name"] == second["name"] == json.loads((tmp_path / "run" / trackers.TRACK).read_text())["id"]
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
        sinks = trackers.open_trackers(cfg, tmp_path, warnings.append)
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


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Fake:
    module = Fake("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_without_an_account_is_offline(wandb: Fake, tmp_path: Path) -> None:
    wandb.logged_in = False
    (warning,) = _train(wandb, tmp_path / "run", iterations=1)
    assert "`wandb login`" in warning and "`wandb sync`" in warning
    assert wandb.begun[0]["mode"] == "offline" and wandb.begun[0]["dir"] == tmp_path / "run"


def test_wandb_without_a_network_is_offline(wandb: Fake, tmp_path: Path) -> None:
    wandb.fails = "init"
    (warning,) = _train(wandb, tmp_path / "run", iterations=1)
    assert "no network in init" in warning and "`wandb sync`" in warning
    assert [begun["mode"] for begun in wandb.begun] == ["offline"] and len(wandb.rows) == 1


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_wandb_as_the_user_has_set_it_up(mode: str, wandb: Fake, tmp_path: Path) -> None:
    wandb.mode, wandb.logged_in = mode, False
    assert _train(wandb, tmp_path / "run", iterations=1) == []
    assert wandb.begun[0]["mode"] == mode


def test_standard_output_is_the_summary_alone(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = "train cartpole --num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1 --algo.horizon 4 --json"
    assert main([*argv.split(), "--run", str(tmp_path / "run"), "--track", fake.__name__]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["iteration"] == 1
    assert "* welcome" in err and "* goodbye" in err


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_a_tracker_that_fails_costs_one_warning(call: str, fake: Fake, tmp_path: Path) -> None:
    fake.fails = call
    fake.mode = "shared"  # wandb's third: a failure of init is not taken for a missing network
    (warning,) = _train(fake, tmp_path / "run", iterations=3)
    assert f"no network in {call}" in warning and "\n" not in warning and fake.__name__ in warning
    assert len(log.read(tmp_path / "run")) == 3


def test_a_damaged_id_costs_one_warning(fake: Fake, tmp_path: Path) -> None:
    _train(fake, tmp_path / "run", iterations=2)
    (tmp_path / "run" / trackers.TRACK).write_text("{")
    assert len(_train(fake, tmp_path / "run", resume=True, iterations=3)) == 1
    assert len(log.read(tmp_path / "run")) == 3


def test_a_tracker_that_is_not_there_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SdpgError, match=r"pip install 'sdpg\[wandb\]'"):
        train.train(tiny(track="wandb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    trackers.require("none")


def test_a_resumed_run_may_change_its_tracker(tmp_path: Path, fake: Fake) -> None:
    train.train(tiny(iterations=2), tmp_path / "run")
    assert not (tmp_path / "run" / trackers.TRACK).exists()
    argv = ["train", "--resume", str(tmp_path / "run"), "--iterations", "3", "--quiet", "--track", fake.__name__]
    assert main(argv) == 0
    assert [step for step, _ in fake.rows] == [3]
    assert read_config(tmp_path / "run")["cfg"]["track"] == fake.__name__


# --- the real ones, where they are installed


def test_wandb_itself_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'sdpg[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    cfg, warnings = tiny(track="wandb"), list[str]()
    for rows, resume_at in ((range(1, 4), None), (range(3, 6), 2)):
        run_log = log.RunLog(
            tmp_path, warnings.append, resume_at, trackers.open_trackers(cfg, tmp_path, warnings.append)
        )
        for i in rows:
            run_log.write({"iteration": i, "Train/mean_reward": float(i)})
        run_log.close()
    assert warnings == []
    name = json.loads((tmp_path / trackers.TRACK).read_text())["id"]
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert files and all(file.name == f"run-{name}.wandb" and file.stat().st_size > 0 for file in files)


def test_trackio_itself(tmp_path: Path) -> None:
    """In a process of its own: the folder of its database is fixed when it is imported."""
    pytest.importorskip("trackio", reason="pip install 'sdpg[trackio]'")
    script = (
        "from helpers.runs import tiny; from sdpg import train; from pathlib import Path\n"
        "for n in (2, 4): print(train.train(tiny(track='trackio', iterations=n), Path('run'), n > 2)['iteration'])"
    )
    env = subprocess_env() | {"TRACKIO_DIR": str(tmp_path / "trackio")}
    env["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "4"], done.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "sdpg.db")) as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    name = json.loads((tmp_path / "run" / trackers.TRACK).read_text())["id"]
    assert [(row[0], row[1]) for row in rows] == [(name, step) for step in (1, 2, 3, 4)]
    assert all("Perf/total_fps" in json.loads(row[2]) for row in rows)
