from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.sources import Senses, watched
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.ppo import Ppo, bounded, log_prob
from sdpg.algos.ppo_cfg import A2cCfg, PpoCfg
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.evaluate import run_episodes
from sdpg.presets import resolve
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera

TINY = PpoCfg(horizon=8, epochs=2, minibatches=2, actor_widths=(8,), critic_widths=(8,), encoder="small")
SMALL_A2C = A2cCfg(horizon=8, actor_widths=(8,), critic_widths=(8,), max_grad_norm=1e9, entropy_weight=0.02)


class Small(Cartpole):
    """Its episodes last five steps, and its images have 48 pixels a side."""

    episode_steps = 5
    cameras = {"pixels": Camera("side", width=48, height=48)}


def _env(rows: int = 3, obs: str = "state") -> BranchedEnv:
    return make_env(Small(), rows, 0, seed=0, threads=1, obs=obs)


def _algo(cfg: PpoCfg, env: BranchedEnv, sources: Sequence[str] = ("state",)) -> Ppo:
    algo = cfg.build(Context(env, tuple(sources)))
    assert isinstance(algo, Ppo)
    return algo


def _value(algo: Ppo, state: Tensor) -> float:
    """In units of the scaled reward, by the layers of the critic."""
    normalizer, scale = algo.normalizers["state"], algo.value_scale
    normal = (state - normalizer.mean) / (normalizer.var + normalizer.eps).sqrt()
    value = algo.modules["critic"](normal.float()).item()
    return value * math.sqrt(scale.var.item() + scale.eps) + scale.mean.item() if algo.cfg.normalize_values else value


@pytest.mark.parametrize("normalize", [False, True])
def test_returns_bootstrap_from_the_final_state_where_the_time_was_up(normalize: bool) -> None:
    """By hand, one step after the other: time limits after five steps, a termination that is made up."""
    env = _env()
    algo = _algo(replace(TINY, normalize_values=normalize, reward_scale=0.5), env)
    algo.update(algo.collect(env))  # statistics that are not those of the beginning
    ends, storage, cfg = algo.collect(env), algo.learner.storage, algo.cfg
    assert ends.done[1].all() and not ends.terminated.any()  # the time is up in steps 5, 10, 15 of 16
    ends.terminated[4, 1] = ends.done[4, 1] = True
    usable = torch.ones_like(ends.done)
    state, reward = storage.observations["state"].clone(), storage.rewards[..., 0].clone()
    assert torch.equal(state[2], ends.next_state[1]) is False  # a new episode begins elsewhere
    expected = torch.zeros(8, 3, dtype=torch.float64)
    values = torch.tensor([[_value(algo, state[t, n]) for n in range(3)] for t in range(8)], dtype=torch.float64)
    for n in range(3):
        following = 0.0
        for t in reversed(range(8)):
            ahead = 0.0 if ends.terminated[t, n] else _value(algo, ends.next_state[t, n])
            delta = reward[t, n].item() + cfg.gamma * ahead - values[t, n].item()
            following = delta + (0.0 if ends.done[t, n] else cfg.gamma * cfg.lam * following)
            expected[t, n] = following
    told = algo._make_returns(ends, usable)
    normal = (expected - expected.mean()) / expected.std()
    assert torch.allclose(storage.advantages[..., 0].double(), normal, atol=1e-4)
    returns = expected + values
    assert told["Train/mean_value"] == pytest.approx(returns.mean().item(), abs=1e-5)
    if normalize:
        returns = (returns - algo.value_scale.mean) / (algo.value_scale.var + algo.value_scale.eps).sqrt()
    assert torch.allclose(storage.returns[..., 0].double(), returns, atol=1e-4)


def test_a2c_takes_the_gradient_of_the_advantage_actor_critic() -> None:
    """-1/B sum A log pi + c_v 1/B sum (R - V)^2 - c_e H, with the policy that acted."""
    env = _env()
    algo = _algo(SMALL_A2C, env)
    ends = algo.collect(env)
    again = _algo(SMALL_A2C, env)
    again.load_state_dict(algo.state_dict())
    algo.update(ends)
    storage = algo.learner.storage  # as it was made for the update
    state = storage.observations["state"].flatten(0, 1)
    mean, log_std = again.actor.actor({"state": state})
    policy = torch.distributions.Normal(mean, log_std.exp())
    advantage, returns = storage.advantages.flatten(), storage.returns.flatten()
    likelihood = policy.log_prob(storage.actions.flatten(0, 1)).sum(-1)
    value = again.modules["critic"](again.normalizers["state"](state))
    loss = -(advantage * likelihood).mean() + 2.0 * (returns - value).square().mean()
    (loss - 0.02 * policy.entropy().sum(-1).mean()).backward()
    for mine, theirs in (("actor", "actor"), ("critic", "critic")):
        pairs = zip(algo.modules[mine].named_parameters(), again.modules[theirs].parameters(), strict=True)
        for (name, found), expected in pairs:
            assert found.grad is not None and expected.grad is not None
            assert torch.allclose(found.grad, expected.grad, rtol=1e-3, atol=1e-6), name
            assert expected.grad.abs().max() > 0.0


def test_more_than_one_step_is_not_a2c() -> None:
    for change, sentence in (
        ({"epochs": 2}, "a2c takes one step on all samples"),
        ({"minibatches": 3}, "a2c takes one step on all samples"),
        ({"schedule": "adaptive"}, "a2c has no divergence to adapt to"),
    ):
        broken = [rule for rule, holds in replace(SMALL_A2C, **change).rules().items() if not holds]  # type: ignore[arg-type]
        assert len(broken) == 1 and broken[0].startswith(sentence)
    assert all(SMALL_A2C.rules().values())


def test_probabilities_are_of_what_was_drawn() -> None:
    mean, log_std = torch.tensor([[0.3, -2.0]]), torch.tensor([[-0.5, 0.7]])
    drawn = torch.tensor([[1.4, -3.0]])
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(drawn).sum(-1)
    assert torch.allclose(log_prob(drawn, mean, log_std), expected)
    assert bounded(drawn, "clip").tolist() == [[1.0, -1.0]]
    assert torch.equal(bounded(drawn, "tanh"), torch.tanh(drawn))


def test_images_stay_bytes_and_the_critic_reads_the_state() -> None:
    env = _env(2, "pixels")
    algo = _algo(TINY, env, ["pixels"])
    seen = watched(env, "pixels")
    ends = algo.collect(env)
    storage = algo.learner.storage
    assert storage.observations["pixels"].dtype == torch.uint8
    assert torch.equal(storage.observations["pixels"], torch.stack(seen))
    before = {name: p.detach().clone() for name, p in algo.actor.actor.named_parameters()}
    told = algo.update(ends)
    assert all(math.isfinite(value) for value in told.values())
    moved = {name for name, p in algo.actor.actor.named_parameters() if not torch.equal(p, before[name])}
    assert "encoders.pixels.convolutions.0.weight" in moved and "log_std" in moved
    assert algo.normalizers.keys() == {"state"}


def test_several_senses_are_fused() -> None:
    """Colours, two depth cameras and a vector, each in its own type."""
    env = make_env(Senses(), 2, 0, seed=0, threads=1, obs="pixels")
    algo = _algo(TINY, env, Senses.inputs["pixels"])
    told = algo.update(algo.collect(env))
    assert all(math.isfinite(value) for value in told.values())
    kinds = {name: values.dtype for name, values in algo.learner.storage.observations.items()}
    assert kinds.pop("pixels") == torch.uint8 and set(kinds.values()) == {torch.float32}
    assert algo.normalizers.keys() == {"state", "proprio"}
    assert algo.normalizers["proprio"].count.item() == pytest.approx(16.0, abs=1e-3)


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rsl_rl", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "sdpg.algos.ppo_cfg")
    for name in ("ppo", "a2c"):
        with pytest.raises(SdpgError, match=rf"algorithm '{name}' needs rsl_rl: pip install 'sdpg\[{name}\]'"):
            resolve("cartpole", algorithm=name)


def test_samples_before_a_failure_are_left_out_and_what_is_not_finite_makes_no_step() -> None:
    env = _env()
    algo = _algo(replace(TINY, epochs=1, minibatches=2), env)
    ends = algo.collect(env)
    ends.failed[2, 0] = ends.terminated[2, 0] = ends.done[2, 0] = True
    storage = algo.learner.storage
    drawn: list[Tensor] = []
    original = algo.actor.forward

    def forward(seen: Any, **more: object) -> None:
        drawn.append(seen["state"])
        original(seen, **more)

    algo.actor.forward = forward  # type: ignore[method-assign]
    states = storage.observations["state"].clone()
    storage.observations["state"][2, 0] = torch.nan  # whatever led to it
    algo.update(ends)
    left = torch.cat(drawn)
    assert len(left) == 8 * 3 - 3 and left.isfinite().all()
    assert not (left[:, None] == states[:3, 0]).all(-1).any()
    assert algo.normalizers["state"].mean.isfinite().all()
    ends = algo.collect(env)
    storage.actions[3, 1] = torch.nan  # a gradient that is not finite
    before = [p.detach().clone() for p in algo.optimizer.param_groups[0]["params"]]
    assert algo.update(ends)["Loss/actor_skipped"] == 1.0
    after = algo.optimizer.param_groups[0]["params"]
    assert all(p.isfinite().all() for p in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_the_learning_rate_follows_the_divergence_and_is_resumed() -> None:
    env = _env()
    algo = _algo(replace(TINY, desired_kl=1e-6), env)
    told = algo.update(algo.collect(env))
    assert told["Loss/actor_lr"] < 3e-4 and told["Policy/kl"] > 2e-6
    again = _algo(algo.cfg, env)
    again.load_state_dict(algo.state_dict())
    assert again.learner.learning_rate == told["Loss/actor_lr"] == again.optimizer.param_groups[0]["lr"]
    constant = _algo(replace(TINY, schedule="constant"), env)
    assert constant.update(constant.collect(env))["Loss/actor_lr"] == 3e-4
    linear = _algo(replace(TINY, schedule="linear", schedule_iterations=10), env)
    linear.iteration = 5
    assert linear.update(linear.collect(env))["Loss/actor_lr"] == pytest.approx(3e-4 * 0.55)


@pytest.mark.parametrize(("name", "iterations"), [("ppo", 40), ("a2c", 120)])
def test_it_learns(name: str, iterations: int) -> None:
    """Cartpole: a pole that nobody balances falls after about 25 of 300 steps."""
    cfg = replace(resolve("cartpole", algorithm=name), num_nominal=32, iterations=iterations)
    env = make_env(cfg.task, cfg.num_nominal, 0, seed=0, threads=1)
    algo = replace(cfg.algo, schedule_iterations=iterations).build(Context(env))
    for _ in range(iterations):
        algo.update(algo.collect(env))
    assert run_episodes(algo.policy(), make_env(cfg.task, 16, 0, seed=9, threads=1))["return"]["mean"] > 150.0
