"""Sequences of hand-made episodes."""

from __future__ import annotations

import torch
from torch import Tensor

from sdpg.algos.sequence_buffer import SequenceBuffer


def image(values: Tensor) -> Tensor:
    """(n,) -> (n, 1, 2, 2): every pixel is the value."""
    return values.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)


def filled(slots: int, length: int) -> SequenceBuffer:
    """Two rows; observation t of row r is 100 r + t, with action t, reward -t. Episodes of 4 observations."""
    buffer = SequenceBuffer(slots, image(torch.zeros(2)), 1)
    rows = torch.arange(2)
    for t in range(length):
        first, last = torch.full((2,), t % 4 == 0), torch.full((2,), t % 4 == 3)
        time = torch.full((2,), float(t))
        buffer.add(rows, image(100 * rows + t), time[:, None], -time, first, last, last & (rows == 1))
    return buffer


def test_sequences_follow_time_across_the_end_of_the_ring() -> None:
    buffer = filled(slots=10, length=13)  # observations 3 to 12 are left
    assert buffer.added == 26 and buffer.sequences(10) == 2 and buffer.sequences(11) == 0
    batch = buffer.draw(400, 4, torch.Generator().manual_seed(0))
    start = batch.action[:, 0, 0]
    row = batch.image[:, 0, 0, 0, 0] >= 100
    assert start.unique().tolist() == [3, 4, 5, 6, 7, 8, 9]
    for b in range(len(start)):
        times = start[b] + torch.arange(4)
        assert torch.equal(batch.action[b, :, 0], times) and torch.equal(batch.reward[b], -times)
        assert batch.image[b, :, 0, 0, 0].tolist() == (times + 100 * row[b]).tolist()
        assert torch.equal(batch.first[b], times % 4 == 0) and torch.equal(batch.last[b], times % 4 == 3)
        assert torch.equal(batch.terminated[b], (times % 4 == 3) & row[b])


def test_every_sequence_is_as_likely_as_another() -> None:
    """Row 1 has one observation more: with length 2, 3 sequences of 7 are row 0's."""
    buffer = filled(slots=10, length=4)
    buffer.add(torch.tensor([1]), image(torch.tensor([104])), torch.full((1, 1), 4.0), -torch.full((1,), 4.0), *no(3))
    batch = buffer.draw(7000, 2, torch.Generator().manual_seed(0))
    drawn = (batch.image[:, 0, 0, 0, 0]).bincount(minlength=104)
    assert (drawn > 0).nonzero()[:, 0].tolist() == [0, 1, 2, 100, 101, 102, 103]
    assert ((drawn[drawn > 0] - 1000).abs() < 150).all()  # 5 standard deviations


def test_what_is_not_known_to_go_on_is_cut() -> None:
    buffer = filled(slots=10, length=3)
    buffer.cut(torch.tensor([1]))
    batch = buffer.draw(20, 3, torch.Generator().manual_seed(0))
    row = batch.image[:, 0, 0, 0, 0] >= 100
    assert row.any() and not row.all()
    assert torch.equal(batch.last, row[:, None] & torch.tensor([False, False, True]))
    assert not batch.terminated.any()


def no(count: int) -> list[Tensor]:
    return [torch.zeros(1, dtype=torch.bool)] * count
