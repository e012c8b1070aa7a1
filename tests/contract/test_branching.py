"""A world is its state: the promises of `BranchedEnv` that make branches comparable, for every task on every engine."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from helpers.arms import need_scene

from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.tasks.base import BUILT_IN

N, M, STEPS = 13, 2, 64  # 39 worlds: a row lies across the end of the last full vector of 32, where rounding may change


@pytest.fixture(params=[*BUILT_IN, "helpers.tasks:Block"])  # Block: parameters per row, draws within an episode
def name(request) -> str:
    need_scene(request.param)
    return request.param


@pytest.fixture(params=["cpu", "warp"])
def engine(request) -> str:
    return request.param


@pytest.fixture
def make(name, engine) -> Callable[..., BranchedEnv]:
    return lambda *args, **options: make_env(name, *args, sim=engine, **options)


@pytest.fixture
def steps(engine) -> int:
    return STEPS if engine == "cpu" else STEPS // 4


def actions(env: BranchedEnv, seed: int) -> torch.Tensor:
    """(N, K, A) in [-1, 1]"""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*env.grid, env.task.action_size, generator=generator) * 2 - 1


def scatter(env: BranchedEnv, steps: int = 16) -> None:
    """Different actions everywhere: the branches of a row drift apart."""
    for t in range(steps):
        env.restart(env.step(actions(env, 500 + t)))


def everything(env: BranchedEnv) -> dict[str, torch.Tensor]:
    x = env.physics()
    return {"qpos": x.qpos.clone(), "qvel": x.qvel.clone()} | {k: v.clone() for k, v in env.memory.items()}


def test_equal_actions_after_a_branch_are_bit_identical_along_the_row(make, steps):
    env = make(N, M, seed=1)
    scatter(env)
    env.branch()
    for t in range(steps):
        step = env.step(actions(env, t)[:, :1].expand(-1, 1 + M, -1))
        for field in ("reward", "terminated", "truncated", "state"):
            value = getattr(step, field)
            assert torch.equal(value, value[:, :1].expand_as(value)), (field, t)
        for key, value in everything(env).items():
            assert torch.equal(value, value[:, :1].expand_as(value)), (key, t)
        env.restart(step)


def test_different_actions_do_lead_apart(make):
    env = make(N, M, seed=1)
    state = env.step(actions(env, 0)).state
    assert (state[:, 1:] != state[:, :1]).any(-1).all()


def test_auxiliaries_never_change_the_nominal_column(make, steps):
    """Nor do their failures, their restarts or their number."""
    envs = [make(N, m, seed=1) for m in (M, M, 0)]
    for t in range(steps):
        nominal = actions(envs[2], t)  # (N, 1, A)
        steps = []
        for i, env in enumerate(envs):
            action = actions(env, 1000 * (i + 1) + t)
            action[:, :1] = nominal
            steps.append(env.step(action))
        for step in steps[1:]:
            assert torch.equal(step.state[:, 0], steps[0].state[:, 0])
            assert torch.equal(step.reward[:, 0], steps[0].reward[:, 0])
            assert torch.equal(step.terminated[:, 0], steps[0].terminated[:, 0])
        for env, step in zip(envs, steps, strict=True):
            env.restart(step)
    assert torch.equal(envs[0].clock, envs[1].clock) and torch.equal(envs[0].clock, envs[2].clock)


def test_restart_rules(make):
    """A finished nominal starts its whole row anew; a finished auxiliary becomes its nominal; the rest stay."""
    env = make(N, M, seed=1)
    env.restart(env.step(actions(env, 0)))
    step = env.step(actions(env, 1))
    terminated, truncated = torch.zeros(N, 1 + M, dtype=torch.bool), torch.zeros(N, 1 + M, dtype=torch.bool)
    terminated[0, 0] = terminated[1, 2] = terminated[2, 0] = terminated[2, 1] = True
    truncated[3] = True
    before = everything(env)
    done = env.restart(replace(step, terminated=terminated, truncated=truncated))
    after = everything(env)
    assert env.clock.tolist() == [0, 2, 0, 0] + [2] * (N - 4)
    want = torch.zeros_like(done)
    want[[0, 2, 3]] = want[1, 2] = True  # whole rows, and the one auxiliary
    assert torch.equal(done, want)
    for key, value in after.items():
        assert torch.equal(value[[0, 2, 3]], value[[0, 2, 3], :1].expand_as(value[[0, 2, 3]])), key
        assert torch.equal(value[1, 2], before[key][1, 0]), key
        assert torch.equal(value[~want], before[key][~want]), key
    assert not torch.equal(after["qpos"][[0, 2, 3]], before["qpos"][[0, 2, 3]])
    assert not after["qvel"][[0, 2, 3]].any()  # every task starts at rest


def test_a_restarted_row_goes_on_bit_identically(make, steps):
    """The solver's warm start, of which no field tells, is fresh along the whole row too."""
    env = make(N, M, seed=1)
    scatter(env)
    step = env.step(actions(env, 0))
    ended = torch.zeros_like(step.terminated)
    ended[:, 0] = True
    env.restart(replace(step, terminated=ended))
    for t in range(steps // 2):
        step = env.step(actions(env, t)[:, :1].expand(-1, 1 + M, -1))
        assert torch.equal(step.state, step.state[:, :1].expand_as(step.state)), t
        env.restart(step)


def test_the_same_seed_gives_the_same_rollout_at_any_thread_count(name):
    envs = [make_env(name, N, M, seed=3, threads=threads) for threads in (1, 2)]
    for t in range(STEPS // 2):
        a, b = (env.step(actions(env, t)) for env in envs)
        assert torch.equal(a.state, b.state) and torch.equal(a.reward, b.reward)
        for env, step in zip(envs, (a, b), strict=True):
            env.restart(step)
    other = make_env(name, N, M, seed=4)
    assert not torch.equal(other.observe().state, make_env(name, N, M, seed=3).observe().state)


def test_time_limit_truncates_without_terminating(name):
    env = make_env(name, 2, 1, seed=0)
    env.task.episode_steps = 3  # on the instance
    seen = []
    for _ in range(3):
        step = env.step(torch.zeros(2, 2, env.task.action_size))
        seen.append(step.truncated.all().item())
        assert not step.terminated.any()
        env.restart(step)
    assert seen == [False, False, True] and env.clock.tolist() == [0, 0]
