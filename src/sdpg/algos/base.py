"""What algorithms share: checkpoints of networks, learning-rate schedules, a guarded optimiser step and batches over
all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sdpg.algos.api import Algorithm
from sdpg.distributed import ALONE, Group


class NetworkAlgorithm(Algorithm):
    """An algorithm whose state is its networks and optimisers, by name, and the number of finished iterations."""

    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"iteration": self.iteration}
        state |= {name: module.state_dict() for name, module in self.modules.items()}
        return state | {name: optimizer.state_dict()["state"] for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration = int(state["iteration"])
        for name, module in self.modules.items():
            module.load_state_dict(state[name])
        for name, optimizer in self.optimizers.items():
            moments = {int(index): dict(values) for index, values in state.get(name, {}).items()}
            optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})


def cosine_lr(iteration: int, total: int, peak: float, floor: float, warmup: int, since: int = 0) -> float:
    """Linear warm-up, then half a cosine to the floor, over `total` iterations.

    The total may become known only at the iteration `since`, and counts from there. Before that, and as long as it is
    0, the rate warms up and stays at its peak; afterwards it goes on from where it is.
    """
    if iteration < since or not total:
        return peak * min(1.0, (iteration + 1) / max(1, warmup))
    ready = min(warmup, max(total // 2, 2 * since))  # a short run still gets its whole schedule, without a jump
    if iteration < ready:
        begun = peak * since / warmup
        return begun + (peak - begun) * (iteration + 1 - since) / (ready - since)
    start = max(ready, since)
    progress = min(1.0, (iteration - start) / max(1, total - start))
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def linear_lr(iteration: int, total: int, first: float, last: float, since: int = 0) -> float:
    """From `first` to `last`, which is reached at `total`; `since` as above."""
    if iteration < since or not total:
        return first
    return first + (last - first) * min(1.0, (iteration - since) / max(1, total - since))


def clipped_step(
    optimizer: torch.optim.Optimizer, losses: Iterable[Tensor], lr: float, max_norm: float, group: Group = ALONE
) -> float:
    """Accumulates losses one graph at a time, sums gradients over ranks, clips, steps; skips non-finite gradients.

    Returns the gradient's norm. Whether it is finite is read on the host: one wait for a GPU per step."""
    parameters = optimizer.param_groups[0]["params"]
    optimizer.zero_grad(set_to_none=True)
    for loss in losses:
        loss.backward()
    _sum_gradients(parameters, group)
    norm = nn.utils.clip_grad_norm_(parameters, max_norm).item()
    if 0.0 < norm < math.inf:  # where there was no sample, momentum alone must not move anything
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return norm


def _sum_gradients(parameters: Sequence[Tensor], group: Group) -> None:
    """Adds up the gradients of all ranks in one message; a rank without samples brings zeros."""
    if group.size == 1:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = group.all_reduce_(torch.cat([gradient.flatten() for gradient in gradients]))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def places(usable: Tensor, group: Group) -> Tensor:
    """Where this rank keeps each sample of all ranks: its flat index, or -1 if it is another rank's or not usable.

    `usable` is (T, N, ...) bool, of this rank's samples. Batches are drawn from the result, so that losses are divided
    by the batch size over all ranks, and samples that are not usable add nothing to the sum. It is on the CPU, because
    the host must know how many of a batch are left.
    """
    t, n, *branches = usable.shape
    every = torch.full((t, group.size, n, *branches), -1, device="cpu")  # a rank's rows follow each other
    mine = torch.arange(usable.numel(), device="cpu").view_as(usable)
    every[:, group.rank] = torch.where(usable.cpu(), mine, -1)
    return every.flatten()


def batches(drawn: Tensor, size: int, device: torch.device) -> Iterator[tuple[Tensor, int]]:
    """Splits the places `drawn` into batches of `size`: this rank's samples in each, and the count over all ranks.

    The samples are on the rank's device, by one copy for all batches."""
    left = drawn >= 0
    mine = drawn[left].to(device).split([int(part.sum()) for part in left.split(size)])
    return zip(mine, (len(part) for part in drawn.split(size)), strict=True)
