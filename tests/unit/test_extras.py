"""Extras are extras: a plain `pip install sdpg` has none and works; what is missing is one line that names it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.options_table import ROOT

from sdpg.algos.registry import ALGORITHMS
from sdpg.cli import main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# extra -> the modules that it brings, and a command that needs them
EXTRAS = {
    "ppo": (("rsl_rl", "tensordict"), "train cartpole --algorithm ppo"),
    "a2c": (("rsl_rl", "tensordict"), "train cartpole --algorithm a2c"),
    "dreamer": (("torchrl", "tensordict"), "train cartpole --algorithm dreamer --obs pixels"),
    "export": (("onnx", "onnxruntime"), "export RUN"),
    "robot": (("cyclonedds",), "robot go2"),
    "wandb": (("wandb",), "train cartpole --track wandb"),
    "trackio": (("trackio",), "train cartpole --track trackio"),
}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no extra were installed: None in sys.modules is a module that is not there."""
    for name in {module for modules, _ in EXTRAS.values() for module in modules}:
        for loaded in [each for each in sys.modules if each.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
    for target in ALGORITHMS.built_in.values():
        monkeypatch.delitem(sys.modules, target.partition(":")[0], raising=False)  # it is imported anew


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def test_a_plain_install_draws_no_extra() -> None:
    extras = {name: words for name, words in PROJECT["optional-dependencies"].items() if name != "dev"}
    assert extras.keys() == EXTRAS.keys()
    for words in extras.values():
        assert _names(words) and not _names(words) & _names(PROJECT["dependencies"])


def test_a_plain_install_trains(plain: None, tmp_path: Path) -> None:
    words = "train cartpole --num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1 --quiet --run".split()
    assert main([*words, str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_one_line(
    extra: str, plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = EXTRAS[extra][1].split()
    if extra == "export":
        train = "train cartpole --num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1 --quiet --run RUN"
        assert main(train.split()) == 0
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"pip install 'sdpg[{extra}]'" in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()  # nothing was begun
