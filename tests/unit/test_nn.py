"""Networks: shapes, initialisation, exploration variants, the running normaliser."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from sdpg.nn.modules import Actor, Critic, Normalizer, trunk


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _actor(exploration: str, seed: int = 0) -> Actor:
    encoders = {"state": (nn.Identity(), 4)}
    return Actor(encoders, (16, 8), 3, exploration, math.log(0.5), 1.0, _generator(seed))  # type: ignore[arg-type]


def test_a_trunk_is_linear_elu_layer_norm_per_width() -> None:
    kinds = [type(layer) for layer in trunk(5, (16, 8), _generator())]
    assert kinds == [nn.Linear, nn.ELU, nn.LayerNorm] * 2


def test_the_generator_decides_the_parameters() -> None:
    torch.manual_seed(1)
    first = _actor("shared").state_dict()
    torch.manual_seed(2)  # the global generator has no say
    second, other = _actor("shared").state_dict(), _actor("shared", seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["mean.weight"], other["mean.weight"])


def test_the_mean_layer_is_orthogonal_with_its_gain() -> None:
    weight = Actor({"state": (nn.Identity(), 4)}, (16,), 3, "shared", 0.0, 0.5, _generator()).mean.weight  # (3, 16)
    torch.testing.assert_close(weight @ weight.T, 0.25 * torch.eye(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("exploration", ["shared", "state", "fixed"])
def test_exploration_variants(exploration: str) -> None:
    actor = _actor(exploration)
    mean, log_std = actor({"state": torch.randn(32, 4, generator=_generator())})
    assert mean.shape == log_std.shape == (32, 3)
    torch.testing.assert_close(log_std.exp(), torch.full((32, 3), 0.5), rtol=0.1, atol=0)
    varies = log_std.std(0).max().item() > 0
    assert varies == (exploration == "state")
    learned = {name for name, _ in actor.named_parameters() if "log_std" in name}
    assert bool(learned) == (exploration != "fixed")


def test_sources_are_concatenated() -> None:
    encoders = {"a": (nn.Linear(2, 5), 5), "b": (nn.Identity(), 3)}
    actor = Actor(encoders, (8,), 1, "shared", 0.0, 1.0, _generator())
    mean, _ = actor({"b": torch.zeros(4, 3), "a": torch.zeros(4, 2)})
    assert mean.shape == (4, 1)
    assert actor.trunk[0].in_features == 8


def test_no_hidden_layers() -> None:
    actor = Actor({"state": (nn.Identity(), 4)}, (), 2, "state", 0.0, 1.0, _generator())
    assert actor({"state": torch.zeros(1, 4)})[0].shape == (1, 2)
    assert Critic(4, (), _generator())(torch.zeros(3, 4)).shape == (3,)


def test_the_critic_takes_any_leading_axes() -> None:
    critic, state = Critic(4, (8, 8), _generator()), torch.randn(2, 3, 5, 4, generator=_generator())
    value = critic(state)
    assert value.shape == (2, 3, 5)
    torch.testing.assert_close(value[1, 2, 3], critic(state[1, 2, 3]))


def test_the_normaliser_merges_batches_like_one_big_batch() -> None:
    """Chan et al.: any split of the samples gives the moments of all of them."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, (size, 5)).astype(np.float32) for size in (7, 1000, 1, 64)]
    normalizer = Normalizer(5)
    for part in parts:
        normalizer.update(torch.from_numpy(part))
    every = np.concatenate(parts).astype(np.float64)
    # the initial count of 1e-4 samples at mean 0 and variance 1 is all that is left between them
    np.testing.assert_allclose(normalizer.mean.numpy(), every.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(normalizer.var.numpy(), every.var(0), rtol=1e-4)
    assert normalizer.count.item() == pytest.approx(1072.0001)
    y = normalizer(torch.from_numpy(every.astype(np.float32)))
    np.testing.assert_allclose(y.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(y.std(0), 1.0, atol=2e-2)


def test_the_normaliser_is_constant_until_updated() -> None:
    normalizer, x = Normalizer(2), torch.tensor([[3.0, 4.0]])
    before = normalizer(x)
    torch.testing.assert_close(before, x, rtol=1e-4, atol=0)  # mean 0, variance 1
    normalizer(100 * x)
    assert torch.equal(normalizer(x), before)


def test_a_constant_input_stays_finite() -> None:
    normalizer = Normalizer(1)
    normalizer.update(torch.full((100_000, 1), 5.0))
    assert normalizer(torch.full((1, 1), 5.0)).abs().item() < 0.1


def test_every_leading_element_is_one_sample() -> None:
    x = torch.randn(3, 4, 5, 2, generator=_generator())
    one, other = Normalizer(2), Normalizer(2)
    one.update(x)
    other.update(x.reshape(-1, 2))
    assert torch.equal(one.mean, other.mean) and torch.equal(one.var, other.var)
