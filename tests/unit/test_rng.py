"""Counter-based random numbers: quality good enough, and the promises of `RowRng`."""

from __future__ import annotations

import math

import numpy as np
import torch

from sdpg import rng as rng_module
from sdpg.rng import RowRng, row_normal

ROWS = torch.arange(256)


def test_uniform_numbers_are_uniform() -> None:
    u = RowRng(0, ROWS).uniform(0.0, 1.0, 1000).flatten()  # 256 000
    counts = torch.histc(u, bins=64, min=0.0, max=1.0)
    expected = len(u) / 64
    chi2 = ((counts - expected) ** 2 / expected).sum().item()  # 63 degrees of freedom: 63 +- 11
    assert 20 < chi2 < 125
    assert u.min() > 0.0 and u.max() < 1.0
    v = RowRng(0, ROWS).uniform(-3.0, 5.0, 2, 2)
    assert v.shape == (256, 2, 2) and v.min() >= -3 and v.max() <= 5


def test_normal_numbers_have_normal_moments() -> None:
    z = RowRng(1, ROWS).normal(2000).double().flatten()  # 512 000
    n = len(z)
    # standard errors of the first four moments of n normal numbers: 1, sqrt 2, sqrt 15, sqrt 96 over sqrt n
    for power, expected, error in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs((z**power).mean().item() - expected) < 5 * error / math.sqrt(n)
    inside = (z.abs() < 1.959964).double().mean().item()
    assert abs(inside - 0.95) < 5 * math.sqrt(0.95 * 0.05 / n)


def test_an_odd_number_of_normals() -> None:
    assert RowRng(0, ROWS).normal(3, 5).shape == (256, 3, 5)
    assert RowRng(0, ROWS).normal(1).isfinite().all()


def test_integers_are_in_range_and_cover_it() -> None:
    x = RowRng(0, ROWS).integers(7, 100)
    assert x.min() == 0 and x.max() == 6
    counts = torch.bincount(x.flatten(), minlength=7).double()
    assert ((counts - 25600 / 7).abs() < 5 * math.sqrt(25600 / 7)).all()


def test_rows_streams_seeds_and_draws_are_uncorrelated() -> None:
    n = 4000
    first = RowRng(0, torch.arange(8), stream=1)
    a, b = first.normal(n), first.normal(n)
    others = [b, RowRng(0, torch.arange(8), stream=2).normal(n), RowRng(1, torch.arange(8), stream=1).normal(n)]
    everything = torch.cat([a, *others])  # (32, n): 8 rows each
    correlation = torch.corrcoef(everything) - torch.eye(32)
    assert correlation.abs().max() < 5.5 / math.sqrt(n)
    assert torch.corrcoef(torch.stack((a[:, :-1].flatten(), a[:, 1:].flatten())))[0, 1].abs() < 5 / math.sqrt(8 * n)


def test_the_same_arguments_give_the_same_numbers() -> None:
    assert torch.equal(RowRng(3, ROWS, 5).normal(4), RowRng(3, ROWS, 5).normal(4))
    assert torch.equal(row_normal(3, 5, ROWS, 4), RowRng(3, ROWS, 5).normal(4))


def test_known_numbers() -> None:
    """Pinned: a change of these numbers changes every run."""
    assert RowRng(0, torch.arange(2)).integers(1000, 3).tolist() == [[131, 852, 413], [260, 112, 434]]
    torch.testing.assert_close(RowRng(0, torch.arange(1)).uniform(0, 1, 2), torch.tensor([[0.21703842, 0.13752517]]))


def test_a_row_draws_the_same_whoever_else_draws() -> None:
    whole, part = RowRng(0, ROWS).normal(6), RowRng(0, ROWS[17:30]).normal(6)
    assert torch.equal(whole[17:30], part)


def test_select_advances_only_its_rows() -> None:
    rng, reference = RowRng(0, torch.arange(4)), RowRng(0, torch.arange(4))
    first, second = reference.uniform(0, 1, 1), reference.uniform(0, 1, 1)
    chosen = rng.select(torch.tensor([1, 3]))
    assert torch.equal(chosen.uniform(0, 1, 1), first[[1, 3]])
    assert rng.counter.tolist() == [0, 1, 0, 1]
    after = rng.uniform(0, 1, 1)
    assert torch.equal(after[[0, 2]], first[[0, 2]]) and torch.equal(after[[1, 3]], second[[1, 3]])


def test_the_counter_is_the_whole_state() -> None:
    rng = RowRng(0, ROWS)
    rng.normal(5)
    resumed = RowRng(0, ROWS)
    resumed.counter.copy_(rng.counter)
    assert torch.equal(rng.normal(3), resumed.normal(3))


def test_numpy_and_torch_mix_alike() -> None:
    """The fast path on CPU draws the words that other devices draw."""
    x = RowRng(0, ROWS).integers(1 << 62, 64) - (1 << 61)
    fast = torch.from_numpy(rng_module._mix_numpy(x.numpy().copy().view(np.uint64)).view(np.int64))
    assert torch.equal(fast, rng_module._mix(x))
