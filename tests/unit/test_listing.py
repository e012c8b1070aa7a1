"""Run folders in every state, good and bad."""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import make_run, subprocess_env, tiny

from sdpg import train
from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.run import listing

Capture = pytest.CaptureFixture[str]


def said(state: str, **changes: Any) -> dict[str, Any]:
    """A status.json."""
    now = datetime.datetime.now().isoformat(timespec="seconds")
    base = {"pid": os.getpid(), "host": socket.gethostname(), "started": now, "updated": now, "message": ""}
    return base | {"state": state, "iteration": 2, "iterations": 3, "seconds": 90.0, "mean_reward": 5.5} | changes


def _make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (time.time() - 7200, time.time() - 7200))


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_states_that_a_run_writes(tmp_path: Path, gone: int) -> None:
    def state(name: str, **status: Any) -> tuple[str, str]:
        run = listing.look(make_run(tmp_path / name, [1.0, 9.0], said(**status)))
        return run.state, run.message

    assert state("a", state="running") == ("running", "")
    assert state("b", state="finished") == ("finished", "")
    assert state("c", state="interrupted", message="SIGTERM", pid=gone) == ("interrupted", "SIGTERM")
    assert state("d", state="failed", message="worlds failed", pid=gone) == ("failed", "worlds failed")
    assert state("e", state="running", pid=gone) == ("interrupted", "killed")
    assert state("f", state="running", pid=gone, host="elsewhere") == ("running", "on elsewhere")
    assert state("g", state="running", pid=0) == ("interrupted", "killed")


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    run = listing.look(make_run(tmp_path / "run", [None, 9.0, 4.0], said("running"), seed=7))
    assert (run.task, run.obs, run.algorithm, run.seed) == ("cartpole", "state", "sdpg", 7)
    assert (run.iteration, run.iterations, run.mean_reward, run.best_reward, run.minutes) == (2, 3, 5.5, 9.0, 1.5)
    empty = listing.look(make_run(tmp_path / "empty", [], said("running", mean_reward=None, iteration=0)))
    assert (empty.iteration, empty.mean_reward, empty.best_reward) == (0, None, None)


def test_runs_without_a_status_are_judged_by_their_rows(tmp_path: Path) -> None:
    finished = make_run(tmp_path / "finished", [1.0, 2.0, 3.0])
    timed = make_run(tmp_path / "timed", [1.0, 2.0], seconds=29.9, iterations=100, minutes=1.0)
    young = make_run(tmp_path / "young", [1.0])
    old = make_run(tmp_path / "old", [1.0])
    unborn = make_run(tmp_path / "unborn")
    _make_old(*(run / name for run in (finished, timed, old) for name in ("metrics.jsonl", listing.CONFIG)))
    assert [listing.look(run).state for run in (finished, timed, young, old, unborn)] == [
        "finished", "finished", "running", "interrupted", "running",
    ]  # fmt: skip
    run = listing.look(old)
    assert (run.iteration, run.mean_reward, run.started) == (1, 1.0, "2026-01-02T03:04:05")
    assert listing.table([run])[0][-2] == "2 h"


def test_a_real_run(tmp_path: Path) -> None:
    train.train(tiny(iterations=2), tmp_path / "deep" / "run")
    (run,) = listing.find(tmp_path)
    assert (run.state, run.task, run.iteration, run.iterations) == ("finished", "cartpole", 2, 2)
    assert run.run == str(tmp_path / "deep" / "run")


def test_damaged_folders_do_not_hide_the_others(tmp_path: Path) -> None:
    damage: dict[str, dict[str, bytes]] = {
        "torn config": {listing.CONFIG: b'{"cfg": {"ta'},
        "foreign config": {listing.CONFIG: b"[1, 2]"},
        "no options": {listing.CONFIG: b'{"cfg": {}}'},
        "torn status": {listing.STATUS: b'{"state": "run'},
        "other state": {listing.STATUS: b'{"state": "asleep"}'},
        "no time": {listing.STATUS: json.dumps(said("finished", updated="soon")).encode()},
        "no numbers": {listing.STATUS: json.dumps(said("finished", seconds=None)).encode()},
        "deep": {listing.CONFIG: b"[" * 100_000},
    }
    for name, files in damage.items():
        folder = make_run(tmp_path / name, [1.0])
        for file, content in files.items():
            (folder / file).write_bytes(content)
    (make_run(tmp_path / "no rows", [1.0]) / "metrics.jsonl").unlink()
    folder = make_run(tmp_path / "rows are a folder")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    with open(make_run(tmp_path / "torn rows", [1.0, 2.0]) / "metrics.jsonl", "ab") as file:
        file.write(b'{"iteration": 3, "Tr')
    make_run(tmp_path / "good", [1.0, 2.0, 3.0], said("finished"))

    found = {Path(run.run).name: run for run in listing.find(tmp_path)}
    assert len(found) == len(damage) + 4
    assert {name for name, run in found.items() if run.state == "unreadable"} == {*damage, "rows are a folder"}
    assert all(run.message and "\n" not in run.message for run in found.values() if run.state == "unreadable")
    assert found["no options"].message == "there is no 'iterations' in its files"
    assert found["good"].state == "finished" and found["torn rows"].iteration == 2 and found["no rows"].iteration == 0
    assert len(listing.table(list(found.values()))) == len(found)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    (run,) = listing.find(tmp_path)
    assert (run.state, run.message) == ("unreadable", "Permission denied")


def test_the_one_that_moved_last_is_at_the_end(tmp_path: Path) -> None:
    for name, day in (("b", 3), ("a", 5), ("c", 4)):
        make_run(tmp_path / name, [1.0], said("finished", updated=f"2026-01-0{day}T00:00:00"))
    zoned = said("finished", updated="2026-01-06T00:00:00+00:00")
    make_run(tmp_path / "d" / "inner", [1.0], zoned)
    make_run(tmp_path / "a" / "below a run", [1.0], zoned)  # not looked at
    assert [Path(run.run).name for run in listing.find(tmp_path)] == ["b", "c", "a", "inner"]


def test_age() -> None:
    ages = {-3: "0 s", 5: "5 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2 h", 3 * 86400: "3 d"}
    assert {seconds: listing.age(seconds) for seconds in ages} == ages


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 2
    assert "no folder 'runs'" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs below 'runs'\n"

    make_run(tmp_path / "runs" / "one", [1.0, 1234.5], said("running"))
    (make_run(tmp_path / "runs" / "broken") / listing.CONFIG).write_text("{")
    assert main(["runs"]) == 0
    header, broken, one = capsys.readouterr().out.splitlines()
    assert header.split() == [name for name in listing.HEADER if name]
    assert "unreadable" in broken and "can't be read" in broken
    assert one.split()[:7] == ["runs/one", "cartpole", "state", "sdpg", "0", "2/3", "5.5"]
    assert one.index("cartpole") == header.index("task") and header.index("state") == one.index("running")

    assert main(["runs", "runs/one", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["run"], run["state"], run["best_reward"]) == ("runs/one", "running", 1234.5)


def test_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    make_run(tmp_path / "[bold]x", [1.0], said("failed", message="look at [it]"))
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b[1m" in out and "[bold]x" in out and "look at [it]" in out


def test_a_list_of_runs_does_not_wait_for_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "one", [1.0])
    script = "import sys; from sdpg.cli import main; main(['runs', sys.argv[1]]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=subprocess_env(), check=True, capture_output=True)


def test_config_errors_are_plain(tmp_path: Path) -> None:
    with pytest.raises(SdpgError, match="no run folder"):
        listing.read_config(tmp_path / "nowhere")
