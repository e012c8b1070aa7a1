"""The paper's theorems, as tests. What is random is held to five standard errors of its own Monte-Carlo mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg, SdpgCfg, advantage, ascent_direction, exploration_noise
from sdpg.env import BranchedEnv
from sdpg.nn.modules import Actor
from sdpg.sim.toy import ToyTask, toy_gradient, toy_returns

Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _density(x: float, std: float) -> float:
    return math.exp(-0.5 * (x / std) ** 2) / (std * math.sqrt(2 * math.pi))


# J, and the gradient of E[J(a + delta eps)] in closed form.
SMOOTHED: dict[str, tuple[Function, Callable[[float, float], float]]] = {
    # E (a + delta eps)^2 = a^2 + delta^2
    "quadratic": (lambda x: x**2, lambda a, d: 2 * a),
    # E sin(a + delta eps) = sin(a) exp(-delta^2 / 2)
    "sine": (torch.sin, lambda a, d: math.cos(a) * math.exp(-0.5 * d * d)),
    # E [a + delta eps > 0] = Phi(a / delta): a jump has a gradient once smoothed
    "step": (lambda x: (x > 0).to(x), _density),
    # d/da E|a + delta eps| = erf(a / (delta sqrt 2)): no kink
    "absolute": (torch.abs, lambda a, d: math.erf(a / (d * math.sqrt(2)))),
    # E (a + delta eps)^3 = a^3 + 3 a delta^2
    "cubic": (lambda x: x**3, lambda a, d: 3 * a * a + 3 * d * d),
}


def _noise(m: int, seed: int = 0, n: int = 1, antithetic: bool = False, a: int = 1) -> Tensor:
    """(1, N, 1 + M, A)"""
    return exploration_noise(seed, 0, torch.arange(n), (1, m, a), antithetic)


@pytest.mark.parametrize("name", SMOOTHED)
@pytest.mark.parametrize("delta", [0.3, 1.0])
def test_theorem_1_by_quadrature(name: str, delta: float) -> None:
    """E[(J(a + delta eps) - J(a)) eps] / delta = d/da E[J(a + delta eps)]: exact up to the quadrature."""
    function, gradient = SMOOTHED[name]
    eps = torch.linspace(-9, 9, 400_001, dtype=torch.float64)
    density = torch.exp(-0.5 * eps**2) / math.sqrt(2 * math.pi)
    for a in (-1.2, 0.0, 0.4):
        at = torch.tensor(a, dtype=torch.float64)
        integrand = (function(at + delta * eps) - function(at)) * eps * density
        assert torch.trapezoid(integrand, eps).item() / delta == pytest.approx(gradient(a, delta), abs=2e-4)


@pytest.mark.parametrize("name", SMOOTHED)
@pytest.mark.parametrize("a", [-0.7, 0.2, 1.0])
def test_theorem_1_by_the_estimator(name: str, a: float) -> None:
    """`ascent_direction` estimates delta * gradient of the smoothed function; with "delta" the gradient itself."""
    function, gradient = SMOOTHED[name]
    m, delta = 200_000, 0.5
    noise = _noise(m)
    weight = advantage(function(a + delta * noise[..., 0]), None, normalize=False)
    std = torch.full((1, 1, 1), delta)
    scaled, _ = ascent_direction(weight, noise, std, "none")
    estimate, _ = ascent_direction(weight, noise, std, "delta")
    error = (weight[..., 1:] * noise[..., 1:, 0]).std().item() / delta / math.sqrt(m)
    assert abs(estimate.item() - gradient(a, delta)) < 5 * error
    assert scaled.item() == pytest.approx(delta * estimate.item(), rel=1e-5)


def test_theorem_1_normalised() -> None:
    """With sigma in the denominator: (delta / sigma) times the gradient of the smoothed function."""
    a, delta, m = 0.3, 0.5, 200_000
    noise = _noise(m)
    returns = torch.sin(a + delta * noise[..., 0])
    sigma = (returns - returns[..., :1]).std().item()
    direction, _ = ascent_direction(advantage(returns, None, True), noise, torch.full((1, 1, 1), delta), "sigma")
    expected = delta / sigma * math.cos(a) * math.exp(-0.5 * delta**2)
    assert direction.item() == pytest.approx(expected, abs=5 * 1.5 / math.sqrt(m))


def test_log_std_direction_is_the_gradient_in_the_log_std() -> None:
    """d/d(log delta) E (a + delta eps)^2 = 2 delta^2; the paper scales it by delta once more."""
    a, delta, m = 0.3, 0.5, 200_000
    noise, std = _noise(m), torch.full((1, 1, 1), delta)
    weight = advantage((a + delta * noise[..., 0]) ** 2, None, False)
    _, exact = ascent_direction(weight, noise, std, "delta")
    _, scaled = ascent_direction(weight, noise, std, "none")
    error = (weight[..., 1:] * (noise[..., 1:, 0] ** 2 - 1)).std().item() / math.sqrt(m)
    assert abs(exact.item() - 2 * delta**2) < 5 * error
    assert scaled.item() == pytest.approx(delta * exact.item(), rel=1e-5)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("antithetic", [False, True])
def test_unbiased_at_every_m(m: int, antithetic: bool) -> None:
    """The mean over many rows is the gradient at any M: 1/M is right, 1/(M + 1) would be too small by M/(M + 1)."""
    n, a, delta = 200_000, 0.4, 0.5
    noise = _noise(m, n=n, antithetic=antithetic)
    weight = advantage(torch.sin(a + delta * noise[..., 0]), None, False)
    estimate, _ = ascent_direction(weight, noise, torch.full((1, n, 1), delta), "delta")  # (1, N, 1)
    expected = math.cos(a) * math.exp(-0.5 * delta**2)
    error = estimate.std().item() / math.sqrt(n)
    assert abs(estimate.mean().item() - expected) < 5 * error
    assert expected / (m + 1) > 5 * error  # the wrong factor would have been seen


def test_variance_falls_as_one_over_m() -> None:
    n, delta = 20_000, 0.5
    variances = []
    for m in (1, 4, 16, 64):
        noise = _noise(m, n=n)
        weight = advantage(torch.sin(0.4 + delta * noise[..., 0]), None, False)
        variances.append(ascent_direction(weight, noise, torch.full((1, n, 1), delta), "delta")[0].var().item())
    slope = np.polyfit(np.log([1, 4, 16, 64]), np.log(variances), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.05)


def test_what_antithetic_noise_does() -> None:
    """The pair eps, -eps cancels what is even in the return (for the mean) and what is odd (for the log-std).

    The nominal's return is already subtracted, so pairs do not help with a linear return's mean direction: the two
    terms (g eps) eps are equal, and M noises count as M/2.
    """
    n, m, delta = 4_000, 8, 0.5
    std = torch.full((1, n, 1), delta)
    plain, paired = _noise(m, n=n), _noise(m, n=n, antithetic=True)

    def directions(function: Function, noise: Tensor) -> tuple[Tensor, Tensor]:
        return ascent_direction(advantage(function(delta * noise[..., 0]), None, False), noise, std, "delta")

    even = directions(torch.square, paired)[0]  # at its optimum: the true gradient is 0
    assert even.abs().max() < 1e-6
    assert directions(torch.square, plain)[0].std() > 0.1
    linear = directions(lambda x: 3 * x, paired)[1]  # a linear return has no opinion on the log-std
    assert linear.abs().max() < 1e-6
    assert directions(lambda x: 3 * x, plain)[1].std() > 0.1
    ratio = directions(lambda x: 3 * x, paired)[0].var() / directions(lambda x: 3 * x, plain)[0].var()
    assert ratio.item() == pytest.approx(2.0, rel=0.15)


# --- from directions to parameters ------------------------------------------------------------------------------------


def _actor(exploration: str = "shared", seed: int = 0, actions: int = 3) -> Actor:
    generator = torch.Generator().manual_seed(seed)
    return Actor({"state": (torch.nn.Identity(), 4)}, (16, 8), actions, exploration, -0.5, 1.0, generator)  # type: ignore[arg-type]


def _pushed(outputs: tuple[Tensor, ...], directions: tuple[Tensor, ...], actor: Actor) -> list[Tensor]:
    """(dA/dtheta)^T d: the direction pushed through the network."""
    product = sum((out * d).sum() for out, d in zip(outputs, directions, strict=True))
    gradients = torch.autograd.grad(product, list(actor.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(actor.parameters(), gradients, strict=True)]


def test_proposition_1_the_regression_step_is_the_gradient_step() -> None:
    actor, beta = _actor("fixed"), 0.05
    x, direction = torch.randn(32, 4), torch.randn(32, 3)
    before = [p.detach().clone() for p in actor.parameters()]
    mean, _ = actor({"state": x})
    step = _pushed((mean,), (direction,), actor)
    optimizer = torch.optim.SGD(actor.parameters(), lr=beta)
    mean, _ = actor({"state": x})
    loss = 0.5 * (mean - (mean + direction).detach()).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for p, old, g in zip(actor.parameters(), before, step, strict=True):
        torch.testing.assert_close(p.detach(), old + beta * g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.01, 1.0, 7.0])
def test_theorem_2_behaviour_cloning_is_the_decoupled_policy_gradient(alpha: float) -> None:
    """The step size of the trajectory optimisation drops out: 1/(2 alpha) |pi - (A + alpha d)|^2."""
    actor, direction = _actor("fixed").double(), torch.randn(32, 3, dtype=torch.float64)
    x = torch.randn(32, 4, dtype=torch.float64)
    mean, _ = actor({"state": x})
    expected = _pushed((mean,), (direction,), actor)
    mean, _ = actor({"state": x})
    loss = (mean - (mean + alpha * direction).detach()).square().sum() / (2 * alpha)
    for g, e in zip(torch.autograd.grad(loss, list(actor.parameters())), expected, strict=True):
        torch.testing.assert_close(-g, e, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("exploration", ["shared", "state"])
def test_one_auxiliary_over_delta_is_reinforce(exploration: str) -> None:
    """M = 1 and delta in the denominator: (J - B) sum_t grad log pi(u_t | o_t), B the return of the mean actions.

    For the mean and for the log-std alike, through the network, to float accuracy.
    """
    t, n, actions = 5, 3, 3
    actor = _actor(exploration)
    x = torch.randn(t * n, 4)
    noise = exploration_noise(0, 0, torch.arange(n), (t, 1, actions))  # (T, N, 2, A)
    mean, log_std = (out.view(t, n, actions) for out in actor({"state": x}))
    std = log_std.detach().exp()
    actions_taken = mean.detach()[:, :, None] + std[:, :, None] * noise  # (T, N, 2, A)
    returns = torch.sin(actions_taken).sum((0, -1)).expand(t, n, 2)  # any function of the whole action sequence
    weight = advantage(returns, None, normalize=False)
    directions = ascent_direction(weight, noise, std, "delta")
    ours = _pushed((mean, log_std), directions, actor)

    mean, log_std = (out.view(t, n, actions) for out in actor({"state": x}))
    policy = torch.distributions.Normal(mean, log_std.exp())
    log_pi = policy.log_prob(actions_taken[:, :, 1]).sum((0, -1))  # (N,)
    objective = ((returns[0, :, 1] - returns[0, :, 0]) * log_pi).sum()
    for mine, theirs in zip(ours, torch.autograd.grad(objective, list(actor.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def _toy(cfg: SdpgCfg, n: int, m: int, **task: object) -> tuple[Sdpg, BranchedEnv, ToyTask]:
    toy = ToyTask(**task)  # type: ignore[arg-type]
    env = BranchedEnv(toy, toy.sim(n * (1 + m)), n, seed=1)
    algo = Sdpg(cfg, Context(env, seed=2))
    for critic in (algo.critic, algo.target_critic):  # the toy's returns end with the segment
        torch.nn.init.zeros_(critic.value.weight)
    return algo, env, toy


def test_the_algorithms_step_is_the_gradient_step() -> None:
    """`Sdpg.update` with SGD moves theta by lr * 2 / (T N A) * (dA/dtheta)^T d: the loss is a mean of squares."""
    cfg = SdpgCfg(
        horizon=4, exploration="fixed", mean_bound=None, actor_schedule="constant", actor_lr=0.1,
        max_grad_norm=math.inf, actor_widths=(16,),
    )  # fmt: skip
    algo, env, _ = _toy(cfg, n=3, m=8)
    algo.actor_optimizer = torch.optim.SGD(algo.actor.parameters(), lr=0.1)
    rollout = algo.collect(env)
    returns, _ = algo._returns(rollout)
    direction, _ = ascent_direction(advantage(returns, None, True), rollout.noise, rollout.log_std.exp(), "sigma")
    mean, _ = algo.actor({"state": rollout.sources["state"].flatten(0, 1)})
    step = _pushed((mean,), (direction.flatten(0, 1),), algo.actor)
    before = [p.detach().clone() for p in algo.actor.parameters()]
    algo.update(rollout)
    for p, old, g in zip(algo.actor.parameters(), before, step, strict=True):
        torch.testing.assert_close(p.detach(), old + 0.1 * 2 / direction.numel() * g, rtol=1e-4, atol=1e-6)


# --- the whole chain: environment, algorithm, estimator ---------------------------------------------------------------


@pytest.mark.parametrize("inverse", [True, False])
def test_the_toy_gradient_in_closed_form_is_autograds(inverse: bool) -> None:
    task = ToyTask(inverse=inverse, gain=2.0)
    start, pre = torch.randn(3, 2).double(), (0.5 * torch.randn(6, 3, 1).double()).requires_grad_()
    total = toy_returns(task, start, pre, gamma=0.9)[0].sum()  # the segment's return
    (by_autograd,) = torch.autograd.grad(total, pre)
    discounts = 0.9 ** torch.arange(6).view(-1, 1, 1)
    torch.testing.assert_close(by_autograd, discounts * toy_gradient(task, start, pre.detach(), 0.9))


@pytest.mark.parametrize("causal", [True, False])
def test_the_estimate_on_the_toy_system_is_the_analytic_gradient(causal: bool) -> None:
    """Through BranchedEnv and Sdpg.collect, at a large std: the return is quadratic in the pre-activations."""
    m = 8192
    cfg = SdpgCfg(
        horizon=5, gamma=0.9, causal=causal, eligibility_trace=False, exploration="fixed", initial_std=0.3,
        mean_bound=None, denominator="delta",
    )  # fmt: skip
    algo, env, toy = _toy(cfg, n=2, m=m, inverse=True, b=torch.tensor([[0.5, 0.0], [0.2, 1.0]]), start_std=0.5)
    start = env.physics().qpos[:, 0].clone()
    rollout = algo.collect(env)
    returns, _ = algo._returns(rollout)
    torch.testing.assert_close(
        returns[0, :, 0], toy_returns(toy, start, rollout.mean, 0.9)[0], rtol=1e-4, atol=1e-4
    )  # the environment computes the return that the gradient is of
    weight, std = advantage(returns, None, False), rollout.log_std.exp()
    estimate, _ = ascent_direction(weight, rollout.noise, std, "delta")
    exact = toy_gradient(toy, start, rollout.mean, 0.9)
    if not causal:  # one return for the whole segment, discounted from its start
        exact = 0.9 ** torch.arange(5).view(-1, 1, 1) * exact
    terms = weight[..., 1:, None] * rollout.noise[..., 1:, :] / std[:, :, None]
    error = terms.std(2) / math.sqrt(m)  # (T, N, A)
    assert ((estimate - exact).abs() < 5 * error + 1e-4).all()
    cosine = torch.nn.functional.cosine_similarity(estimate.flatten(), exact.flatten(), dim=0)
    assert cosine > 0.99


def test_small_noise_gives_the_gradient_through_tanh() -> None:
    cfg = SdpgCfg(
        horizon=4, gamma=0.9, eligibility_trace=False, exploration="fixed", initial_std=0.02, mean_bound=None,
        antithetic=True,
    )  # fmt: skip
    algo, env, toy = _toy(cfg, n=2, m=4096, gain=2.0)
    start = env.physics().qpos[:, 0].clone()
    rollout = algo.collect(env)
    returns, _ = algo._returns(rollout)
    estimate, _ = ascent_direction(advantage(returns, None, False), rollout.noise, rollout.log_std.exp(), "delta")
    exact = toy_gradient(toy, start, rollout.mean, 0.9)
    assert torch.nn.functional.cosine_similarity(estimate.flatten(), exact.flatten(), dim=0) > 0.98


def test_sdpg_learns_the_toy() -> None:
    """A few dozen iterations of the whole algorithm improve the nominal return."""
    cfg = SdpgCfg(horizon=8, actor_widths=(32,), actor_lr=5e-3, warmup=1, initial_std=0.5, schedule_iterations=60)
    toy = ToyTask(gain=5.0, episode_steps=64, limit=20.0)
    env = BranchedEnv(toy, toy.sim(16 * 16), 16, seed=0)
    algo = Sdpg(cfg, Context(env, seed=0))
    rewards = []
    for _ in range(60):
        rollout = algo.collect(env)
        rewards.append(rollout.reward[..., 0].mean().item())
        algo.update(rollout)
    assert np.mean(rewards[-8:]) > 0.5 * np.mean(rewards[:8])  # rewards are costs: less than half of them is left
