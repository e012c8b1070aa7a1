"""A ring of observations for algorithms that learn from sequences.

Every row (world) has a ring of its own, in which its episodes follow each other. A slot is an observation, with the
action and the reward that led to it: both are 0 where an episode begins. Sequences run across the ends of episodes;
what is `first` says where a memory begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """B sequences of L observations, oldest first."""

    image: Tensor  # (B, L, C, H, W) uint8
    action: Tensor  # (B, L, A) that led to it
    reward: Tensor  # (B, L) for that
    first: Tensor  # (B, L) bool: an episode begins here
    last: Tensor  # (B, L) bool: nothing of the episode follows
    terminated: Tensor  # (B, L) bool: and nothing would


class SequenceBuffer:
    """`slots` of each of N rows; images like the example (N, C, H, W)."""

    def __init__(self, slots: int, image: Tensor, action_size: int):
        rows, device = len(image), image.device
        self.slots, self.added = slots, 0  # added: observations so far, those overwritten too
        self._image = image.new_empty(slots, *image.shape)
        self._action = torch.zeros(slots, rows, action_size, device=device)
        self._reward = torch.zeros(slots, rows, device=device)
        # first, last, terminated
        self._flags = torch.zeros(slots, rows, 3, dtype=torch.bool, device=device)
        self._written = torch.zeros(rows, dtype=torch.int64, device=device)  # (N,) slots ever written

    def add(
        self, rows: Tensor, image: Tensor, action: Tensor, reward: Tensor, first: Tensor, last: Tensor, terminal: Tensor
    ) -> None:
        """One observation of each of the rows (n,): (n, C, H, W), (n, A), and (n,) of the others."""
        slot = self._written[rows] % self.slots
        self._image[slot, rows], self._action[slot, rows], self._reward[slot, rows] = image, action, reward
        self._flags[slot, rows] = torch.stack((first, last, terminal), dim=1)
        self._written[rows] += 1
        self.added += len(rows)

    def cut(self, rows: Tensor) -> None:
        """What was added last of these rows (n,) has no successor: it is not known how the episode went on."""
        self._flags[(self._written[rows] - 1) % self.slots, rows, 1] = True

    def sequences(self, length: int) -> int:
        """How many there are of this length."""
        return int(self._starts(length).sum())

    def draw(self, number: int, length: int, generator: torch.Generator) -> Sequences:
        """So many of all sequences, each with the same probability. The generator is of the CPU."""
        ends = self._starts(length).cumsum(0)  # (N,)
        chosen = torch.randint(int(ends[-1]), (number,), generator=generator).to(ends.device)
        row = torch.searchsorted(ends, chosen, right=True)  # (B,)
        oldest = self._written[row] - self._written[row].clamp(max=self.slots)
        start = oldest + ends[row] - 1 - chosen
        slot = (start[:, None] + torch.arange(length, device=row.device)) % self.slots  # (B, L)
        row = row[:, None]
        first, last, terminated = self._flags[slot, row].unbind(-1)
        return Sequences(
            self._image[slot, row], self._action[slot, row], self._reward[slot, row], first, last, terminated
        )

    def _starts(self, length: int) -> Tensor:
        """(N,) places in each row where a sequence may begin."""
        return (self._written.clamp(max=self.slots) - length + 1).clamp(min=0)
