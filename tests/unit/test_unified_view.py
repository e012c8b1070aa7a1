"""Policy gradients as guided search: trajectory-search steps by cloning steps, and the settings that have names."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.registry import ALGORITHMS
from sdpg.algos.sdpg import Sdpg, SdpgCfg, advantage, ascent_direction
from sdpg.bench import view
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.sim.toy import ToyTask, toy_returns
from sdpg.types import Rollout

SMALL = {"horizon": 6, "actor_widths": (16,), "critic_widths": (16,), "critic_batch": 64, "warmup": 1}


def _toy(cfg: SdpgCfg, n: int = 4, m: int = 32, **task: object) -> tuple[Sdpg, BranchedEnv, ToyTask]:
    toy = ToyTask(gain=3.0, **task)  # type: ignore[arg-type]
    env = BranchedEnv(toy, toy.sim(n * (1 + m)), n, seed=1)
    return Sdpg(cfg, Context(env, seed=2)), env, toy


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_search_finds_better_actions_and_leaves_the_environment_where_it_was() -> None:
    """Every step of search climbs further; observations, rewards and what follows are those of the first rollout."""
    cfg = SdpgCfg(**SMALL, initial_std=0.2, mean_bound=None)  # type: ignore[arg-type]
    gained: list[float] = []
    plain: tuple[Rollout, dict[str, Tensor]] | None = None
    for steps in (1, 2, 6):
        algo, env, toy = _toy(replace(cfg, search_steps=steps))
        start = env.physics().qpos[:, 0].clone()
        rollout = algo.collect(env)
        if plain is None:
            plain = rollout, env.state_dict()
            assert rollout.searched is None
        else:
            assert torch.equal(rollout.reward, plain[0].reward) and torch.equal(rollout.state, plain[0].state)
            assert _same(env.state_dict(), plain[1])
        direction, _ = ascent_direction(
            advantage(algo._returns(rollout)[0], None, True), rollout.noise, rollout.log_std.exp(), "sigma"
        )
        climbed = rollout.mean + direction if rollout.searched is None else rollout.searched
        gained.append((toy_returns(toy, start, climbed, 0.99) - toy_returns(toy, start, rollout.mean, 0.99))[0].mean())
        assert env.take_counts().world_steps == steps * rollout.reward.numel()  # all physics is counted
    assert 0.0 < gained[0] < gained[1] < gained[2]


def test_search_renders_nothing_and_leaves_frames_and_episodes_alone() -> None:
    """From pixels, on worlds whose episodes end within the segment: with search or without, the same is seen."""
    left = []
    for steps in (1, 3):
        env = make_env("cartpole", 2, 4, seed=0, threads=1, obs="pixels")
        env._clock[:] = 297  # the time is up after three steps
        cfg = SdpgCfg(**SMALL, search_steps=steps, actor_lr=1e-9, encoder="small", precision="float32")  # type: ignore[arg-type]
        algo = Sdpg(cfg, Context(env, ("pixels",)))
        env.take_counts()
        for _ in range(2):
            rollout = algo.collect(env)
        counts = env.take_counts()
        left.append((rollout.sources["pixels"].clone(), env.state_dict(), counts.images, env.episodes.count))
    (seen, state, images, episodes), (seen_too, state_too, images_too, episodes_too) = left
    assert torch.equal(seen, seen_too) and _same(state, state_too)
    assert images == images_too > 0 and episodes == episodes_too >= 2


def test_search_stops_where_the_episode_does() -> None:
    """Once a nominal was restarted, actions belong to other states: they keep what the first step of search gave."""
    cfg = SdpgCfg(**SMALL, search_steps=3, mean_bound=None)  # type: ignore[arg-type]
    algo, env, _ = _toy(cfg, episode_steps=3)
    rollout = algo.collect(env)
    first, _ = ascent_direction(
        advantage(algo._returns(rollout)[0], None, True), rollout.noise, rollout.log_std.exp(), "sigma"
    )
    assert rollout.searched is not None
    further = (rollout.searched - rollout.mean - first).abs().amax((1, 2))  # (T,)
    assert (further[:3] > 1e-3).all() and (further[3:] < 1e-5).all()


def test_the_policy_is_cloned_from_what_search_found() -> None:
    """With many steps of regression the policy comes near the searched actions, as guided policy search has it."""
    cfg = SdpgCfg(**SMALL, search_steps=3, regression_steps=200, actor_schedule="constant", exploration="fixed")  # type: ignore[arg-type]
    algo, env, _ = _toy(cfg, n=2)
    rollout = algo.collect(env)
    assert rollout.searched is not None
    target, _ = algo._bounded(rollout.searched, rollout.log_std)
    algo.normalizers["state"].update = lambda *args: None  # type: ignore[method-assign]  # it would move afterwards
    algo.update(rollout)
    mean, _ = algo.actor({name: source.flatten(0, 1) for name, source in rollout.sources.items()})
    before, after = ((x - target).square().mean() for x in (rollout.mean, mean.view_as(target)))
    assert after < 0.2 * before


def _step_of(algo: Sdpg, rollout: Rollout, directions: tuple[Tensor, ...]) -> list[Tensor]:
    """What the policy's parameters are told by directions of its outputs."""
    mean, log_std = algo.actor({name: source.flatten(0, 1) for name, source in rollout.sources.items()})
    pushed = sum((out * d.flatten(0, 1)).sum() for out, d in zip((mean, log_std), directions, strict=True))
    return list(torch.autograd.grad(pushed, list(algo.actor.parameters())))


@pytest.mark.parametrize("name", ["REINFORCE", "A2C-like"])
def test_one_branch_over_delta_is_a_likelihood_ratio_gradient(name: str) -> None:
    """sum_t W_t grad log pi(u_t | o_t). REINFORCE: W is the return less the nominal's; A2C: the advantage J_t - V(s_t),
    less the nominal's, whose expectation with an independent action is 0."""
    setting = view.SETTINGS[name]
    assert setting.num_auxiliary == 1
    cfg = replace(setting.options(), **SMALL, mean_bound=None, log_std_bounds=None)  # type: ignore[arg-type]
    algo, env, _ = _toy(cfg, n=5, m=1)
    rollout = algo.collect(env)
    returns, _ = algo._returns(rollout)
    mine = _step_of(
        algo, rollout,
        ascent_direction(advantage(returns, None, False), rollout.noise, rollout.log_std.exp(), cfg.denominator),
    )  # fmt: skip
    if name == "A2C-like":
        ahead = torch.where(rollout.terminated, 0.0, algo._target_value(rollout.next_state))
        to_go = torch.zeros_like(ahead)
        following = ahead[-1]
        for t in reversed(range(len(to_go))):  # n-step returns to the end of the segment, as A2C has them
            following = rollout.reward[t] + cfg.gamma * torch.where(rollout.done[t], ahead[t], following)
            to_go[t] = following
        weight = to_go - algo._target_value(rollout.state)
    else:
        discounts = cfg.gamma ** torch.arange(len(rollout.reward)).view(-1, 1, 1)
        end = cfg.gamma ** len(rollout.reward) * algo._target_value(rollout.next_state)[-1]
        weight = ((discounts * rollout.reward).sum(0) + end).expand_as(rollout.reward)  # no causality
    mean, log_std = algo.actor({name: source.flatten(0, 1) for name, source in rollout.sources.items()})
    taken = rollout.mean + rollout.log_std.exp() * rollout.noise[:, :, 1]  # (T, N, A) of the branch
    log_pi = torch.distributions.Normal(mean, log_std.exp()).log_prob(taken.flatten(0, 1)).sum(-1)
    objective = ((weight[..., 1] - weight[..., 0]).flatten() * log_pi).sum()
    for ours, theirs in zip(mine, torch.autograd.grad(objective, list(algo.actor.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("name", view.SETTINGS)
def test_every_setting_runs(name: str) -> None:
    setting = view.SETTINGS[name]
    cfg = replace(setting.options(), **SMALL)  # type: ignore[arg-type]
    assert all(cfg.rules().values())
    m = min(setting.num_auxiliary, 4)
    env = make_env("cartpole", 3, m, seed=0, threads=1)
    algo = Sdpg(cfg, Context(env))
    for _ in range(2):
        metrics = algo.update(algo.collect(env))
    assert math.isfinite(metrics["Loss/actor"]) and metrics["Loss/actor_skipped"] == 0.0


def test_the_diagram_has_every_algorithm_that_can_be_seen_so(tmp_path: Path) -> None:
    result = view.run(view.Options(figure=tmp_path / "view.png"))
    found = {row["name"]: (row["search_steps"], row["cloning_steps"]) for row in result["rows"]}
    assert (
        found["sdpg"]
        == found["shac"]
        == found["sapo"]
        == found["dva"]
        == found["REINFORCE"]
        == found["A2C-like"]
        == (1, 1)
    )
    assert found["guided policy search"][0] > 1 and found["guided policy search"][1] > 1
    assert found["a2c"] == (1, 1) and found["ppo"] == (1, 20)
    assert set(result["others"]) == {"drqv2", "dagger", "dreamer"}  # of Q, of a teacher, in a model: none is searched
    assert found.keys() == (ALGORITHMS.built_in.keys() - set(result["others"])) | view.SETTINGS.keys()
    assert (tmp_path / "view.png").stat().st_size > 5000
