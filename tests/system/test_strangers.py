"""Runs, checkpoints and dumps of a stranger's: what is in them never chooses which code runs, nor crashes an engine."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch
from helpers.runs import tiny, vouch
from safetensors.torch import load_file, save_file

from sdpg.build import compile_scene, model_bytes
from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.evaluate import evaluate
from sdpg.report import curves
from sdpg.run import checkpoint, failures
from sdpg.run.resume import cfg_from_dict
from sdpg.tasks.base import make_task, named_in_file
from sdpg.train import train
from sdpg.watch import player
from sdpg.watch.replay import replay

Stranger = Callable[[str, str], str]
Capture = pytest.CaptureFixture[str]

EVIL = """
from pathlib import Path
Path("imported").touch()

def boom():
    Path("called").touch()

class Boom:
    def __init__(self):
        Path("called").touch()
"""
MINE = "from sdpg.tasks.cartpole import Cartpole\n\nclass Mine(Cartpole):\n    pass\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the cartpole, with a dump of a world that failed."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(iterations=2, max_value=1e-3, max_failed=1.0), run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def _dump(run: Path) -> Path:
    return min((run / "bad").iterdir())


def _change(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """In the options of the run, wherever they stand."""
    for state in (run / "checkpoints").glob("*/state.json"):
        header = json.loads(state.read_text())
        change(header["cfg"])
        state.write_text(json.dumps(header))
        vouch(state.parent)
    config = json.loads((run / "config.json").read_text())
    change(config["cfg"])
    (run / "config.json").write_text(json.dumps(config))


def _name(run: Path, task: str) -> None:
    """As the task of the run and of its dump."""
    _change(run, lambda cfg: cfg.update(task=task))
    dump = failures.load(_dump(run))
    about = dump.about | {"task": task}
    _dump(run).write_bytes(failures.encode(dataclasses.replace(dump, about=about), about["iteration"]))


def _verbs(run: Path) -> dict[str, list[str]]:
    return {
        "eval": ["eval", str(run), "--episodes", "1", "--threads", "1"],
        "play": ["play", str(run), "--episodes", "1", "--size", "64", "--video", "out.mp4"],
        "view": ["view", str(run), "--no-open", "--seconds", "0", "--size", "64"],
        "train": ["train", "--resume", str(run), "--iterations", "3", "--quiet"],
        "replay": ["replay", str(_dump(run))],
        "bench": ["bench", "curve", str(run), "--episodes", "1"],
    }


def _refused(capsys: Capture, *argv: str) -> str:
    capsys.readouterr()
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("sdpg: ") and err.count("\n") == 1
    return err


# --- the task


@pytest.mark.parametrize("verb", ["eval", "play", "view", "train", "replay", "bench"])
def test_a_file_does_not_choose_the_code(verb: str, run: Path, stranger: Stranger, capsys: Capture) -> None:
    stranger("evil", EVIL)
    _name(run, "evil:Boom")
    argv = _verbs(run)[verb]
    assert "of task 'evil:Boom'" in (err := _refused(capsys, *argv)) and err.endswith(" say so: --task evil:Boom\n")
    assert "of task 'evil:Boom', not 'cartpole'" in _refused(capsys, *argv, "--task", "cartpole")
    assert "evil" not in sys.modules and not Path("imported").exists()
    # Typed, it is imported; but what is no task is not called.
    for name in ("Boom", "boom"):
        _name(run, f"evil:{name}")
        assert "is not a subclass of sdpg.tasks.base.Task" in _refused(capsys, *argv, "--task", f"evil:{name}")
    assert Path("imported").exists() and not Path("called").exists()


def test_a_task_that_was_typed_goes_its_way(run: Path, stranger: Stranger, capsys: Capture) -> None:
    stranger("mine", MINE)
    _name(run, "mine:Mine")
    for argv in _verbs(run).values():
        assert main([*argv, "--task", "mine:Mine"]) == 0, argv
    assert main(["train", "mine:Mine", "--resume", str(run), "--iterations", "4"]) == 0
    assert main(["train", "mine:Mine", "--run", str(run), "--resume", "auto", "--iterations", "5"]) == 0
    assert f"sdpg eval {run} --task mine:Mine\n" in capsys.readouterr().out
    assert checkpoint.find(run).name == "00000005"


def test_resume_auto_finds_the_run_of_a_task_that_was_typed(stranger: Stranger, capsys: Capture) -> None:
    stranger("mine", MINE)
    tiny_run = "--num-nominal 2 --num-auxiliary 1 --threads 1 --algo.horizon 4 --json --quiet --resume auto".split()
    for iterations in ("1", "2"):
        assert main(["train", "mine:Mine", *tiny_run, "--iterations", iterations]) == 0
        assert json.loads(capsys.readouterr().out)["iteration"] == int(iterations)
    assert len(list(Path("runs/mine.Mine/sdpg").iterdir())) == 1


def test_from_python_the_task_is_an_argument(run: Path, stranger: Stranger) -> None:
    stranger("mine", MINE)
    _name(run, "mine:Mine")
    dump, saved = failures.load(_dump(run)), checkpoint.load(checkpoint.find(run)).cfg
    for refused in (
        lambda: evaluate(run, 1),
        lambda: player.open_run(run, "last", 0),
        lambda: replay(dump),
        lambda: cfg_from_dict(saved),
        lambda: train(tiny(iterations=3, max_value=1e-3, max_failed=1.0), run, resume=True),  # of the cartpole
    ):
        with pytest.raises(SdpgError, match="of task 'mine:Mine'"):
            refused()
    assert "mine" not in sys.modules
    assert evaluate(run, 1, threads=1, task="mine:Mine")["task"] == "mine:Mine"
    assert replay(dump, "mine:Mine").departed is None
    cfg = dataclasses.replace(cfg_from_dict(saved, "mine:Mine"), iterations=3)
    assert train(cfg, run, resume=True)["iteration"] == 3


@pytest.mark.parametrize("name", ["", "a b:C", "x:y:z", "x\n:y", "x:y z", "$(x):y", None, 3, ["cartpole"]])
def test_a_name_that_is_none_is_not_repeated_as_something_to_type(name: Any) -> None:
    with pytest.raises(SdpgError, match="neither a name nor module:Class"):
        named_in_file(name)


def test_curves_do_not_ask_the_task_of_a_stranger(run: Path, stranger: Stranger) -> None:
    stranger("evil", EVIL)
    _change(run, lambda cfg: cfg.update(task="evil:Boom", obs="pixels"))
    (run / "metrics.jsonl").write_text('{"iteration": 1, "seconds": 1.0}\n')  # as an older version wrote it
    assert curves.load(run)[1][0]["Train/images"] is None
    assert "evil" not in sys.modules


def test_a_file_does_not_choose_the_tracker(run: Path, stranger: Stranger, capsys: Capture) -> None:
    """To look for evil.wandb, Python would import evil."""
    stranger("evil", EVIL)
    _change(run, lambda cfg: cfg.update(track="evil.wandb"))
    assert "has track 'evil.wandb'; it must be one of" in _refused(capsys, *_verbs(run)["train"])
    assert "evil" not in sys.modules


def test_the_working_folder_registers_no_tasks(
    tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A folder that was downloaded may look like an installed package."""
    stranger("evil", EVIL)
    about = tmp_path / "evil-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sdpg.tasks]\nevil = evil:Boom\n")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert main(["tasks", "--json"]) == 0
    assert "evil" not in json.loads(capsys.readouterr().out)
    assert "evil" not in sys.modules


# --- the model


def _lying(model: mujoco.MjModel) -> mujoco.MjModel:
    model.dof_treeid[:] = 2_000_000_000  # an index that leads out of every array
    return model


def _with_model(run: Path, model: mujoco.MjModel) -> list[str]:
    dump = dataclasses.replace(failures.load(_dump(run)), model=model_bytes(model))
    _dump(run).write_bytes(failures.encode(dump, 1))
    return ["replay", str(_dump(run))]


def test_a_model_that_is_not_the_tasks_is_not_used(run: Path, capsys: Capture) -> None:
    argv = _with_model(run, _lying(compile_scene(make_task("cartpole"))))
    err = _refused(capsys, *argv)
    assert "the dump's model is not the scene of 'cartpole'" in err and err.endswith(" say so: --trust-model\n")


def test_a_model_that_the_user_trusts_is_used(run: Path, capsys: Capture) -> None:
    """The one that was recorded, also after the scene has been changed."""
    other = compile_scene(make_task("cartpole"))
    other.opt.gravity[2] = -20.0
    argv = _with_model(run, other)
    assert main([*argv, "--trust-model", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["departed_at"] == 1
    assert replay(failures.load(_dump(run)), trust_model=True).model.opt.gravity[2] == -20.0
    cut = dataclasses.replace(failures.load(_dump(run)), model=b"cut")
    with pytest.raises(SdpgError, match="does not fit the task 'cartpole'"):
        replay(cut, trust_model=True)


def test_a_dump_gives_no_values_to_the_model_that_the_task_does_not(run: Path, capsys: Capture) -> None:
    path = _dump(run)
    about = failures.load(path).about
    wrong = {"start.sim.params.dof_treeid": torch.full((1, 2), 2_000_000_000, dtype=torch.int32)}
    save_file(load_file(path) | wrong, path, {"about": json.dumps(about)})
    assert "the engine's state has 'params.dof_treeid'" in _refused(capsys, "replay", str(path))


def test_a_checkpoint_gives_no_values_to_the_model_that_the_task_does_not(run: Path, capsys: Capture) -> None:
    folder = checkpoint.find(run)
    saved = checkpoint.load(folder)
    worlds = len(saved.state["env"]["sim.state"])
    saved.state["env"]["sim.params.dof_treeid"] = torch.full((worlds, 2), 2_000_000_000, dtype=torch.int32)
    checkpoint.save(folder.parent, saved.iteration, saved.state, saved.cfg)
    assert "the engine's state has 'params.dof_treeid'" in _refused(capsys, *_verbs(run)["train"])
