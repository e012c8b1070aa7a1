"""Every option of SdpgCfg changes what it should, and nothing else."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tasks import Fragile
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.base import cosine_lr
from sdpg.algos.returns import lambda_returns, segment_returns
from sdpg.algos.sdpg import Sdpg, SdpgCfg, advantage, ascent_direction, exploration_noise, squash
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.sim.toy import ToyTask
from sdpg.types import Metrics, Physics, Rollout

SMALL = SdpgCfg(horizon=4, actor_widths=(16,), critic_widths=(16,), actor_schedule="constant", critic_batch=64)


def _make(n: int = 3, m: int = 4, task: ToyTask | None = None, **options: Any) -> tuple[Sdpg, BranchedEnv]:
    task = task or ToyTask(gain=2.0)
    env = BranchedEnv(task, task.sim(n * (1 + m)), n, seed=0)
    return Sdpg(replace(SMALL, **options), Context(env, seed=0)), env


def _iterate(algo: Sdpg, env: BranchedEnv, count: int = 1) -> Metrics:
    metrics: Metrics = {}
    for _ in range(count):
        metrics = algo.update(algo.collect(env))
    return metrics


def _parameters(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


# --- noise ------------------------------------------------------------------------------------------------------------


def test_noise_depends_on_seed_iteration_and_row_only() -> None:
    rows = torch.arange(6)
    noise = exploration_noise(3, 7, rows, (4, 5, 2))
    assert noise.shape == (4, 6, 6, 2)
    assert torch.equal(noise[:, 2:5], exploration_noise(3, 7, rows[2:5], (4, 5, 2)))
    assert not torch.equal(noise, exploration_noise(3, 8, rows, (4, 5, 2)))
    assert not torch.equal(noise, exploration_noise(4, 7, rows, (4, 5, 2)))
    assert not torch.equal(noise[:, 0], noise[:, 1])


def test_the_nominal_has_no_noise() -> None:
    assert (exploration_noise(0, 0, torch.arange(3), (2, 4, 2))[:, :, 0] == 0).all()


@pytest.mark.parametrize("m", [4, 5])
def test_antithetic_noise_comes_in_pairs(m: int) -> None:
    noise = exploration_noise(0, 0, torch.arange(3), (2, m, 2), True)[:, :, 1:]
    half = (m + 1) // 2
    assert noise.shape[2] == m
    assert torch.equal(noise[:, :, half:], -noise[:, :, : m - half])
    plain = exploration_noise(0, 0, torch.arange(3), (2, m, 2))[:, :, 1:]
    assert not torch.equal(plain[:, :, half:], -plain[:, :, : m - half])


# --- actions ----------------------------------------------------------------------------------------------------------


def test_squash_clips_then_tanh() -> None:
    x = torch.tensor([-9.0, 0.5, 9.0])
    torch.testing.assert_close(squash(x, 2.0), torch.tensor([-2.0, 0.5, 2.0]).tanh())
    torch.testing.assert_close(squash(x, None), x.tanh())


@pytest.mark.parametrize("bound", [None, 0.3])
def test_training_and_evaluation_act_alike(bound: float | None) -> None:
    """The nominal's action in collect() is act()'s: what is evaluated is what was trained."""
    algo, env = _make(mean_bound=bound, horizon=1)
    seen: list[Tensor] = []
    step = env.step
    env.step = lambda action: (seen.append(action), step(action))[1]  # type: ignore[method-assign]
    expected = algo.policy()(env.observe().sources, {})[0]
    rollout = algo.collect(env)
    torch.testing.assert_close(seen[0][:, 0], expected)
    assert expected.abs().max() <= (1.0 if bound is None else math.tanh(bound) + 1e-6)
    assert (seen[0].abs() <= (1.0 if bound is None else math.tanh(bound) + 1e-6)).all()
    torch.testing.assert_close(rollout.mean[0], torch.atanh(expected), rtol=1e-3, atol=1e-4)


def test_actions_of_branches_are_the_mean_plus_std_times_noise() -> None:
    algo, env = _make(horizon=1, initial_std=0.2, mean_bound=None)
    seen: list[Tensor] = []
    step = env.step
    env.step = lambda action: (seen.append(action), step(action))[1]  # type: ignore[method-assign]
    rollout = algo.collect(env)
    expected = torch.tanh(rollout.mean[0][:, None] + 0.2 * rollout.noise[0])
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("exploration", ["shared", "state", "fixed"])
def test_exploration(exploration: str) -> None:
    algo, env = _make(exploration=exploration, initial_std=0.4, entropy=True, temperature=1.0)
    rollout = algo.collect(env)
    torch.testing.assert_close(rollout.log_std.exp(), torch.full_like(rollout.log_std, 0.4), rtol=0.1, atol=0)
    assert (rollout.log_std.flatten(0, 1).std(0).max().item() > 1e-5) == (exploration == "state")
    _iterate(algo, env, 3)
    after = algo.collect(env).log_std
    changed = not torch.allclose(after, rollout.log_std[:1], atol=1e-6)
    assert changed == (exploration != "fixed")


def test_the_log_std_keeps_its_bounds() -> None:
    algo, env = _make(log_std_bounds=(-1.0, -0.5), initial_std=1.0)
    assert algo.collect(env).log_std.max() <= -0.5
    algo, env = _make(log_std_bounds=None, initial_std=20.0)
    torch.testing.assert_close(algo.collect(env).log_std.max().item(), math.log(20.0))


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_mean_beyond_its_bound_is_drawn_back(side: float) -> None:
    algo, env = _make(mean_bound=2.0, max_grad_norm=math.inf)
    with torch.no_grad():
        algo.actor.mean.weight.zero_()
        algo.actor.mean.bias.fill_(5.0 * side)
    rollout = algo.collect(env)
    assert (rollout.mean == 2.0 * side).all()
    rollout = replace(rollout, noise=torch.zeros_like(rollout.noise))  # no ascent: only the bound has a say
    algo.actor_optimizer = torch.optim.SGD(algo.actor.parameters(), lr=0.1)
    algo.update(rollout)
    assert algo.actor.mean.bias.item() * side < 5.0


def test_a_log_std_beyond_its_bound_is_drawn_back() -> None:
    algo, env = _make(log_std_bounds=(-1.0, 0.0), initial_std=math.e)
    rollout = algo.collect(env)
    algo.update(replace(rollout, noise=torch.zeros_like(rollout.noise)))
    assert algo.actor.log_std.item() < 1.0  # noise 0: (eps^2 - 1) w = -w, but the bound is what counts


# --- returns and the estimator ----------------------------------------------------------------------------------------


def _rollout(algo: Sdpg, env: BranchedEnv) -> tuple[Rollout, Tensor]:
    rollout = algo.collect(env)
    value = torch.where(rollout.terminated, 0.0, algo._target_value(rollout.next_state))
    return rollout, value


def test_causality_and_trace_choose_the_actors_return() -> None:
    for options, expected in (
        ({}, lambda r, v: lambda_returns(r.reward, v, r.done, 0.99, 0.95)),
        ({"eligibility_trace": False}, lambda r, v: lambda_returns(r.reward, v, r.done, 0.99, 1.0)),
        ({"causal": False}, lambda r, v: segment_returns(r.reward, v, r.done, 0.99)),
    ):
        algo, env = _make(**options)
        rollout, value = _rollout(algo, env)
        actor, critic = algo._returns(rollout)
        torch.testing.assert_close(actor, expected(rollout, value))
        torch.testing.assert_close(critic, lambda_returns(rollout.reward, value, rollout.done, 0.99, 0.95))


def test_gamma_lambda_and_reward_scale() -> None:
    algo, env = _make(gamma=0.7, lam=0.2, reward_scale=3.0)
    rollout, value = _rollout(algo, env)
    torch.testing.assert_close(algo._returns(rollout)[1], lambda_returns(rollout.reward, value, rollout.done, 0.7, 0.2))
    plain_algo, plain_env = _make(gamma=0.7, lam=0.2)
    torch.testing.assert_close(rollout.reward, 3.0 * plain_algo.collect(plain_env).reward)


def test_the_segment_end_is_done_and_bootstraps() -> None:
    algo, env = _make()
    rollout = algo.collect(env)
    assert rollout.done[-1].all() and not rollout.done[:-1].any() and not rollout.terminated.any()
    assert env.clock.tolist() == [4, 4, 4]  # the next segment goes on
    again = algo.collect(env)
    assert torch.equal(again.state[0, :, 0], rollout.next_state[-1, :, 0])
    assert torch.equal(again.state[0, :, 0], again.state[0, :, -1])  # branched


def test_terminated_steps_have_no_value_beyond() -> None:
    algo, env = _make(task=ToyTask(limit=0.0))  # every state is terminal
    rollout, _ = _rollout(algo, env)
    assert rollout.terminated.all()
    torch.testing.assert_close(algo._returns(rollout)[1], rollout.reward)


def test_advantage_is_relative_to_the_nominal_and_scaled_per_row_and_time() -> None:
    returns = torch.tensor([[[1.0, 2.0, 4.0]]])  # differences 0, 1, 3: mean 4/3, variance (16 + 1 + 25) / 9 / 2 = 7/3
    torch.testing.assert_close(advantage(returns, None, False), torch.tensor([[[0.0, 1.0, 3.0]]]))
    torch.testing.assert_close(advantage(returns, None, True), torch.tensor([[[0.0, 1.0, 3.0]]]) / math.sqrt(7 / 3))
    assert (advantage(torch.ones(2, 2, 3), None, True) == 0).all()  # no differences: no direction, no division by 0


@pytest.mark.parametrize("denominator", ["sigma", "delta", "none"])
def test_ascent_direction_by_hand(denominator: str) -> None:
    # M = 2, A = 1, std 0.5: mean (2 * 1 + 4 * -3) / 2 = -5;  log-std (2 * (1 - 1) + 4 * (9 - 1)) / 2 * 0.5 = 8
    weight, noise = torch.tensor([[[0.0, 2.0, 4.0]]]), torch.tensor([0.0, 1.0, -3.0]).view(1, 1, 3, 1)
    mean, log_std = ascent_direction(weight, noise, torch.full((1, 1, 1), 0.5), denominator)
    factor = 2.0 if denominator == "delta" else 1.0
    assert (mean.item(), log_std.item()) == (-5.0 * factor, 8.0 * factor)


@pytest.mark.parametrize("normalize", [False, True])
def test_failed_auxiliaries_are_left_out_of_the_estimator(normalize: bool) -> None:
    """Equal to the estimate from the remaining auxiliaries alone, whatever stands in for the failed returns."""
    torch.manual_seed(0)
    returns, noise, std = torch.randn(2, 3, 7), torch.randn(2, 3, 7, 2), torch.rand(2, 3, 2)
    noise[:, :, 0] = 0
    good = torch.ones(2, 3, 7, dtype=torch.bool)
    good[:, :, 3] = good[:, :, 5] = False
    spoiled = torch.where(good, returns, 1e6)
    ours = ascent_direction(advantage(spoiled, good, normalize), noise, std, "sigma")
    rest = [0, 1, 2, 4, 6]
    expected = ascent_direction(advantage(returns[..., rest], None, normalize), noise[:, :, rest], std, "sigma")
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_row_whose_nominal_failed_has_no_say() -> None:
    good = torch.ones(1, 2, 4, dtype=torch.bool)
    good[0, 0, 0] = False
    weight = advantage(torch.randn(1, 2, 4), good, True)
    assert (weight[0, 0] == 0).all() and (weight[0, 1, 1:] != 0).all()


def test_failed_worlds_do_not_count_as_reward_zero() -> None:
    """On the toy every reward is negative: a failure taken for a reward of 0 would be the best that can happen."""
    algo, env = _make(m=32, task=Fragile(), initial_std=1.0)
    with torch.no_grad():
        algo.actor.mean.weight.zero_()  # the nominal's control is 0: it never fails
    rollout = algo.collect(env)
    assert rollout.failed[..., 1:].any() and not rollout.failed[..., 0].any()
    assert (rollout.reward[rollout.failed] == 0).all() and rollout.terminated[rollout.failed].all()
    before = _parameters(algo.actor)
    metrics = algo.update(rollout)
    # Whatever number a failed step carries, the update is the same.
    twin, twin_env = _make(m=32, task=Fragile(), initial_std=1.0)
    with torch.no_grad():
        twin.actor.mean.weight.zero_()
    other = twin.collect(twin_env)
    assert torch.equal(other.failed, rollout.failed)
    other_metrics = twin.update(replace(other, reward=torch.where(other.failed, 1e3, other.reward)))
    assert torch.equal(_parameters(algo.actor), _parameters(twin.actor))
    assert torch.equal(_parameters(algo.critic), _parameters(twin.critic))
    assert metrics == other_metrics and not torch.equal(before, _parameters(algo.actor))


# --- entropy ----------------------------------------------------------------------------------------------------------


def test_entropy_regularisation_pushes_the_log_std_up() -> None:
    """Without ascent (all noise 1: eps^2 - 1 = 0) the only force on the log-std is the temperature's."""
    moves = {}
    for entropy in (False, True):
        algo, env = _make(entropy=entropy, temperature=0.5)
        rollout = algo.collect(env)
        rollout = replace(rollout, noise=torch.ones_like(rollout.noise))
        before = algo.actor.log_std.item()
        algo.update(rollout)
        moves[entropy] = algo.actor.log_std.item() - before
    assert moves[False] == pytest.approx(0.0, abs=1e-6)
    assert moves[True] > 1e-4


@pytest.mark.parametrize(("target_std", "sign"), [(0.15, -1), (5.0, 1)])
@pytest.mark.parametrize("use", ["entropy", "soft_critic"])
def test_auto_temperature(use: str, target_std: float, sign: int) -> None:
    """L = exp(log alpha) * mean(std - target): a std above the target lowers the temperature, one below raises it."""
    algo, env = _make(**{use: True}, auto_temperature=True, target_std=target_std, initial_std=1.0)
    before = algo.log_temperature.item()
    metrics = _iterate(algo, env)
    assert sign * (algo.log_temperature.item() - before) > 0
    assert abs(algo.log_temperature.item() - before) == pytest.approx(1e-3, rel=1e-3)  # Adam's first step is its lr
    assert metrics["Policy/temperature"] == pytest.approx(math.exp(algo.log_temperature.item()))


def test_the_temperature_stays_when_not_tuned() -> None:
    for options in ({"entropy": True}, {"auto_temperature": True}):
        algo, env = _make(**options)
        before = algo.log_temperature.item()
        _iterate(algo, env)
        assert algo.log_temperature.item() == before


def test_the_soft_critics_bonus_is_zero_at_the_target_std() -> None:
    """alpha * mean(log std - log target): the logarithm of the target, not the target."""
    algo, env = _make(initial_std=0.15, target_std=0.15, temperature=2.0)
    soft, soft_env = _make(initial_std=0.15, target_std=0.15, temperature=2.0, soft_critic=True)
    torch.testing.assert_close(algo._returns(algo.collect(env))[1], soft._returns(soft.collect(soft_env))[1])
    soft.cfg = replace(soft.cfg, target_std=0.15 / math.e, lam=0.0)  # now log std - log target = 1
    algo.cfg = replace(algo.cfg, lam=0.0)
    bonus = soft._returns(soft.collect(soft_env))[1] - algo._returns(algo.collect(env))[1]
    torch.testing.assert_close(bonus, torch.full_like(bonus, 2.0), rtol=1e-4, atol=1e-4)


# --- optimisation -----------------------------------------------------------------------------------------------------


def test_cosine_schedule() -> None:
    lr = [cosine_lr(i, 1000, 2e-3, 1e-5, 100) for i in range(1001)]
    assert lr[0] == pytest.approx(2e-5)  # lr / 100, not 0
    assert lr[99] == lr[100] == pytest.approx(2e-3)
    assert lr[550] == pytest.approx((2e-3 + 1e-5) / 2)
    assert lr[1000] == pytest.approx(1e-5) and cosine_lr(5000, 1000, 2e-3, 1e-5, 100) == pytest.approx(1e-5)
    assert cosine_lr(0, 4, 1.0, 0.0, 100) == 0.5  # a short run warms up over half of it
    assert cosine_lr(0, 10, 1.0, 0.0, 0) == 1.0


def test_learning_rates_over_a_run() -> None:
    algo, env = _make(actor_schedule="cosine", warmup=2, schedule_iterations=6)
    seen = [_iterate(algo, env) for _ in range(7)]
    assert [m["Loss/actor_lr"] for m in seen] == pytest.approx([cosine_lr(i, 6, 2e-3, 1e-5, 2) for i in range(7)])
    # linear to a tenth: 1 - 0.9 i / 6
    assert [m["Loss/critic_lr"] for m in seen] == pytest.approx([2e-4 * (1 - 0.15 * i) for i in range(7)])
    algo, env = _make(critic_schedule="constant", schedule_iterations=3)
    assert _iterate(algo, env, 3)["Loss/critic_lr"] == 2e-4
    algo, env = _make(schedule_iterations=2)
    assert _iterate(algo, env, 3)["Loss/critic_lr"] == pytest.approx(2e-5)


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_the_target_critic_keeps_its_share(decay: float) -> None:
    algo, env = _make(target_decay=decay)
    old = _parameters(algo.target_critic)
    _iterate(algo, env)
    torch.testing.assert_close(_parameters(algo.target_critic), decay * old + (1 - decay) * _parameters(algo.critic))


def test_gradient_clipping() -> None:
    moved = {}
    for limit in (math.inf, 1e-3):
        algo, env = _make(max_grad_norm=limit)
        algo.actor_optimizer = torch.optim.SGD(algo.actor.parameters(), lr=1.0)
        before = _parameters(algo.actor)
        metrics = algo.update(algo.collect(env))
        moved[limit] = (_parameters(algo.actor) - before).norm().item() / metrics["Loss/actor_lr"]
        norm = metrics["Loss/actor_grad_norm"]  # before clipping
    assert norm > 1e-3
    assert moved[1e-3] == pytest.approx(1e-3, rel=1e-2) and moved[math.inf] == pytest.approx(norm, rel=1e-2)


def test_a_gradient_that_is_not_finite_skips_the_step() -> None:
    algo, env = _make()
    rollout = algo.collect(env)
    actor, critic = _parameters(algo.actor), _parameters(algo.critic)
    rollout.reward[0, 0, 1] = torch.nan  # not marked as failed
    metrics = algo.update(rollout)
    assert torch.equal(_parameters(algo.actor), actor) and metrics["Loss/actor_skipped"] == 1.0
    assert metrics["Loss/critic_skipped"] >= 1.0 and torch.isfinite(_parameters(algo.critic)).all()
    assert algo.iteration == 1 and critic.shape == _parameters(algo.critic).shape
    metrics = _iterate(algo, env)
    assert metrics["Loss/actor_skipped"] == 0.0 and not torch.equal(_parameters(algo.actor), actor)


def test_regression_steps_and_fraction() -> None:
    calls: list[int] = []

    def count(algo: Sdpg) -> list[int]:
        policy, calls[:] = algo.actor.forward, []
        algo.actor.forward = lambda s: (calls.append(len(s["state"])), policy(s))[1]  # type: ignore[method-assign]
        return calls

    algo, env = _make()
    rollout = algo.collect(env)
    count(algo)
    algo.update(rollout)
    assert calls == [12]  # T N = 4 * 3, once
    algo, env = _make(regression_steps=3, regression_fraction=0.5)
    rollout = algo.collect(env)
    count(algo)
    algo.update(rollout)
    assert calls == [6, 6, 6]


@pytest.mark.parametrize(("passes", "batch", "steps"), [(1, 60, 1), (2, 60, 2), (3, 25, 9)])
def test_critic_passes_and_batch(passes: int, batch: int, steps: int) -> None:
    algo, env = _make(critic_passes=passes, critic_batch=batch)  # T N K = 4 * 3 * 5 = 60 samples
    sizes: list[int] = []
    forward = algo.critic.forward
    algo.critic.forward = lambda x: (sizes.append(len(x)), forward(x))[1]  # type: ignore[method-assign]
    _iterate(algo, env)
    assert len(sizes) == steps and sum(sizes) == 60 * passes


def test_network_options() -> None:
    algo, _ = _make(actor_widths=(7, 5), critic_widths=(9,), output_gain=0.1)
    assert [p.shape[0] for name, p in algo.actor.named_parameters() if name.endswith("0.weight")] == [7]
    assert algo.actor.mean.in_features == 5 and algo.critic.value.in_features == 9
    assert algo.actor.mean.weight.norm().item() == pytest.approx(0.1, rel=1e-4)


# --- normaliser, separation, checkpoints ------------------------------------------------------------------------------


def test_the_normaliser_is_frozen_within_an_iteration_and_counts_every_state_once() -> None:
    algo, env = _make()
    normalizer = algo.normalizers["state"]
    states = []
    for _ in range(3):
        mean = normalizer.mean.clone()
        rollout = algo.collect(env)
        assert torch.equal(normalizer.mean, mean)
        algo.update(rollout)
        states.append(rollout.state.reshape(-1, 2).numpy().astype(np.float64))
    every = np.concatenate(states)
    np.testing.assert_allclose(normalizer.mean.numpy(), every.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(normalizer.var.numpy(), every.var(0), rtol=1e-4)
    assert normalizer.count.item() == pytest.approx(3 * 60, abs=1e-3)


def test_the_policy_sees_nominals_only() -> None:
    algo, env = _make()
    rollout = algo.collect(env)
    assert rollout.sources["state"].shape == (4, 3, 2)
    assert torch.equal(rollout.sources["state"], rollout.state[:, :, 0])


class _Live(ToyTask):
    """Observes the live physics itself, not a copy of it."""

    def observe(self, x: Physics, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"state": x.qpos}


def test_an_observation_that_is_live_physics() -> None:
    """A task may return live fields as its state; the rollout keeps what was seen, not what it became."""
    plain, plain_env = _make(task=ToyTask(episode_steps=3))
    live, live_env = _make(task=_Live(episode_steps=3))
    a, b = plain.collect(plain_env), live.collect(live_env)
    assert torch.equal(a.state, b.state) and torch.equal(a.next_state, b.next_state)


def test_without_auxiliaries_there_is_nothing_to_compare() -> None:
    with pytest.raises(SdpgError, match="num-auxiliary"):
        algo, env = _make(m=0)
        algo.collect(env)


def test_two_runs_are_identical_and_a_resumed_one_too() -> None:
    algo, env = _make(entropy=True, auto_temperature=True, regression_steps=2, regression_fraction=0.5)
    twin, twin_env = _make(entropy=True, auto_temperature=True, regression_steps=2, regression_fraction=0.5)
    _iterate(algo, env, 3)
    _iterate(twin, twin_env, 3)
    assert torch.equal(_parameters(algo.actor), _parameters(twin.actor))
    fresh, fresh_env = _make(entropy=True, auto_temperature=True, regression_steps=2, regression_fraction=0.5)
    fresh.load_state_dict(copy.deepcopy(algo.state_dict()))  # as from a file: nothing shared
    fresh_env.load_state_dict(env.state_dict())
    first, second = _iterate(algo, env, 3), _iterate(fresh, fresh_env, 3)
    assert first == second
    for name in ("actor", "critic", "target_critic"):
        assert torch.equal(_parameters(getattr(algo, name)), _parameters(getattr(fresh, name))), name
    assert torch.equal(algo.log_temperature, fresh.log_temperature)
    assert torch.equal(algo.normalizers["state"].mean, fresh.normalizers["state"].mean)


def test_act_needs_no_auxiliaries() -> None:
    algo, env = _make()
    obs = env.observe()
    policy = algo.policy()
    one, _ = policy({"state": obs.sources["state"][:1]}, {})
    torch.testing.assert_close(one, policy(obs.sources, {})[0][:1])
