"""Networks as a task declares them: an encoder for each source of the policy and each part of the critic's state.

Where the task says nothing, the algorithm's options hold. Random numbers are drawn source by source, in the order of
the examples, then part by part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sdpg.nn.encoders import Convolutions, Depth, Origin, Pixels
from sdpg.nn.modules import Critic, Normalizer, trunk
from sdpg.types import Camera, Encoder


class Declared(Protocol):
    """What of a task networks go by."""

    @property
    def cameras(self) -> Mapping[str, Camera]: ...
    @property
    def encoders(self) -> Mapping[str, Encoder]: ...
    @property
    def state_parts(self) -> Mapping[str, int]: ...
    @property
    def state_encoders(self) -> Mapping[str, Encoder]: ...


@dataclass(frozen=True)
class EncoderOptions:
    """How sources are taken in where the task does not say."""

    widths: Sequence[int] = ()  # of the MLP of a vector; none: passed through
    features: int = 256  # that an image is encoded into
    kind: Convolutions = "drqv2"
    origin: Origin = "grey"
    motion: bool = False


def make_normalizers(task: Declared, examples: Mapping[str, Tensor], state_size: int) -> dict[str, Normalizer]:
    """Of every vector of the policy that is normalised, by source, and of the critic's "state", whose parts that are
    not normalised pass through. A policy that sees the state as well shares its normaliser."""
    plain = torch.cat(
        [torch.full((size,), not encoder.normalized) for size, encoder in state_layout(task, state_size).values()]
    )
    made = {
        name: Normalizer(example.shape[-1])
        for name, example in examples.items()
        if example.dim() == 2 and name != "state" and _declared(task, name).normalized
    }
    return made | {"state": Normalizer(state_size, plain=plain if plain.any() else None)}


def policy_encoders(
    task: Declared,
    examples: Mapping[str, Tensor],
    normalizers: Mapping[str, nn.Module],
    options: EncoderOptions,
    generator: torch.Generator,
) -> dict[str, tuple[nn.Module, int]]:
    """An encoder and its number of features for each source, by an example of what it shows: (N, ...).

    Vectors are normalised, then passed through or, with widths, through an MLP; uint8 images are taken for
    colours, others are depths.
    """
    encoders: dict[str, tuple[nn.Module, int]] = {}
    for name, example in examples.items():
        shape, declared = example.shape[1:], _declared(task, name)
        features = options.features if declared.features is None else declared.features
        if len(shape) == 1:
            widths = options.widths if declared.widths is None else declared.widths
            first = normalizers[name] if declared.normalized else nn.Identity()
            mlp = trunk(shape[0], widths, generator)
            encoders[name] = nn.Sequential(first, mlp), widths[-1] if widths else shape[0]
        elif example.dtype == torch.uint8:
            pixels = Pixels(shape, options.kind, features, generator, options.motion, task.cameras[name].channels)
            if options.origin == "first":
                pixels.look_from(example[0])
            encoders[name] = pixels, features
        else:
            camera = task.cameras[name]
            far = camera.far if camera.pipeline.depth == "metres" else None  # others are scaled already
            encoders[name] = Depth(shape, features, generator, far, options.kind), features
    return encoders


def make_critic(task: Declared, state_size: int, widths: Sequence[int], generator: torch.Generator) -> Critic:
    """Of states (..., D) that went through the normaliser "state"."""
    if not task.state_parts and not task.state_encoders:
        return Critic(state_size, widths, generator)
    parts = {name: (size, encoder.widths or ()) for name, (size, encoder) in state_layout(task, state_size).items()}
    return Critic(state_size, widths, generator, parts)


def state_layout(task: Declared, state_size: int) -> dict[str, tuple[int, Encoder]]:
    """What the critic's state is made of: part -> its size and how it is taken in. Without parts it is one: "state"."""
    parts = task.state_parts or {"state": state_size}
    return {name: (size, task.state_encoders.get(name, Encoder())) for name, size in parts.items()}


def _declared(task: Declared, source: str) -> Encoder:
    return task.encoders.get(source, Encoder())
