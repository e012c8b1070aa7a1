"""The policy network that PPO, A2C and DAgger share with SDPG: its options, how it is built, what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from sdpg.algos.api import AlgoCfg, Context, Shapes
from sdpg.nn.declared import EncoderOptions, make_normalizers, policy_encoders
from sdpg.nn.encoders import Convolutions, Origin, image_cost, use_bfloat16
from sdpg.nn.modules import Actor, Exploration, Normalizer


@dataclass(frozen=True)
class NetworkCfg(AlgoCfg):
    """Options of the policy network, named as SDPG's."""

    encoder: Convolutions = "drqv2"
    """Convolutions for images: drqv2, nature, half (on images of half the size), small (and half as wide)."""
    image_origin: Origin = "grey"
    """What is subtracted from an image: grey, or the run's first image."""
    image_motion: bool = False
    """Show the convolutions the newest frame and the changes between frames, in place of a stack."""
    encoder_features: int = 128
    """Features that an image is encoded into."""
    vector_widths: tuple[int, ...] = ()
    """Widths of an MLP encoder for vector sources; none: they are passed through."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Of the encoders; auto: bfloat16 for images where the machine has it in hardware."""
    actor_widths: tuple[int, ...] = (128, 64, 32)
    """Widths of the policy's layers, after its encoders."""
    output_gain: float = 0.01
    """Gain of the orthogonal initialisation of the policy's mean."""

    def image_memory(self, shapes: Shapes) -> tuple[int, int]:
        """Parameters of the image encoders, and bytes that one sample takes on its way there and back."""
        parameters, sample = 0, 0
        for image in shapes.images:
            shape = (image.channels, image.height, image.width)
            cost = image_cost(shape, image.depth, self.encoder, image.features or self.encoder_features)
            parameters += cost.parameters
            sample += image.bytes + 4 * cost.kept  # drawn from the segment as bytes; as floats
        return parameters, sample


def make_actor(
    cfg: NetworkCfg, context: Context, exploration: Exploration, initial_std: float, generator: torch.Generator
) -> tuple[Actor, dict[str, Normalizer]]:
    """The policy, and the normalisers of its vector sources and, for a critic, of the state; on the CPU."""
    env = context.env
    obs = env.observe()
    seen = {name: obs.sources[name] for name in context.sources}
    normalizers = make_normalizers(env.task, seen, obs.state.shape[-1])
    options = EncoderOptions(cfg.vector_widths, cfg.encoder_features, cfg.encoder, cfg.image_origin, cfg.image_motion)
    encoders = policy_encoders(env.task, seen, normalizers, options, generator)
    actor = Actor(
        encoders, cfg.actor_widths, env.task.action_size, exploration, math.log(initial_std),
        cfg.output_gain, generator, use_bfloat16(cfg.precision, seen.values()),
    )  # fmt: skip
    return actor, normalizers
