"""Options of SDPG beyond the paper: each does what its equation says, and is off by default."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg, SdpgCfg, advantage, divergence, exploration_noise, nominal_noise, stake
from sdpg.env import BranchedEnv
from sdpg.presets import resolve
from sdpg.sim.toy import ToyTask
from sdpg.types import Rollout

SMALL = SdpgCfg(horizon=4, actor_widths=(16,), critic_widths=(16,), actor_schedule="constant", critic_batch=64)


def _make(n: int = 3, m: int = 4, **options: Any) -> tuple[Sdpg, BranchedEnv]:
    task = ToyTask(gain=2.0)
    env = BranchedEnv(task, task.sim(n * (1 + m)), n, seed=0)
    return Sdpg(replace(SMALL, **options), Context(env, seed=0)), env


@pytest.mark.parametrize("task", ["hopper", "walker", "ant", "humanoid"])
@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_the_papers_preset_has_none_of_them(task: str, obs: str) -> None:
    algo, default = resolve(task, "paper", obs).algo, SdpgCfg()
    for name in (
        "antithetic",
        "baseline",
        "nominal_noise",
        "branch_steps",
        "final_std",
        "final_gamma",
        "stakes",
        "kl_target",
        "critic_branches",
        "regression_steps",
        "guide_passes",
    ):
        assert getattr(algo, name) == getattr(default, name)


# --- the branch's own value as baseline -------------------------------------------------------------------------------


def test_the_own_value_is_subtracted_from_the_actors_return_alone() -> None:
    algo, env = _make(baseline="value")
    rollout = algo.collect(env)
    climbed, target = algo._returns(rollout)
    torch.testing.assert_close(climbed, target - algo._target_value(rollout.state))
    assert not torch.equal(climbed - climbed[..., :1], target - target[..., :1])  # it does not cancel


def test_the_own_value_changes_the_noise_of_the_direction_but_not_its_mean() -> None:
    """Over many branches both estimates agree, whatever the critic says; here it is a large random function."""
    estimates = {}
    for baseline in ("nominal", "value"):
        algo, env = _make(n=2, m=20_000, baseline=baseline, antithetic=True, initial_std=0.3)
        rollout = algo.collect(env)
        weight = advantage(algo._returns(rollout)[0], None, normalize=False)
        terms = (weight[..., None] * rollout.noise)[:, :, 1:]  # (T, N, M, A)
        error = terms.std(2) / math.sqrt(terms.shape[2])
        estimates[baseline] = terms.mean(2), error
    (mean, error), (other, other_error) = estimates.values()
    assert ((mean - other).abs() < 4 * (error + other_error)).all()
    assert (error[1:] != other_error[1:]).all()  # at the first step of a segment all branches are in the same state
    torch.testing.assert_close(mean[0], other[0])


# --- what is at stake -------------------------------------------------------------------------------------------------


def test_with_full_stakes_directions_are_as_different_returns_are() -> None:
    """The paper's sigma of every row and time makes all directions alike; stakes of 1 divide by one number for all."""
    rows = torch.tensor([[0.0, 1.0, 3.0], [0.0, 10.0, 30.0]])
    returns = torch.stack((rows, 2.0 * rows + 5.0))  # (T, N, K)
    alike = advantage(returns, None, normalize=True)
    torch.testing.assert_close(alike[:, 0], alike[:, 1], rtol=1e-4, atol=0.0)
    std = advantage(returns, None, normalize=False).std(-1, keepdim=True)
    whole = std.square().mean().sqrt()
    torch.testing.assert_close(
        alike * stake(returns, None, 1.0), advantage(returns, None, normalize=False) / whole, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(stake(returns, None, 0.5), (std / whole).sqrt())


def test_stakes_change_the_direction_and_nothing_else() -> None:
    (plain, env), (other, _) = _make(m=6), _make(m=6, stakes=0.5)
    rollout = plain.collect(env)
    returns, _ = plain._returns(rollout)
    torch.testing.assert_close(
        other.direction(rollout, returns, None)[0],
        plain.direction(rollout, returns, None)[0] * stake(returns, None, 0.5),
    )


def test_where_nothing_is_at_stake_nothing_is_learned() -> None:
    assert (stake(torch.ones(2, 3, 4), None, 0.5) == 0.0).all()


# --- a learning rate by how far the policy moves ----------------------------------------------------------------------


@pytest.mark.parametrize(("target", "pace"), [(1e-9, 2.0 / 3.0), (1e9, 1.0)])
def test_a_policy_that_moves_too_far_is_slowed_down(target: float, pace: float) -> None:
    algo, env = _make(kl_target=target, actor_lr=1e-2)
    rollout = algo.collect(env)
    metrics = algo.update(rollout)
    assert algo.pace.item() == pytest.approx(pace)  # never beyond the schedule
    old = rollout.mean.flatten(0, 1), rollout.log_std.flatten(0, 1)
    seen = {name: source.flatten(0, 1) for name, source in rollout.sources.items()}
    algo.normalizers["state"].load_state_dict(_make()[0].normalizers["state"].state_dict())  # as it was when it acted
    new = algo._bounded(*algo.actor(seen))
    assert metrics["Policy/kl"] == pytest.approx(divergence(*new, *old).mean().item(), rel=1e-4)
    assert algo.update(algo.collect(env))["Loss/actor_lr"] == pytest.approx(1e-2 * pace)


def test_a_slow_policy_is_let_go_faster_again_and_a_checkpoint_knows_its_pace() -> None:
    algo, env = _make(kl_target=1e9)
    algo.pace.fill_(0.5)
    algo.update(algo.collect(env))
    assert algo.pace.item() == pytest.approx(0.75)
    other, _ = _make(kl_target=1e9)
    other.load_state_dict(algo.state_dict())
    assert other.pace.item() == pytest.approx(0.75)


# --- a guide that remembers -------------------------------------------------------------------------------------------


def _guided(**options: Any) -> tuple[Sdpg, Rollout, Tensor, Tensor]:
    """An algorithm, a rollout, where its actions climb, and all of its places."""
    algo, env = _make(guide_passes=1, critic_batch=10_000, output_gain=0.1, **options)
    rollout = algo.collect(env)
    climbed = (rollout.mean + algo.direction(rollout, algo._returns(rollout)[0], None)[0]).flatten(0, 1)
    return algo, rollout, climbed, torch.arange(len(climbed))


def test_the_guide_learns_what_was_climbed_and_what_the_policy_did_not_follow_yet() -> None:
    """One full-batch step of plain gradient descent towards mu + b (g - mu) + d; the policy is regressed onto g."""
    algo, rollout, climbed, every = _guided(guide_memory=0.25, max_grad_norm=math.inf)
    state, mean = algo.normalizers["state"](rollout.state[:, :, 0]).flatten(0, 1), rollout.mean.flatten(0, 1)
    twin = copy.deepcopy(algo.guide)
    target = climbed + 0.25 * (twin(state).detach() - mean)
    (twin(state) - target).square().mean().backward()
    algo.guide_optimizer = torch.optim.SGD(algo.guide.parameters(), lr=1.0)
    said, metrics = algo._update_guide(rollout, climbed, every, 0.1, torch.Generator())
    behind = (twin(state) - mean).square().mean().sqrt().item()
    assert metrics["Policy/behind"] == pytest.approx(behind, rel=1e-5)
    for old, new in zip(twin.parameters(), algo.guide.parameters(), strict=True):
        assert old.grad is not None
        torch.testing.assert_close(old.detach() - 0.1 * old.grad, new.detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(said, algo.guide(state).detach())


@pytest.mark.parametrize(("memory", "ahead"), [(0.0, 1.0), (0.5, 2.0), (0.9, 10.0)])
def test_of_a_policy_that_stands_still_the_guide_is_ahead_by_as_much_as_it_remembers(
    memory: float, ahead: float
) -> None:
    """The same directions again and again add up to d / (1 - b)."""
    algo, rollout, _, every = _guided(guide_memory=memory, critic_widths=(64,), actor_widths=(64,))
    mean = rollout.mean.flatten(0, 1)
    for _ in range(1500):
        said, _ = algo._update_guide(rollout, mean + 0.02, every, 5e-3, torch.Generator())
    torch.testing.assert_close(said - mean, torch.full_like(mean, 0.02 * ahead), atol=0.004, rtol=0.1)


def test_the_policy_is_regressed_onto_what_the_guide_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (guided, env), (plain, _) = _make(guide_passes=1, output_gain=0.1), _make(output_gain=0.1)
    rollout = guided.collect(env)
    said = rollout.mean + torch.linspace(-0.3, 0.3, rollout.mean.numel()).view_as(rollout.mean)
    monkeypatch.setattr(guided, "_update_guide", lambda *asked: (said.flatten(0, 1), {}))
    guided.update(rollout)
    plain.update(replace(rollout, searched=said))
    for mine, theirs in zip(guided.actor.parameters(), plain.actor.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_checkpoint_has_the_guide() -> None:
    (algo, env), (other, _) = _make(guide_passes=1), _make(guide_passes=1)
    algo.update(algo.collect(env))
    other.load_state_dict(copy.deepcopy(algo.state_dict()))
    rollout = algo.collect(env)
    assert algo.update(rollout) == other.update(rollout)
    for mine, theirs in zip(algo.guide.parameters(), other.guide.parameters(), strict=True):
        assert torch.equal(mine, theirs)


# --- what the critic learns from --------------------------------------------------------------------------------------


def _critic_after(rollout: Rollout, algo: Sdpg, target: Tensor) -> Tensor:
    algo = copy.deepcopy(algo)
    generator = torch.Generator().manual_seed(0)
    algo._update_critic(rollout, target, None, generator)
    return torch.cat([p.detach().flatten() for p in algo.critic.parameters()])


def test_a_critic_of_nominals_alone_does_not_hear_of_branches() -> None:
    for weight in (0.0, 0.1):
        algo, env = _make(critic_branches=weight)
        rollout = algo.collect(env)
        _, target = algo._returns(rollout)
        shifted = target.clone()
        shifted[..., 1:] += 5.0
        same = torch.equal(_critic_after(rollout, algo, target), _critic_after(rollout, algo, shifted))
        assert same == (weight == 0.0)


def test_the_weight_of_branches_in_the_critics_gradient() -> None:
    """One full-batch step of plain gradient descent: that of sum_n e_n^2 + w sum_nj e_nj^2, over its weights' sum."""
    algo, env = _make(critic_branches=0.25, critic_passes=1, critic_batch=10_000, max_grad_norm=math.inf)
    rollout = algo.collect(env)
    _, target = algo._returns(rollout)
    algo.critic_optimizer = torch.optim.SGD(algo.critic.parameters(), lr=1.0)
    twin = copy.deepcopy(algo.critic)
    error = (twin(algo.normalizers["state"](rollout.state)) - target).square()  # (T, N, K)
    loss = (error[..., 0].sum() + 0.25 * error[..., 1:].sum()) / (error[..., 0].numel() * (1 + 0.25 * 4))
    loss.backward()
    algo.critic_optimizer.param_groups[0]["lr"] = 1.0
    before = [p.detach().clone() for p in algo.critic.parameters()]
    algo._update_critic(rollout, target, None, torch.Generator())
    for old, new, other in zip(before, algo.critic.parameters(), twin.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(old - algo.cfg.critic_lr * other.grad, new.detach(), atol=1e-6, rtol=1e-4)


# --- how far two policies are apart -----------------------------------------------------------------------------------


def test_divergence_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std, other_mean, other_log_std = torch.randn(4, 5, 3, generator=generator)
    one, other = (torch.distributions.Normal(m, s.exp()) for m, s in ((mean, log_std), (other_mean, other_log_std)))
    expected = torch.distributions.kl_divergence(one, other).sum(-1)
    torch.testing.assert_close(divergence(mean, log_std, other_mean, other_log_std), expected)


# --- noise that a row's worlds have in common -------------------------------------------------------------------------


def _acted(algo: Sdpg, env: BranchedEnv, monkeypatch: pytest.MonkeyPatch) -> tuple[Rollout, Tensor]:
    """A rollout, and what acted before it was squashed: (T, N, K, A)."""
    taken: list[Tensor] = []
    step = env.step
    monkeypatch.setattr(env, "step", lambda action: taken.append(action) or step(action))  # type: ignore[func-returns-value]
    rollout = algo.collect(env)
    return rollout, torch.stack(taken).atanh()


def test_a_rows_worlds_share_the_nominals_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    algo, env = _make(nominal_noise=0.5, initial_std=0.1, output_gain=0.1)
    rollout, acted = _acted(algo, env, monkeypatch)
    std = rollout.log_std.exp()[:, :, None]  # (T, N, 1, A)
    own = nominal_noise(algo.seed, 0, env.rows, (4, env.task.action_size))  # (T, N, 1, A)
    share = torch.tensor([0.0, 0.25, 0.5])[:, None, None]  # of the first row none, of the last one all
    torch.testing.assert_close(acted[:, :, :1], rollout.mean[:, :, None] + share * std * own, atol=1e-5, rtol=1e-4)
    # What tells a branch from its nominal is the noise that the estimator is given, and nothing else.
    torch.testing.assert_close(acted - acted[:, :, :1], std * rollout.noise, atol=1e-5, rtol=1e-4)
    assert (rollout.noise[:, :, 0] == 0).all()


def test_the_shared_noise_is_new_in_every_row_step_and_iteration() -> None:
    rows = torch.arange(3)
    first, second = (nominal_noise(0, iteration, rows, (4, 2)) for iteration in (0, 1))
    assert first.shape == (4, 3, 1, 2) and len(torch.cat((first, second)).unique()) == 48
    torch.testing.assert_close(nominal_noise(0, 0, rows[1:], (4, 2)), first[:, 1:])  # whatever the rank has
    other = exploration_noise(0, 0, rows, (4, 5, 2))
    assert not torch.isin(first, other).any()


# --- branches that stay near ------------------------------------------------------------------------------------------


def test_branches_become_their_nominals_again_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = _acted(*_make(), monkeypatch)
    algo, env = _make(branch_steps=2)
    rollout, _ = _acted(algo, env, monkeypatch)
    apart = (rollout.state - rollout.state[:, :, :1]).abs().amax((1, 3))[:, 1:] > 0  # (T, M)
    assert apart.all(1).tolist() == [False, True, False, True]
    assert not apart[[0, 2]].any()
    assert rollout.done[1, :, 1:].all() and not rollout.done[1, :, 0].any() and rollout.done[3].all()
    # Nominals notice nothing of it, nor does what the critic learns from them.
    assert torch.equal(rollout.state[:, :, 0], whole.state[:, :, 0])
    plain, _ = _make()
    assert torch.equal(algo._returns(rollout)[1][..., 0], plain._returns(whole)[1][..., 0])


def test_near_branches_are_compared_with_their_nominals_over_the_same_steps() -> None:
    algo, env = _make(branch_steps=2, lam=0.7)
    rollout = algo.collect(env)
    climbed, target = algo._returns(rollout)
    value = algo._target_value(rollout.next_state)
    gamma, reward = algo.gamma, rollout.reward
    for t in (1, 3):
        torch.testing.assert_close(climbed[t], reward[t] + gamma * value[t])
        torch.testing.assert_close(climbed[t - 1], reward[t - 1] + gamma * (0.3 * value[t - 1] + 0.7 * climbed[t]))
    torch.testing.assert_close(target[..., 1:], climbed[..., 1:])  # of branches there is nothing beyond
    assert not torch.equal(target[0, :, 0], climbed[0, :, 0])


def test_a_branch_as_long_as_the_segment_is_the_papers() -> None:
    algo, env = _make(branch_steps=4)
    plain, other = _make()
    assert torch.equal(algo._returns(algo.collect(env))[0], plain._returns(plain.collect(other))[0])


# --- noise that falls by a schedule -----------------------------------------------------------------------------------


def test_a_fixed_std_falls_to_its_last_value_by_equal_factors() -> None:
    algo, env = _make(exploration="fixed", initial_std=0.4, final_std=0.1, schedule_iterations=4)
    seen = []
    for _ in range(6):
        rollout = algo.collect(env)
        assert (rollout.log_std == rollout.log_std[0, 0, 0]).all()
        seen.append(rollout.log_std[0, 0, 0].exp().item())
        algo.update(rollout)
    assert seen == pytest.approx([0.4, 0.4 / math.sqrt(2), 0.2, 0.2 / math.sqrt(2), 0.1, 0.1])


def test_the_discount_rises_to_its_last_value() -> None:
    algo, env = _make(gamma=0.99, final_gamma=0.9975, schedule_iterations=2)
    seen = []
    for _ in range(4):
        rollout = algo.collect(env)
        seen.append(algo.gamma)
        returns, _ = algo._returns(rollout)
        plain, _ = _make(gamma=algo.gamma)
        plain.load_state_dict(copy.deepcopy(algo.state_dict()))
        assert torch.equal(plain._returns(rollout)[0], returns)
        algo.update(rollout)
    assert seen == pytest.approx([0.99, 0.995, 0.9975, 0.9975])
    assert _make(gamma=0.97)[0].gamma == 0.97


def test_only_a_fixed_std_falls_by_a_schedule() -> None:
    assert all(replace(SMALL, exploration="fixed", final_std=0.1).rules().values())
    wrong = [rule for rule, kept in replace(SMALL, final_std=0.1).rules().items() if not kept]
    assert wrong == ["algo.final-std is for algo.exploration fixed: a std that is learned goes where it will"]


def test_a_critic_of_nominals_alone_takes_its_steps_on_nominals() -> None:
    """Batches are full: 12 samples of nominals in batches of 4 are three steps a pass."""
    algo, env = _make(critic_branches=0.0, critic_batch=4, critic_passes=2)
    rollout = algo.collect(env)
    algo._update_critic(rollout, algo._returns(rollout)[1], None, torch.Generator().manual_seed(0))
    steps = {int(state["step"]) for state in algo.critic_optimizer.state.values()}
    assert steps == {6}
