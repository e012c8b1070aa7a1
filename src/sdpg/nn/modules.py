"""Networks of the paper: encoders per source, MLP heads, a Gaussian policy, a value function, a running normaliser.

Modules only, no losses. Every random number comes from the generator that is passed in, which is a CPU's: modules are
made there and moved, so that they begin alike on every device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sdpg.distributed import ALONE, Group

CLIP = 10.0  # standard deviations from the mean at most: a feature that was constant so far can't explode

Exploration = Literal["shared", "state", "fixed"]
"""Log-std of the policy: one learned vector for all states, a function of the observation, or a constant."""


def linear(inputs: int, outputs: int, generator: torch.Generator | None, gain: float = math.sqrt(2)) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    if layer.weight.is_meta:  # only its shape is of interest
        return layer
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def trunk(inputs: int, widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear -> ELU -> LayerNorm for every width."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [linear(inputs, width, generator), nn.ELU(), nn.LayerNorm(width)]
        inputs = width
    return nn.Sequential(*layers)


def multiply_adds(widths: Sequence[int]) -> int:
    """Of an MLP's layers, for one sample; also the number of their weights."""
    return sum(a * b for a, b in itertools.pairwise(widths))


def moments(x: Tensor, group: Group = ALONE) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and variance of the samples x (n, D) of all ranks: (D,) float64 each; NaN of no sample at all."""
    if len(x):
        var, mean = torch.var_mean(x, dim=0, correction=0)  # float32 sums in a tree: exact enough, and fast
    else:
        var, mean = x.new_zeros(2, x.shape[-1])
    mine = torch.stack((torch.full_like(mean, len(x)), mean, var)).double()
    counts, means, variances = group.stack(mine).unbind(1)  # (ranks, D) each
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return count, mean, (counts * (variances + (means - mean) ** 2)).sum(0) / count


class Normalizer(nn.Module):
    """Running mean and variance, merged batch by batch (Chan et al.); constant until `update` is called.

    What comes out is within +-CLIP; before the first sample it is what comes in, as it is. Features that are `plain`
    pass through at all times.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    plain: Tensor | None  # (D,) bool

    def __init__(self, size: int, eps: float = 1e-5, plain: Tensor | None = None):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))
        self.register_buffer("plain", plain, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.var + self.eps).rsqrt()
        shift, limit = -self.mean * scale, torch.where(self.count >= 1.0, CLIP, torch.inf)
        if self.plain is not None:
            scale, shift = torch.where(self.plain, 1.0, scale), torch.where(self.plain, 0.0, shift)
            limit = torch.where(self.plain, torch.inf, limit)
        return torch.addcmul(shift.float(), x, scale.float()).clamp_(-limit, limit)

    def update(self, x: Tensor, group: Group = ALONE) -> None:
        """x (..., D): every leading element is one sample; those of all ranks are merged."""
        count, mean, var = moments(x.reshape(-1, x.shape[-1]), group)
        if not count[0]:  # the mean of nothing is NaN
            return
        total = self.count + count
        delta = mean - self.mean
        merged = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.var.copy_(merged / total)
        self.count.copy_(total[0])  # the same for every feature


class Actor(nn.Module):
    """Encoders per source, concatenated -> trunk -> mean and log-std of a Gaussian, both before their bounds."""

    log_std: Tensor

    def __init__(
        self,
        encoders: Mapping[str, tuple[nn.Module, int]],  # source -> (module, features it yields)
        widths: Sequence[int],
        action_size: int,
        exploration: Exploration,
        initial_log_std: float,
        output_gain: float,
        generator: torch.Generator,
        bfloat16: bool = False,  # in the encoders
    ):
        super().__init__()
        self.half_precision = bfloat16  # not `bfloat16`, which is a method of modules
        self.encoders = nn.ModuleDict({name: module for name, (module, _) in encoders.items()})
        features = sum(size for _, size in encoders.values())
        self.trunk = trunk(features, widths, generator)
        last = widths[-1] if widths else features
        self.mean = linear(last, action_size, generator, output_gain)
        self.log_std_head: nn.Linear | None = None
        if exploration == "state":
            self.log_std_head = linear(last, action_size, generator, gain=0.01)
            nn.init.constant_(self.log_std_head.bias, initial_log_std)
        elif exploration == "shared":
            self.log_std = nn.Parameter(torch.full((action_size,), initial_log_std))
        else:
            self.register_buffer("log_std", torch.full((action_size,), initial_log_std))

    def forward(self, sources: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """name -> (B, ...) to mean (B, A) and log-std (B, A)."""
        with torch.autocast(self.mean.weight.device.type, torch.bfloat16, enabled=self.half_precision):
            encoded = [encoder(sources[name]).to(self.mean.weight.dtype) for name, encoder in self.encoders.items()]
        hidden = self.trunk(torch.cat(encoded, dim=-1))
        mean = self.mean(hidden)
        log_std = self.log_std.expand_as(mean) if self.log_std_head is None else self.log_std_head(hidden)
        return mean, log_std


class Critic(nn.Module):
    """Value of the privileged state, normalised; parts of the state may first go through MLPs of their own."""

    def __init__(
        self,
        state_size: int,
        widths: Sequence[int],
        generator: torch.Generator,
        parts: Mapping[str, tuple[int, Sequence[int]]] | None = None,  # in order: size, widths of its MLP
    ):
        super().__init__()
        parts = parts or {}
        self.sizes = [size for size, _ in parts.values()]
        if parts:
            self.parts = nn.ModuleDict({name: trunk(size, own, generator) for name, (size, own) in parts.items()})
            state_size = sum(own[-1] if own else size for size, own in parts.values())
        self.trunk = trunk(state_size, widths, generator)
        self.value = linear(widths[-1] if widths else state_size, 1, generator)

    def forward(self, state: Tensor) -> Tensor:
        """(..., D) -> (...)"""
        if self.sizes:
            pieces = zip(self.parts.values(), state.split(self.sizes, dim=-1), strict=True)
            state = torch.cat([encoder(piece) for encoder, piece in pieces], dim=-1)
        return self.value(self.trunk(state)).squeeze(-1)


class Guide(nn.Module):
    """Where actions should be, pre-tanh, by the privileged state, normalised."""

    def __init__(self, state_size: int, action_size: int, widths: Sequence[int], gain: float,
                 generator: torch.Generator):  # fmt: skip
        super().__init__()
        self.trunk = trunk(state_size, widths, generator)
        self.mean = linear(widths[-1] if widths else state_size, action_size, generator, gain)

    def forward(self, state: Tensor) -> Tensor:
        """(..., D) -> (..., A)"""
        return self.mean(self.trunk(state))
