"""Networks of DrQ-v2 (Yarats et al., 2021): an encoder that actor and critic share, each with a projection of its own.

Modules only, no losses. Every random number comes from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sdpg.nn.encoders import HALVED, Convolutions, convolutions
from sdpg.nn.modules import linear
from sdpg.nn.scaling import scaled


class ImageEncoder(nn.Module):
    """uint8 images of each source (B, C, H, W) -> convolutions, all that they put out: (B, size)."""

    def __init__(self, shapes: Mapping[str, torch.Size], kind: Convolutions, generator: torch.Generator | None):
        super().__init__()
        self.halved = kind in HALVED
        layers = {name: convolutions(shape, kind, generator) for name, shape in shapes.items()}
        self.convolutions = nn.ModuleDict({name: each for name, (each, _) in layers.items()})
        self.size = sum(size for _, size in layers.values())

    def forward(self, sources: Mapping[str, Tensor]) -> Tensor:
        seen = [
            each(scaled(sources[name], self.halved).sub_(0.5)).flatten(1) for name, each in self.convolutions.items()
        ]
        return torch.cat(seen, dim=1)


def projection(inputs: int, features: int, generator: torch.Generator | None) -> nn.Sequential:
    return nn.Sequential(linear(inputs, features, generator, gain=1.0), nn.LayerNorm(features), nn.Tanh())


def head(inputs: int, hidden: int, outputs: int, generator: torch.Generator | None) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        linear(inputs, hidden, generator, gain=1.0),
        nn.ReLU(),
        linear(hidden, hidden, generator, gain=1.0),
        nn.ReLU(),
        linear(hidden, outputs, generator, gain=1.0),
    )


class DeterministicActor(nn.Module):
    """What the encoder puts out (B, size) -> action (B, A) in (-1, 1)."""

    def __init__(self, size: int, features: int, hidden: int, action_size: int, generator: torch.Generator | None):
        super().__init__()
        self.projection = projection(size, features, generator)
        self.head = head(features, hidden, action_size, generator)

    def forward(self, encoded: Tensor) -> Tensor:
        return torch.tanh(self.head(self.projection(encoded)))


class TwinCritic(nn.Module):
    """Two Q functions behind one projection: (B, size), (B, A) -> (B, 2)."""

    def __init__(self, size: int, features: int, hidden: int, action_size: int, generator: torch.Generator | None):
        super().__init__()
        self.projection = projection(size, features, generator)
        self.first = head(features + action_size, hidden, 1, generator)
        self.second = head(features + action_size, hidden, 1, generator)

    def forward(self, encoded: Tensor, action: Tensor) -> Tensor:
        x = torch.cat((self.projection(encoded), action), dim=1)
        return torch.cat((self.first(x), self.second(x)), dim=1)
