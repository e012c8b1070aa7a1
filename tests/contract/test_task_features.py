"""A task's options, curriculum, measures and looks, from the command line to the checkpoint and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.runs import tiny
from helpers.targets import LEVELS, Options, Targets

from sdpg import cli
from sdpg.build import make_env
from sdpg.check.checks import check_task
from sdpg.errors import SdpgError
from sdpg.run import checkpoint, log
from sdpg.train import train

TASK = "helpers.targets:Targets"
TINY = ["--num-nominal", "3", "--num-auxiliary", "2", "--threads", "1", "--algo.horizon", "6", "--quiet"]


def _drive(env: object, steps: int, towards: bool) -> None:
    for _ in range(steps):
        target, x = env.memory["target"], env.physics().qpos[..., 0]  # type: ignore[attr-defined]
        action = (3.0 * (target - x)).clamp(-1, 1) if towards else -target.sign()
        env.restart(env.step(action[..., None]))  # type: ignore[attr-defined]


def test_it_is_a_sound_task() -> None:
    findings = check_task(Targets())
    assert all(finding.passed for finding in findings), [f.problem for f in findings if not f.passed]


def test_a_level_rises_and_falls_with_how_the_last_episode_ended() -> None:
    env = make_env(Targets(), 4, 2, seed=0)
    assert env.memory["level"].tolist() == [[0.0] * 3] * 4
    _drive(env, Targets.episode_steps, towards=True)
    assert env.memory["level"][:, 0].tolist() == [1.0] * 4
    assert env.memory["level"].eq(env.memory["level"][:, :1]).all()  # a row's branches have its level
    _drive(env, Targets.episode_steps, towards=False)
    assert env.memory["level"][:, 0].tolist() == [0.0] * 4
    # Near the end of the levels it stays; the measures tell how episodes went.
    _drive(env, Targets.episode_steps * (LEVELS + 1), towards=True)
    means = env.episodes.means()
    assert set(means.measures) == {"success", "level"} and 0.3 < means.measures["success"] < 1.0
    assert env.episodes.count == 4 * (LEVELS + 3)


def test_a_world_that_failed_has_no_measure() -> None:
    env = make_env(Targets(), 2, 0, seed=0)
    step = env.step(torch.tensor([[[0.0]], [[float("nan")]]]))
    assert step.failed[:, 0].tolist() == [False, True]
    env.restart(step)
    assert env.episodes.count == 1 and torch.isnan(torch.tensor(env.episodes.means().measures["success"]))


def test_every_row_has_its_own_look_unless_an_option_says_no() -> None:
    for colours in (True, False):
        env = make_env(Targets(Options(colours=colours)), 3, 1, seed=0, obs="pixels")
        images = env.observe().sources["pixels"].float()
        corner = images[:, :, 0, 0]  # (N, 3) of the floor
        assert (corner[0] - corner[1]).abs().max() > 10 if colours else torch.equal(corner[0], corner[1])


def test_options_are_flags_saved_with_the_run_and_compared_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert cli.main(["train", TASK, *TINY, "--iterations", "4", "--task.near", "0.5", "--run", run]) == 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["cfg"]
    assert saved["task_cfg"] == {"near": 0.5, "colours": True}
    assert {"Episode/success", "Episode/level"} <= set(log.read(tmp_path / "run")[-1])
    assert cli.main(["train", TASK, "--resume", run, "--task.near", "0.3", "--quiet"]) == 2
    assert "task.near 0.5 -> 0.3" in capsys.readouterr().err
    assert cli.main(["eval", run, "--task", TASK, "--episodes", "2", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["measures"]) == {"success", "level"}
    page = tmp_path / "compared"
    assert cli.main(["compare", run, "--metric", "Episode/level", "--out", str(page)]) == 0
    assert "Episode/success" in capsys.readouterr().out and "Episode/success" in page.with_suffix(".html").read_text()
    assert cli.main(["train", TASK, *TINY, "--task.near", "-1", "--run", str(tmp_path / "other")]) == 2
    assert "task.near must be positive, not -1.0" in capsys.readouterr().err
    with pytest.raises(SdpgError, match="not a subclass"):
        make_env("helpers.targets:Options", 1)


def test_a_resumed_run_goes_on_exactly_with_levels_and_looks(tmp_path: Path) -> None:
    cfg = replace(tiny("cartpole", "pixels"), task=TASK, task_cfg=Options(near=0.5), iterations=6)
    cfg = replace(cfg, algo=replace(cfg.algo, schedule_iterations=6, encoder="small"), num_nominal=4)
    train(cfg, tmp_path / "whole")
    train(replace(cfg, iterations=3), tmp_path / "parts")
    train(cfg, tmp_path / "parts", resume=True)
    whole, parts = (
        checkpoint.flatten(checkpoint.load(checkpoint.find(tmp_path / r)).state) for r in ("whole", "parts")
    )
    tensors = [name for name, value in whole.items() if isinstance(value, torch.Tensor)]
    assert any("memory.level" in name for name in tensors) and any("finished.success" in name for name in tensors)
    assert whole["env/memory.level"].max() > 0  # the curriculum moved
    assert [name for name in tensors if not torch.equal(whole[name], parts[name])] == []
