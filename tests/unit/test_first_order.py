"""SHAC, SAPO and D.Va: the gradient that they follow, against the linear system's own and against finite differences of
whole segments; the pieces of their losses by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.differentiable import DifferentiableWorlds
from sdpg.algos.first_order import FirstOrder, discounts, entropy_estimate
from sdpg.algos.first_order_cfg import DvaCfg, SapoCfg, ShacCfg
from sdpg.algos.returns import lambda_returns, valid_returns
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.sim.toy import ToyTask
from sdpg.tasks.base import make_task
from sdpg.tasks.hopper import Hopper
from sdpg.types import Memory, Physics, Terms

SMALL = {"horizon": 4, "actor_widths": (16,), "critic_widths": (16,), "critic_passes": 2}


def _toy(cfg: ShacCfg, n: int = 3, **task: object) -> tuple[FirstOrder, BranchedEnv, ToyTask]:
    toy = ToyTask(gain=2.0, **task)  # type: ignore[arg-type]
    env = BranchedEnv(toy, toy.sim(n), n, seed=1)
    return FirstOrder(cfg, Context(env, seed=2)), env, toy


def _gradient(algo: FirstOrder, env: BranchedEnv) -> tuple[Tensor, list[Tensor]]:
    """The actor's loss and its gradient, as `update` computes them."""
    batch = algo.collect(env)
    good = valid_returns(batch.failed, batch.done)
    reward = batch.reward + algo._bonus(batch.entropy) if algo.cfg.entropy else batch.reward
    loss = algo._loss(batch, reward, good)
    losses = [loss]
    if algo.cfg.decoupled:
        losses = list(algo._followed(batch, *torch.autograd.grad(loss, batch.nudge)[0]))
    total = torch.stack(losses).sum()
    return loss, list(torch.autograd.grad(total, list(algo.actor.parameters()), allow_unused=True))


def _loss_of_the_toy(algo: FirstOrder, toy: ToyTask, start: Tensor, noise: Tensor, detached: bool) -> Tensor:
    """Written out with torch, without environment and Jacobians: the same segment of the linear system."""
    cfg, state, total = algo.cfg, start, torch.zeros(())
    for t in range(cfg.horizon):
        mean, log_std = algo.actor({"state": state.detach() if detached else state})
        u = toy.gain * torch.tanh(mean + log_std.exp() * noise[:, t])
        state = state @ toy.a.T + u @ toy.b.T
        reward = -state.square().sum(-1) - toy.control_cost * u.square().sum(-1)
        total = total + cfg.gamma**t * reward.sum()
    value = algo.target_critics[0](algo.normalizers["state"](state)).sum()
    return -(total + cfg.gamma**cfg.horizon * value) / (cfg.horizon * len(start))


@pytest.mark.parametrize("kind", [ShacCfg, DvaCfg])
def test_the_gradient_is_that_of_the_linear_system_differentiated_by_autograd(kind: type[ShacCfg]) -> None:
    """Through time and the policy for SHAC; with what the policy sees held constant for D.Va."""
    algo, env, toy = _toy(kind(**SMALL))  # type: ignore[arg-type]
    start = env.physics().qpos[:, 0].clone()
    loss, mine = _gradient(algo, env)
    noise = RowRng(2, env.rows, stream=11).normal(4, 1)
    expected = _loss_of_the_toy(algo, toy, start, noise, detached=kind is DvaCfg)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    theirs = torch.autograd.grad(expected, list(algo.actor.parameters()))
    for ours, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-4)
    if kind is DvaCfg:  # it makes a difference
        whole = torch.autograd.grad(
            _loss_of_the_toy(algo, toy, start, noise, detached=False), list(algo.actor.parameters())
        )
        assert any((a - b).abs().max() > 1e-2 for a, b in zip(whole, theirs, strict=True))


class Sensing(Hopper):
    """Its reward and observation read a derived field, it remembers, draws, and is pushed: gradients have to go through
    all of them."""

    reads = ("xpos",)
    state_size = 15

    def start(self, rng, n, ended):  # type: ignore[no-untyped-def]
        start = super().start(rng, n, ended)
        return replace(start, memory={"last": torch.zeros(n, 3)})

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return 0.5 * action + 0.3 * memory["last"]

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng) -> Memory:  # type: ignore[no-untyped-def]
        return {"last": action + 0.01 * rng.normal(1)[:, None]}

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        foot = x["xpos"][:, :, -1]
        return {
            "foot": foot[..., 2] + foot[..., 0],
            "speed": x.qvel[..., 0].clone(),
            "smooth": -(action - memory["last"]).square().sum(-1),
        }

    def push(self, x: Physics, memory: Memory) -> Tensor:
        return torch.full_like(x.qvel, 0.02)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        state = torch.cat((x.qpos[..., 1:], x.qvel, memory["last"], x["xpos"][:, :, -1, 2:]), dim=-1)
        return {"state": state}


@pytest.mark.parametrize("task", ["hopper", "ant", "sensing"])
def test_the_gradient_is_the_slope_of_the_segments_return(task: str) -> None:
    """Physics with contacts, quaternions, memory and derived fields: five steps again with all actions moved a little
    along the gradient earn what it says."""
    kind = Sensing() if task == "sensing" else make_task(task)
    n, steps = 3, 5
    env = make_env(kind, n, 0, seed=3, threads=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):  # down to the ground
        env.step(0.2 * torch.randn(n, 1, kind.action_size, generator=generator).clamp(-1, 1))
    actions = (0.3 * torch.randn(steps, n, kind.action_size, generator=generator)).requires_grad_()
    begun = env.state_dict()
    worlds = DifferentiableWorlds(env)

    def total(actions: Tensor) -> Tensor:
        env.load_state_dict(begun)
        worlds.begin()
        earned = torch.zeros(n)
        for action in actions:
            step, reward, state = worlds.step(action)
            torch.testing.assert_close(reward.detach(), step.reward[:, 0])  # what the environment says
            torch.testing.assert_close(state.detach(), step.state[:, 0])
            earned = earned + reward + 0.1 * state.sum(-1)  # a linear critic
            worlds.restart(step)
        return earned

    gradient = torch.autograd.grad(total(actions).sum(), actions)[0]  # (T, N, A)
    assert worlds.unknown == 0 and worlds.perturbed == steps * n * (1 + 2 * env.sim.nv + env.sim.nu)
    along = gradient / gradient.flatten().norm()
    size = 2e-3  # fields are float32
    with torch.no_grad():
        slope = (total(actions + size * along) - total(actions - size * along)) / (2 * size)
    expected = (gradient * along).sum((0, 2))  # (N,)
    torch.testing.assert_close(slope, expected, rtol=0.03, atol=0.03 * expected.abs().max().item())


def test_discounts_begin_anew_with_an_episode() -> None:
    done = torch.tensor([[False, True, False, True]]).T
    assert discounts(done, 0.5)[:, 0].tolist() == [1.0, 0.5, 1.0, 0.5]


def test_a_new_episode_does_not_depend_on_old_actions() -> None:
    """Episodes of two steps: the gradient of rewards after a restart with respect to actions before it is 0."""
    algo, env, _ = _toy(DvaCfg(**SMALL), episode_steps=2)  # type: ignore[arg-type]
    batch = algo.collect(env)
    assert batch.done[:, 0].tolist() == [False, True, False, True]
    (gradient,) = torch.autograd.grad(batch.reward[2:].sum(), batch.nudge)
    assert gradient[0, :2].abs().max() == 0.0 and gradient[0, 2:].abs().min() > 0.0


def test_time_limits_end_with_a_value_and_terminations_without() -> None:
    algo, env, _ = _toy(ShacCfg(**SMALL, gamma=0.5))  # type: ignore[arg-type]
    batch = algo.collect(env)
    done, terminated = torch.zeros(4, 3, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.bool)
    done[1], done[3], terminated[1, 0] = True, True, True
    batch = replace(batch, reward=torch.ones(4, 3), done=done, terminated=terminated, failed=torch.zeros_like(done))
    value = algo._values(batch.next_state)[0]  # (T, N)
    expected = 3 * 2 * 1.5 + 0.25 * (value[1, 1:].sum() + value[3].sum())
    torch.testing.assert_close(algo._loss(batch, batch.reward, ~batch.failed), -expected / 12)


def test_what_runs_into_a_failure_is_left_out() -> None:
    algo, env, _ = _toy(ShacCfg(**SMALL))  # type: ignore[arg-type]
    batch = algo.collect(env)
    failed = torch.zeros(4, 3, dtype=torch.bool)
    failed[2, 1] = True
    done = batch.done | failed
    good = valid_returns(failed, done)
    assert good[:, 1].tolist() == [False, False, False, True] and good[:, [0, 2]].all()
    batch = replace(batch, failed=failed, done=done, terminated=batch.terminated | failed)
    poisoned = batch.reward.detach().clone()
    clean = algo._loss(batch, poisoned, good)
    poisoned[:3, 1] = 1e6
    torch.testing.assert_close(algo._loss(batch, poisoned, good), clean)


def test_two_critics_the_smaller_teaches_and_the_mean_ends_the_actors_return() -> None:
    algo, env, _ = _toy(SapoCfg(**SMALL, entropy=False))  # type: ignore[arg-type]
    batch = algo.collect(env)
    values = algo._values(batch.next_state)
    assert values.shape == (2, 4, 3) and not torch.equal(values[0], values[1])
    expected = lambda_returns(batch.reward, values.amin(0), batch.done, 0.99, 0.95)
    torch.testing.assert_close(algo._targets(batch, batch.reward), expected)
    weight = 0.99 ** torch.arange(4.0)[:, None]
    total = (weight * batch.reward).sum() + 0.99**4 * values.mean(0)[-1].sum()
    torch.testing.assert_close(algo._loss(batch, batch.reward, ~batch.failed), -total / 12)
    algo.update(batch)  # without a target critic, the critic is it
    for target, critic in zip(algo.target_critics.parameters(), algo.critics.parameters(), strict=True):
        assert torch.equal(target, critic)


def test_the_entropy_is_that_of_the_squashed_actions() -> None:
    """- log of the density that torch gives a tanh-transformed Gaussian."""
    mean, log_std, noise = torch.randn(3, 50, 2)
    pre = mean + log_std.exp() * noise
    policy = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean.double(), log_std.double().exp()), torch.distributions.TanhTransform()
    )
    inside = pre.abs() < 5.0  # beyond, tanh is 1 to float accuracy
    expected = torch.where(inside, -policy.log_prob(torch.tanh(pre.double())), 0.0).sum(-1)
    parts = torch.stack(
        [entropy_estimate(pre[:, i : i + 1], log_std[:, i : i + 1], noise[:, i : i + 1]) for i in (0, 1)], -1
    )
    torch.testing.assert_close(torch.where(inside, parts, 0.0).sum(-1).double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("std", "sign"), [(0.6, -1), (0.01, 1)])
def test_the_temperature_aims_at_its_entropy(std: float, sign: int) -> None:
    algo, env, _ = _toy(SapoCfg(**SMALL, initial_std=std, output_gain=0.0))  # type: ignore[arg-type]
    batch = algo.collect(env)
    assert math.copysign(1, batch.entropy.mean().item() + 0.5) == -sign
    before = algo.log_temperature.item()
    algo.update(batch)
    assert math.copysign(1, algo.log_temperature.item() - before) == sign


def test_images_need_a_decoupled_gradient() -> None:
    env = make_env("cartpole", 2, 0, seed=0, threads=1, obs="pixels")
    with pytest.raises(SdpgError, match="'pixels' is an image: give --algorithm dva, or --obs state"):
        FirstOrder(ShacCfg(), Context(env, ("pixels",)))


def test_chunks_do_not_change_the_gradient() -> None:
    whole, parts = (_toy(DvaCfg(**SMALL, actor_chunk=chunk)) for chunk in (1000, 5))  # type: ignore[arg-type]
    for a, b in zip(_gradient(*whole[:2])[1], _gradient(*parts[:2])[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [ShacCfg, SapoCfg, DvaCfg])
def test_it_learns_the_toy(kind: type[ShacCfg]) -> None:
    cfg = kind(horizon=8, actor_widths=(32,), critic_widths=(16,), actor_lr=1e-2, critic_passes=4, temperature=0.01)
    algo, env, _ = _toy(cfg, n=16, episode_steps=64, limit=20.0)
    earned = []
    for _ in range(30):
        batch = algo.collect(env)
        earned.append(batch.reward.detach().mean().item())
        before = copy.deepcopy(env.state_dict())
        algo.update(batch)
    assert all(torch.equal(values, env.state_dict()[name]) for name, values in before.items())
    assert sum(earned[-5:]) > 0.5 * sum(earned[:5])  # rewards are costs: less than half of them is left
