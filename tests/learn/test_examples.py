"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.runs import subprocess_env, tiny

from sdpg.algos.returns import lambda_returns
from sdpg.algos.sdpg import advantage, ascent_direction
from sdpg.check.checks import check_task
from sdpg.tasks.base import make_task
from sdpg.train import train

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_one_file_learns_to_balance() -> None:
    """No policy returns more than 250; actions of 0 return 26, random ones 28."""
    words = [sys.executable, EXAMPLES / "sdpg_in_one_file.py", "seed=0", "iterations=100"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    returns = [float(text) for text in re.findall(r"return (\S+) of 250", done.stdout)]
    assert len(returns) == 10
    assert returns[0] < 100.0
    assert returns[-1] > 200.0


def test_one_file_is_short_and_stands_alone() -> None:
    lines = (EXAMPLES / "sdpg_in_one_file.py").read_text().splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if re.match(r"\s*(import|from) sdpg", line)]


def test_one_file_has_the_mathematics_of_the_package() -> None:
    one, generator = load("sdpg_in_one_file"), torch.Generator().manual_seed(0)
    reward, value = torch.randn(2, 5, 3, 8, generator=generator)  # (T, N, K) each
    done = torch.rand(5, 3, 8, generator=generator) < 0.2
    done[-1] = True
    returns = one.lambda_returns(reward, value, done, 0.9, 0.8)
    torch.testing.assert_close(returns, lambda_returns(reward, value, done, 0.9, 0.8))
    noise, std = torch.randn(5, 3, 8, 2, generator=generator), torch.tensor([0.5, 2.0])
    noise[:, :, 0] = 0.0
    weight = advantage(returns, None, normalize=True)
    theirs = ascent_direction(weight, noise, std.expand(5, 3, 2), "sigma")
    torch.testing.assert_close(one.ascent_direction(returns, noise, std), theirs)


def test_training_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"iterations": 20, "num_nominal": 4, "num_auxiliary": 2, "threads": 1}
    result = load("train_from_python").main(str(tmp_path / "run"), **small)
    assert (result["iteration"], result["episodes"], result["train_seed"]) == (20, 32, 1)
    assert re.search(r"^iteration \d+: return \d", capsys.readouterr().out, flags=re.MULTILINE)


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_robot"))
    monkeypatch.delitem(sys.modules, "arm", raising=False)
    return "arm:Arm"


def test_the_own_robot_passes_the_check(arm: str) -> None:
    assert [finding for finding in check_task(make_task(arm)) if not finding.passed] == []


@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_the_own_robot_trains(arm: str, obs: str, tmp_path: Path) -> None:
    assert train(tiny(arm, obs, iterations=2), tmp_path / "run")["iteration"] == 2


@pytest.mark.slow
def test_the_commands_for_the_own_robot(tmp_path: Path) -> None:
    """Those of its README, one after the other, in a copy of its folder, on a run that is short."""
    folder = shutil.copytree(EXAMPLES / "own_robot", tmp_path / "own_robot")
    lines = (folder / "README.md").read_text().replace("--iterations 300", "--iterations 2").splitlines()
    commands = [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("$ sdpg ")]
    small = {
        "train": "--num-nominal 3 --num-auxiliary 2 --algo.horizon 4 --threads 1",
        "eval": "--episodes 2 --threads 1",
        "play": "--episodes 1 --size 64",
    }
    assert [verb for verb, *_ in commands] == ["check", *small]
    for command in commands:
        words = [sys.executable, "-m", "sdpg", *command, *small.get(command[0], "").split()]
        done = subprocess.run(words, cwd=folder, env=subprocess_env(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    assert (folder / "arm.mp4").stat().st_size > 1000
