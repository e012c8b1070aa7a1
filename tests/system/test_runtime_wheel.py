"""The runtime's wheel, by itself: it holds the real pipeline, and its tests run where there is no sdpg."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.runs import SRC

ROOT = SRC.parent


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}


def call(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(each) for each in command], cwd=cwd, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_runs_without_the_main_package(tmp_path: Path) -> None:
    # As it is checked out: the symbolic link to the pipeline stays one, and must be followed.
    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__", ".*")
    shutil.copytree(ROOT / "runtime", tmp_path / "repo" / "runtime", symlinks=True, ignore=ignored)
    (tmp_path / "repo/src/sdpg").mkdir(parents=True)
    shutil.copy(ROOT / "src/sdpg/pipeline.py", tmp_path / "repo/src/sdpg/pipeline.py")
    shutil.copy(ROOT / "LICENSE", tmp_path / "repo/LICENSE")
    venv = tmp_path / "venv"
    call(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    pip = [venv / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pip += ["-c", ROOT / "constraints.txt"]
    source = tmp_path / "repo/runtime"
    try:
        call(venv / "bin/python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source, cwd=tmp_path)
        (wheel,) = tmp_path.glob("*.whl")
        call(*pip, f"{wheel}[dds,dev]", cwd=tmp_path)
    except AssertionError as error:
        if "No matching distribution" in str(error) or "Could not find a version" in str(error):
            pytest.skip("no package index here")
        raise
    inside = zipfile.ZipFile(wheel)
    assert inside.read("sdpg_runtime/pipeline.py") == (ROOT / "src/sdpg/pipeline.py").read_bytes()
    assert "sdpg_runtime/py.typed" in inside.namelist()

    tests = shutil.copytree(ROOT / "runtime/tests", tmp_path / "tests")
    out = call(venv / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=tmp_path)
    assert "passed" in out and "failed" not in out
    call(venv / "bin/sdpg-run", "--help", cwd=tmp_path)
    missing = "import importlib.util as u; print([n for n in ('torch', 'mujoco', 'sdpg') if u.find_spec(n)])"
    assert call(venv / "bin/python", "-c", missing, cwd=tmp_path).strip() == "[]"
