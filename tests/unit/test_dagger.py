from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sdpg.algos.api import Carry, Context, ImageShape, Policy, Shapes
from sdpg.algos.dagger import Dagger, LabelBuffer
from sdpg.algos.dagger_cfg import DaggerCfg
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.evaluate import evaluate
from sdpg.presets import resolve
from sdpg.run import log
from sdpg.tasks.cartpole import Cartpole
from sdpg.train import train
from sdpg.types import Camera

TINY = DaggerCfg(
    teacher="somewhere", steps=4, buffer=20, seed_steps=8, max_updates=6, min_updates=2, threshold=1e9, batch=4,
    actor_widths=(16,), encoder="small", betas=(0.9, 0.999), output_gain=1.0,
)  # fmt: skip


class Small(Cartpole):
    """Its images have 48 pixels a side."""

    cameras = {"pixels": Camera("side", width=48, height=48)}


class Teacher(Policy):
    """Counts its steps in each world since its episode began, and pushes against the pole's lean."""

    def carry(self, num: int) -> Carry:
        return {"steps": torch.zeros(num)}

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        self.seen.append(carry["steps"].tolist())
        return torch.tanh(sources["state"] @ self.gains)[:, None], {"steps": carry["steps"] + 1.0}

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gains = torch.linspace(-1.0, 1.0, size)
        self.seen: list[list[float]] = []


def _algo(cfg: DaggerCfg, env: BranchedEnv, *sources: str) -> tuple[Dagger, Teacher]:
    teacher = Teacher(env.task.state_size)
    algo = cfg.build(Context(env, sources, load_policy=lambda run: teacher, seconds_of=lambda run: 12.0))
    assert isinstance(algo, Dagger)
    return algo, teacher


def test_the_buffer_forgets_the_oldest() -> None:
    buffer = LabelBuffer(5, {"pixels": torch.zeros(1, 2, dtype=torch.uint8)}, 1)

    def add(*numbers: int) -> list[int]:
        values = torch.tensor(numbers)[:, None]
        buffer.add({"pixels": values.to(torch.uint8).expand(-1, 2)}, values.float())
        held = buffer.sources["pixels"][: len(buffer), 1].tolist()
        assert held == [int(x) for x in buffer.labels[: len(buffer), 0]]  # a label stays with what was seen
        return sorted(held)

    assert add(1, 2, 3) == [1, 2, 3]
    assert add(4, 5, 6) == [2, 3, 4, 5, 6]
    assert add(*range(10, 18)) == [13, 14, 15, 16, 17]
    assert buffer.sources["pixels"].dtype == torch.uint8


def test_the_student_acts_and_the_teacher_labels_what_it_came_to() -> None:
    env = make_env(Small(), 3, 0, seed=0, threads=1, obs="pixels")
    algo, teacher = _algo(TINY, env, "pixels")
    env._clock[1] = env.task.episode_steps - 2  # its episode ends after the second step
    states, actions = [], []
    original = env.step

    def step(action: Tensor, *more: Tensor) -> object:
        obs = env.observe()
        states.append(obs.state[:, 0])
        expected = torch.tanh(algo.actor(obs.sources)[0])
        assert torch.equal(action[:, 0], expected.detach())  # without noise, and the teacher has no say
        actions.append(action)
        return original(action, *more)

    env.step = step  # type: ignore[method-assign, assignment]
    assert algo.collect(env) == 12
    assert len(algo.buffer) == 12 and algo.buffer.sources["pixels"].dtype == torch.uint8
    assert torch.allclose(algo.buffer.labels[:12, 0], torch.tanh(torch.cat(states) @ teacher.gains))
    assert [steps[1] for steps in teacher.seen] == [0.0, 1.0, 0.0, 1.0]  # its memory begins anew with the episode
    assert [steps[0] for steps in teacher.seen] == [0.0, 1.0, 2.0, 3.0]


def test_updates_stop_when_a_batch_is_good_enough_but_not_too_early() -> None:
    env = make_env("cartpole", 2, 0, seed=0, threads=1)

    def updates(**changes: float) -> float:
        algo, _ = _algo(replace(TINY, **changes), env, "state")  # type: ignore[arg-type]
        told = algo.update(algo.collect(env))
        assert told["Train/teacher_seconds"] == 12.0
        return told["Train/updates"]

    assert updates() == 2.0
    assert updates(threshold=0.0) == 6.0
    assert updates(min_updates=5) == 5.0
    assert updates(seed_steps=9) == 0.0  # eight are there


def test_one_lucky_batch_ends_no_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("cartpole", 2, 0, seed=0, threads=1)
    algo, _ = _algo(replace(TINY, threshold=0.5, min_updates=2, max_updates=6), env, "state")
    errors, real = iter((1.0, 0.0, 1.0, 0.3, 0.3, 0.3)), F.mse_loss

    def error(*pair: Tensor) -> Tensor:
        return 0.0 * real(*pair) + next(errors)

    monkeypatch.setattr(F, "mse_loss", error)
    assert algo.update(algo.collect(env))["Train/updates"] == 5.0  # means of two: 0.5, 0.5, 0.65, 0.3


def test_the_pace_of_a_run_is_timed_once_it_learns() -> None:
    env = make_env("cartpole", 2, 0, seed=0, threads=1)
    algo, _ = _algo(replace(TINY, seed_steps=16), env, "state")  # eight an iteration
    warm = []
    for _ in range(3):
        warm.append(algo.warm)
        algo.update(algo.collect(env))
    assert warm == [False, False, True]


def test_it_learns_to_do_what_the_teacher_does() -> None:
    env = make_env("cartpole", 8, 0, seed=0, threads=1)
    cfg = replace(TINY, buffer=2000, steps=16, max_updates=100, threshold=1e-4, batch=64, lr=3e-3)
    algo, _ = _algo(cfg, env, "state")
    first = algo.update(algo.collect(env))["Loss/actor"]
    for _ in range(6):
        last = algo.update(algo.collect(env))["Loss/actor"]
    assert last < 0.02 * first


def test_a_teacher_that_can_not_be_is_one_line(tmp_path: Path) -> None:
    cfg = replace(resolve("cartpole", algorithm="dagger"), num_nominal=2, iterations=1, threads=1)
    with pytest.raises(SdpgError, match=r"dagger imitates a teacher: give --algo\.teacher RUN"):
        train(cfg, tmp_path / "run")
    small = {"steps": 2, "buffer": 50, "seed_steps": 1, "max_updates": 2, "min_updates": 1}

    def student(teacher: Path, task: str = "cartpole") -> None:
        changed = replace(cfg, task=task, algo=replace(cfg.algo, teacher=str(teacher), **small))  # type: ignore[arg-type]
        train(replace(changed, task_cfg=resolve(task).task_cfg), tmp_path / "student")

    with pytest.raises(SdpgError, match=r"the teacher '.*nowhere' can't be used: no run folder"):
        student(tmp_path / "nowhere")
    teacher = resolve("cartpole")
    train(replace(teacher, num_nominal=2, num_auxiliary=1, iterations=1, threads=1), tmp_path / "teacher")
    with pytest.raises(SdpgError, match=r"can't be used: this is of task 'cartpole', not 'hopper'"):
        student(tmp_path / "teacher", "hopper")
    seeing = resolve("cartpole", obs="pixels")
    train(replace(seeing, num_nominal=2, num_auxiliary=1, iterations=1, threads=1), tmp_path / "seeing")
    with pytest.raises(
        SdpgError, match="it sees 'pixels', which this run has not: give one that was trained from state"
    ):
        student(tmp_path / "seeing")
    assert not (tmp_path / "student").exists()
    student(tmp_path / "teacher")
    (row,) = log.read(tmp_path / "student")
    assert row["Train/teacher_seconds"] > 0.0 and math.isfinite(row["Loss/actor"])
    # Who looks at the student needs no teacher.
    (tmp_path / "teacher").rename(tmp_path / "elsewhere")
    assert evaluate(tmp_path / "student", episodes=2, threads=1)["algorithm"] == "dagger"


def test_memory_counts_the_buffer() -> None:
    """100,000 stacks of three frames of 84 x 84 colours are 6.35 GB."""
    need = DaggerCfg().memory(Shapes(32, 1, 4, 1, (ImageShape(9, 84, 84, False),)))
    assert 6.3e9 < need.fixed["buffer"] < 6.4e9 and "buffer" in need.fix


def test_options_that_contradict_each_other() -> None:
    for change in ({"seed_steps": 21}, {"min_updates": 7}, {"teacher": None}):
        assert not all(replace(TINY, **change).rules().values())  # type: ignore[arg-type]
    assert all(TINY.rules().values())
