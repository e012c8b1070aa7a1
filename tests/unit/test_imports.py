"""Who may know whom: every module sees the layers below its own, and its own package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.runs import SRC

LAYERS = [
    set(
        "types camera pipeline names rng errors ranges plugins distributed warp_engine machine compiled workers".split()
    ),
    {"sim", "render", "nn", "tasks"},  # do not see each other
    {"env", "episodes"},
    {"algos"},
    {"config", "presets"},
    {"engines", "declarations", "build"},
    {"run"},  # a run's folder: what is in it, and how it is read
    {"train", "evaluate", "check", "watch", "report", "doctor"},  # do not see each other, but for MAY
    {"bench", "deploy", "robot"},
    {"cli", "__main__"},
]
APART = [LAYERS[1], LAYERS[7]]
MAY = {("doctor", "check")}
# The toy system is an engine and its task in one: the analytic gradient needs both.
EXCEPTIONS = {("sim/toy.py", "sdpg.tasks.base")}
FILES = sorted((SRC / "sdpg").rglob("*.py"))


def _layer(part: str) -> int:
    for level, parts in enumerate(LAYERS):
        if part in parts:
            return level
    raise AssertionError(f"'{part}' belongs to no layer: give it one in tests/unit/test_imports.py")


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "sdpg")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "sdpg":
                yield from (f"sdpg.{alias.name}" for alias in node.names if alias.name != "__version__")
            elif node.module and node.module.startswith("sdpg."):
                yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_layers(path: Path) -> None:
    relative = path.relative_to(SRC / "sdpg")
    mine = relative.parts[0].removesuffix(".py")
    if mine == "__init__":
        assert not list(_imports(path))
        return
    for name in _imports(path):
        if name == "sdpg" or (relative.as_posix(), name) in EXCEPTIONS:
            continue
        theirs = name.split(".")[1]
        if theirs == mine:
            continue
        assert _layer(theirs) <= _layer(mine), f"{relative} must not import {name}"
        apart = any({mine, theirs} <= layer for layer in APART) and (mine, theirs) not in MAY
        assert not apart, f"{relative} must not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_only_the_command_line_prints(path: Path) -> None:
    if path.parent.name == "cli":
        return
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]


def test_files_stay_readable() -> None:
    assert not {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 500}


def test_what_learns_without_images_does_not_load_their_compiler() -> None:
    told = "import sys, sdpg.algos.sdpg, sdpg.algos.drqv2, sdpg.build; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "False\n"
