"""What algorithms share: learning-rate schedules and a guarded optimiser step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def cosine_lr(iteration: int, total: int, peak: float, floor: float, warmup: int) -> float:
    """Linear warm-up, then half a cosine to the floor."""
    warmup = min(warmup, total // 2)  # a short run still gets its whole schedule
    if iteration < warmup:
        return peak * (iteration + 1) / warmup
    progress = min(1.0, (iteration - warmup) / max(1, total - warmup))
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def linear_lr(iteration: int, total: int, first: float, last: float) -> float:
    return first + (last - first) * min(1.0, iteration / max(1, total))


def clipped_step(optimizer: torch.optim.Optimizer, losses: Iterable[Tensor], lr: float, max_norm: float) -> float:
    """One clipped step down the sum of `losses`, each of whose graphs is gone before the next is made; the gradient's
    norm. A gradient that is not finite is left out: no step."""
    parameters = optimizer.param_groups[0]["params"]
    optimizer.zero_grad(set_to_none=True)
    for loss in losses:
        loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, max_norm).item()
    if math.isfinite(norm):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return norm
