"""`sdpg tasks`: what there is to train, at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.runs import subprocess_env

from sdpg.cli import main

Capture = pytest.CaptureFixture[str]


def test_tasks(capsys: Capture) -> None:
    assert main(["tasks"]) == 0
    assert "hopper" in capsys.readouterr().out
    assert main(["tasks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["hopper"]["state_size"] == 11
    assert rows["hopper"]["action_size"] == 3


def test_a_broken_plug_in_does_not_hide_the_others(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"cartpole": "sdpg.tasks.cartpole:Cartpole", "x": "no.no:X"}
    for module in ("plugins", "tasks.registry"):
        monkeypatch.setattr(f"sdpg.{module}.targets", lambda group, ours: known)
    for argv in (["tasks"], ["tasks", "--json"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert "can't be loaded from no.no:X" in out
        assert "cartpole" in out


def test_the_list_of_tasks_does_not_wait_for_torch(capsys: Capture) -> None:
    script = "import sys; from sdpg.cli import main; main(['tasks']); assert not {'torch', 'mujoco'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", script], env=subprocess_env(), check=True, capture_output=True)
    assert main(["tasks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)  # of the classes themselves
    told = [
        f"{name:12} actions {row['action_size']:3}  state {row['state_size']:3}  {row['about']}"
        for name, row in rows.items()
    ]
    assert done.stdout.decode().splitlines() == told and rows["cartpole"]["episode_seconds"] == 6.0
