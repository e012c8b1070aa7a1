"""A robot's model that is missing or broken: one line that says what to do, exit code 2. Licences are listed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NoReturn

import mujoco_menagerie
import pytest
from helpers.arms import need_model

from sdpg.cli import main
from sdpg.tasks.base import make_task
from sdpg.tasks.menagerie import HINT, folder
from sdpg.tasks.registry import BUILT_IN

Capture = pytest.CaptureFixture[str]
ROBOT = "unitree_go2"
LICENCES = {
    "g1_hurdle": "BSD-3-Clause",
    "go2_terrain": "BSD-3-Clause",
    "franka_pick": "Apache-2.0",
    "aloha_insertion": "BSD-3-Clause",
    "allegro_cube": "BSD-2-Clause",
    "shadow_cube": "Apache-2.0",
}


def _refused(capsys: Capture, tmp_path: Path) -> str:
    """The line that training the robot's task ends with."""
    tried = ["train", "go2_terrain", "--run", str(tmp_path / "run"), "--iterations", "1", "--num-nominal", "2"]
    assert main(tried) == 2
    line = capsys.readouterr().err
    assert line.startswith("sdpg: ") and line.count("\n") == 1
    assert not (tmp_path / "run").exists()
    return line


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The robot's folder in a place where it may be broken."""
    need_model(ROBOT)
    made = tmp_path / "menagerie" / ROBOT
    shutil.copytree(folder(ROBOT), made)
    monkeypatch.setenv("MENAGERIE_ROOT", str(made.parent))
    return made


def test_a_root_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    line = _refused(capsys, tmp_path)
    assert f"'{ROBOT}'" in line and str(tmp_path) in line and line.rstrip().endswith(HINT)


def test_no_root_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def refuse(robot: str) -> NoReturn:
        raise mujoco_menagerie.MenagerieError("no connection\nand more about it")

    monkeypatch.setattr(mujoco_menagerie, "get", refuse)
    line = _refused(capsys, tmp_path)
    assert line == f"sdpg: the model '{ROBOT}' can't be had (no connection): {HINT}\n"


def test_half_a_file(copied: Path, tmp_path: Path, capsys: Capture) -> None:
    file = copied / "go2.xml"
    file.write_text(file.read_text()[:2000])
    assert f"{file} can't be read as a model" in _refused(capsys, tmp_path)


def test_no_file(copied: Path, tmp_path: Path, capsys: Capture) -> None:
    file = copied / "go2.xml"
    file.unlink()
    assert str(file) in _refused(capsys, tmp_path)


def test_a_broken_mesh(copied: Path, tmp_path: Path, capsys: Capture) -> None:
    file = sorted((copied / "assets").glob("base_*.obj"))[0]
    file.write_text("garbage")
    line = _refused(capsys, tmp_path)
    assert file.name in line and str(copied) in line


def test_a_mesh_that_is_not_there(copied: Path, tmp_path: Path, capsys: Capture) -> None:
    file = sorted((copied / "assets").glob("base_*.obj"))[0]
    file.unlink()
    line = _refused(capsys, tmp_path)
    assert file.name in line and str(copied) in line


def test_licences_are_listed(capsys: Capture) -> None:
    with_robots = {name for name in BUILT_IN if make_task(name).robot is not None}
    assert with_robots == LICENCES.keys()
    for name, licence in LICENCES.items():
        need_model(make_task(name).robot or "")
        assert main(["tasks", name]) == 0
        assert f"licence: {licence} (the robot's model)" in capsys.readouterr().out.splitlines()
