"""A ring of single frames for algorithms that learn from the past: stacks and n-step returns are made when they are
asked for, so that a frame is kept once.

Every row (world) has a ring of its own, in which its episodes follow each other. A slot is an observation, with the
action that was taken there, the reward for it and how that step ended. When an episode's time is up, its final
observation, where no action was taken, has a slot, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

GOES_ON, TERMINATED, TRUNCATED, CUT, FINAL = range(5)
"""How a step ended. TRUNCATED: the next slot is the FINAL observation. CUT: what comes after is not known (a world that
failed); no return that runs into it is used."""


@dataclass(frozen=True)
class Batch:
    """B samples: what was seen, what was done, what came of it in up to n steps, and what was seen then."""

    sources: dict[str, Tensor]  # name -> (B, stack * C, H, W)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,) discounted sum
    discount: Tensor  # (B,) of the value beyond; 0 after a termination
    next_sources: dict[str, Tensor]


class ReplayBuffer:
    """`slots` of each of N rows. `stacks`: source -> frames that a policy sees at once; `seen`: an example of each
    source, (N, stack * C, H, W), the newest frame last."""

    def __init__(self, slots: int, stacks: Mapping[str, int], seen: Mapping[str, Tensor], action_size: int):
        example = next(iter(seen.values()))
        rows, device = len(example), example.device
        self.slots, self.stacks, self.added = slots, dict(stacks), 0  # added: steps so far, those overwritten too
        self._channels = {name: seen[name].shape[1] // stack for name, stack in stacks.items()}
        self._frames = {
            name: seen[name].new_empty(slots, rows, channels, *seen[name].shape[2:])
            for name, channels in self._channels.items()
        }
        self._age = torch.zeros(slots, rows, dtype=torch.int64, device=device)  # steps since the episode began
        self._action = torch.zeros(slots, rows, action_size, device=device)
        self._reward = torch.zeros(slots, rows, device=device)
        self._end = torch.full((slots, rows), CUT, dtype=torch.uint8, device=device)
        self._written = torch.zeros(rows, dtype=torch.int64, device=device)  # (N,) slots ever written
        self._rows = torch.arange(rows, device=device)

    def add(self, sources: Mapping[str, Tensor], age: Tensor, action: Tensor, reward: Tensor, end: Tensor) -> None:
        """One step of every row: what was seen (N, ...), steps into the episode (N,), action (N, A), reward (N,), how
        it ended (N,)."""
        slot = self._put(self._rows, sources, age, end)
        self._action[slot, self._rows], self._reward[slot, self._rows] = action, reward
        self.added += len(self._rows)

    def add_final(self, rows: Tensor, sources: Mapping[str, Tensor], age: Tensor) -> None:
        """What was seen last in the rows (n,) whose step was TRUNCATED: sources (n, ...), age (n,)."""
        self._put(rows, sources, age, torch.full_like(rows, FINAL))

    def _put(self, rows: Tensor, sources: Mapping[str, Tensor], age: Tensor, end: Tensor) -> Tensor:
        slot = self._written[rows] % self.slots
        for name, frames in self._frames.items():
            frames[slot, rows] = sources[name][:, -self._channels[name] :]
        self._age[slot, rows], self._end[slot, rows] = age, end.to(torch.uint8)
        self._written[rows] += 1
        return slot

    def starts(self, n_step: int) -> Tensor:
        """(n,) flat places of all steps that a sample may begin with: the frames of its stack are there, and so is what
        came of it."""
        stored = self._written.clamp(max=self.slots)  # (N,)
        slot = torch.arange(self.slots, device=self._rows.device)[:, None]
        newer = (self._written - 1 - slot) % self.slots  # (S, N) slots of the row written later
        older = stored - 1 - newer
        needed = self._age.clamp(max=max(self.stacks.values()) - 1)
        open_ = (newer < stored) & (older >= needed) & (self._end != FINAL)
        usable = torch.zeros_like(open_)
        for i in range(n_step):
            end = self._end.roll(-i, dims=0)
            open_ = open_ & (newer >= i)
            usable |= open_ & ((end == TERMINATED) | ((end == TRUNCATED) & (newer > i)))
            open_ = open_ & (end == GOES_ON)
        usable |= open_ & (newer >= n_step)
        return usable.flatten().nonzero()[:, 0]

    def batch(self, places: Tensor, n_step: int, gamma: float) -> Batch:
        """Samples that begin at these of the `starts` (B,)."""
        slot, row = places // len(self._rows), places % len(self._rows)
        reward = torch.zeros(len(places), device=places.device)
        discount, last, going = torch.ones_like(reward), slot, torch.ones_like(slot, dtype=torch.bool)
        for i in range(n_step):
            now = (slot + i) % self.slots
            end = self._end[now, row]
            reward = torch.where(going, reward + discount * self._reward[now, row], reward)
            discount = torch.where(going, discount * gamma * (end != TERMINATED), discount)
            last = torch.where(going, now + 1, last)
            going = going & (end == GOES_ON)
        last = torch.where(discount > 0.0, last % self.slots, slot)  # nothing lies beyond a termination: any will do
        return Batch(self._stacked(slot, row), self._action[slot, row], reward, discount, self._stacked(last, row))

    def _stacked(self, slot: Tensor, row: Tensor) -> dict[str, Tensor]:
        """Observations (B, stack * C, H, W); an episode younger than the stack repeats its first frame."""
        age, stacked = self._age[slot, row], {}
        for name, frames in self._frames.items():
            back = torch.arange(self.stacks[name] - 1, -1, -1, device=slot.device)
            when = (slot[:, None] - torch.minimum(back, age[:, None])) % self.slots  # (B, stack)
            stacked[name] = frames[when, row[:, None]].flatten(1, 2)  # (B, stack, C, H, W) -> (B, stack * C, H, W)
        return stacked
