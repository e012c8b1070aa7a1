"""The runtime's wheel, by itself: it holds the real pipeline, and its tests run where there is no sdpg."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from helpers.runs import SRC
from packaging.requirements import Requirement

ROOT = SRC.parent


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(each) for each in command], cwd=cwd, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def declared(metadata: Message, extras: tuple[str, ...]) -> set[str]:
    """All distributions that a wheel asks for, and those that these ask for."""
    found: set[str] = set()
    waiting = [(line, extras) for line in metadata.get_all("Requires-Dist", [])]
    while waiting:
        line, extras = waiting.pop()
        needed = Requirement(line)
        if needed.marker is not None and not any(needed.marker.evaluate({"extra": each}) for each in ("", *extras)):
            continue
        if needed.name not in found:
            found.add(needed.name)
            inner = tuple(needed.extras)
            waiting += [(each, inner) for each in importlib.metadata.requires(needed.name) or []]
    return found


def link(distribution: str, site: Path) -> None:
    """What it has installed here, to be found there."""
    for file in importlib.metadata.files(distribution) or []:
        name = file.parts[0]
        if name not in ("..", "__pycache__") and not (site / name).exists():
            whole = Path(str(file.locate()))
            (site / name).symlink_to(whole.parents[len(file.parts) - 2] if len(file.parts) > 1 else whole)


@pytest.mark.slow
def test_the_wheel_runs_without_the_main_package(tmp_path: Path) -> None:
    # As it is checked out: the symbolic link to the pipeline stays one, and must be followed.
    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__", ".*")
    shutil.copytree(ROOT / "runtime", tmp_path / "repo" / "runtime", symlinks=True, ignore=ignored)
    (tmp_path / "repo/src/sdpg").mkdir(parents=True)
    shutil.copy(ROOT / "src/sdpg/pipeline.py", tmp_path / "repo/src/sdpg/pipeline.py")
    shutil.copy(ROOT / "LICENSE", tmp_path / "repo/LICENSE")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    source, venv = tmp_path / "repo/runtime", tmp_path / "venv"
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    # An environment that has the wheel and what it declares, of the versions that are installed here, and nothing else.
    call(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    call(*pip, "--python", venv, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (site,) = venv.glob("lib/python*/site-packages")
    (told,) = site.glob("sdpg_runtime-*.dist-info/METADATA")
    for distribution in declared(message_from_string(told.read_text()), ("dds", "dev")):
        link(distribution, site)
    inside = zipfile.ZipFile(wheel)
    assert inside.read("sdpg_runtime/pipeline.py") == (ROOT / "src/sdpg/pipeline.py").read_bytes()
    assert "sdpg_runtime/py.typed" in inside.namelist()

    tests = shutil.copytree(ROOT / "runtime/tests", tmp_path / "tests")
    out = call(venv / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=tmp_path)
    assert "passed" in out and "failed" not in out
    call(venv / "bin/sdpg-run", "--help", cwd=tmp_path)
    missing = "import importlib.util as u; print([n for n in ('torch', 'mujoco', 'sdpg') if u.find_spec(n)])"
    assert call(venv / "bin/python", "-c", missing, cwd=tmp_path).strip() == "[]"
