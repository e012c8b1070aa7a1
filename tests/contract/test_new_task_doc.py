"""The tutorial's code blocks, one after the other, are a module that works."""

import re
import sys
from pathlib import Path

import pytest
from helpers.runs import tiny

from sdpg.build import compile_scene
from sdpg.check.checks import check_task
from sdpg.sim.reads import FIELDS
from sdpg.tasks.base import make_task
from sdpg.train import train

TASKS = "Pendulum RoughPendulum VariedPendulum RisingPendulum SeeingPendulum SensingPendulum AimingPendulum".split()
TASKS += ["FilePendulum"]
DOC = Path(__file__).parents[2] / "docs" / "new_task.md"


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """The module, importable by the name that the tutorial gives it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOC.read_text(), flags=re.M | re.S)
    assert len(blocks) >= 4
    (tmp_path / "my_pendulum.py").write_text("\n\n".join(blocks))
    (xml,) = re.findall(r"^```xml\n(.*?)^```$", DOC.read_text(), flags=re.M | re.S)
    (tmp_path / "pendulum.xml").write_text(xml)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_pendulum", raising=False)
    yield "my_pendulum"
    sys.modules.pop("my_pendulum", None)


@pytest.mark.parametrize("task", TASKS)
def test_the_tutorials_tasks_pass_the_check(module, task):
    assert [f for f in check_task(make_task(f"{module}:{task}")) if not f.passed] == []


def test_the_tutorials_task_trains(module, tmp_path):
    summary = __import__(module).train(iterations=2, folder=str(tmp_path / "run"))
    assert summary["iteration"] == 2
    assert any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize("task", ["SeeingPendulum", "SensingPendulum"])
def test_the_tutorials_task_trains_from_what_it_sees(module, tmp_path, task):
    cfg = tiny(f"{module}:{task}", "pixels", iterations=2)
    assert train(cfg, tmp_path / "run")["iteration"] == 2


def test_the_files_timestep_counts(module):
    task = make_task(f"{module}:FilePendulum")
    assert (compile_scene(task).opt.timestep, task.step_seconds) == (0.004, 0.02)


def test_the_table_of_reads_is_that_of_the_engines():
    rows = dict(re.findall(r"^\| (state|position|velocity|acceleration) \| (.*) \|$", DOC.read_text(), flags=re.M))
    assert {stage: set(re.findall(r"`(\w+)`", fields)) for stage, fields in rows.items()} == FIELDS


def test_the_tutorials_goal_is_seen(module):
    """The pole at rest and the ball elsewhere: rows differ, and only where a ball is."""
    import torch

    from sdpg.build import make_env

    env = make_env(f"{module}:AimingPendulum", 6, obs="pixels")
    own = env.looks(env.frame_stacks.renderer.varied)
    rgb = env.frame_stacks.renderer.render(torch.zeros(6, 1), own)["side"].rgb.int()
    different = (rgb != rgb[:1]).any(dim=1).sum(dim=(1, 2))  # (6,) pixels
    assert (different[1:] > 10).all() and (different < 200).all()


def test_the_motor_is_as_weak_as_the_tutorial_says(module):
    """At full torque from rest the pendulum does not come up: the task needs what it is there to show."""
    import torch

    from sdpg.build import make_env

    env = make_env(f"{module}:Pendulum", 4)
    highest = -1.0
    for _ in range(env.task.episode_steps):
        env.step(torch.ones(4, 1, 1))
        highest = max(highest, env.physics().qpos.cos().max().item())
    assert highest < 0.5
