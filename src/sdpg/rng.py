"""Counter-based random numbers: a draw is a pure function of (seed, stream, row, counter).

Every row owns a stream of its own, so that what a row draws does not depend on which other rows draw, on the
number of threads, or on how rows are spread over processes; and the whole state of the generator is one counter per
row. The generator is SplitMix64: its finaliser applied to a Weyl sequence.

Numbers are drawn on the device of the rows. Words, integers and uniform numbers are the same on every device to the
last bit; normal numbers differ by what its logarithm, sine and cosine round differently.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


_WEYL = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 tensors, whose arithmetic wraps like uint64."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _MIX1  # the mask makes the shift a logical one
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _MIX2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _keys(seed: int, stream: int, rows: Tensor) -> Tensor:
    """One independent 64-bit key per row: (n,) -> (n,)."""
    word = partial(torch.full, (), dtype=torch.int64, device=rows.device)  # filled there: a copy would be waited for
    key = _mix(word(_signed(seed & ((1 << 64) - 1))) + _WEYL)
    key = _mix(key ^ _mix(word(_signed(stream & ((1 << 64) - 1))) * _WEYL + _MIX1))
    return _mix(key ^ _mix((rows + 1) * _WEYL))


def _words(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """`count` random 64-bit words per key: (n,), (n,) -> (n, count)."""
    index = counter[:, None] + torch.arange(1, count + 1, device=keys.device)
    if keys.device.type == "cpu":  # the same words; torch multiplies int64 an order of magnitude slower than numpy
        unsigned = _mix_numpy(
            keys.numpy()[:, None].view(np.uint64) + index.numpy().view(np.uint64) * np.uint64(_WEYL % 2**64)
        )
        return torch.from_numpy(unsigned.view(np.int64))
    return _mix(keys[:, None] + index * _WEYL)


def _mix_numpy(z: np.ndarray) -> np.ndarray:
    """`_mix` in place on uint64."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX1 % 2**64)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX2 % 2**64)
    z ^= z >> np.uint64(31)
    return z


def _uniform(words: Tensor) -> Tensor:
    """24 bits of either half of each word as float32 in (0, 1), never 0 or 1: (n, w) -> (n, w, 2)."""
    halves = words.contiguous().view(torch.int32).view(*words.shape, 2)
    return ((halves >> 8) & 0xFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-24)


def _normal(words: Tensor) -> Tensor:
    """Box-Muller on the two halves of each word: (n, w) -> (n, 2 w) standard normal float32."""
    u, v = _uniform(words).unbind(-1)
    radius = u.log().mul_(-2.0).sqrt_()
    angle = v * (2.0 * math.pi)
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)


class RowRng:
    """Draws for a set of rows; the first axis of every draw is the row.

    `RowRng(seed, rows)` for all rows of an environment; `.select(ids)` for some of them, advancing only theirs.
    """

    def __init__(self, seed: int, rows: Tensor, stream: int = 0):
        self.seed, self.stream, self.rows = seed, stream, rows
        self._keys = _keys(seed, stream, rows)  # (n,)
        self.counter = torch.zeros_like(rows)  # (n,) words drawn so far
        self._parent: tuple[RowRng, Tensor] | None = None

    def select(self, ids: Tensor) -> RowRng:
        """The generator of the rows at positions `ids`; their counters advance here too."""
        part = object.__new__(RowRng)
        part.seed, part.stream, part.rows = self.seed, self.stream, self.rows[ids]
        part._keys, part.counter, part._parent = self._keys[ids], self.counter[ids], (self, ids)
        return part

    def _draw(self, count: int) -> Tensor:
        words = _words(self._keys, self.counter, count)
        self.counter += count
        if self._parent is not None:
            parent, ids = self._parent
            parent.counter[ids] = self.counter
        return words

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """(n, *shape) float32 in (low, high)."""
        u = _uniform(self._draw(math.prod(shape)))[..., 0]
        return (u * (high - low) + low).view(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """(n, *shape) standard normal float32."""
        count = math.prod(shape)
        z = _normal(self._draw((count + 1) // 2))
        return z[:, :count].reshape(-1, *shape)

    def integers(self, high: int, *shape: int) -> Tensor:
        """(n, *shape) int64 in [0, high)."""
        return (self._draw(math.prod(shape)) & ((1 << 62) - 1)).remainder_(high).view(-1, *shape)


def row_normal(seed: int, stream: int, rows: Tensor, *shape: int) -> Tensor:
    """(n, *shape) standard normal numbers that depend only on (seed, stream, row)."""
    return RowRng(seed, rows, stream).normal(*shape)
