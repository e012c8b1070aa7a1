"""Milliseconds an image takes through each encoder: to act, and to learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from sdpg.bench import machine
from sdpg.bench.sim import timed
from sdpg.machine import use_threads
from sdpg.nn.encoders import LAYERS, Pixels


@dataclass(frozen=True)
class Options:
    """Time the encoders of images, float32."""

    batch: int = 256
    """Images at a time."""
    size: int = 84
    """Side of an image in pixels; three frames of three colours."""
    features: int = 128
    repeats: int = 5
    threads: int = 1
    """CPU threads."""


def run(options: Options) -> dict[str, Any]:
    use_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    shape = (9, options.size, options.size)
    images = torch.randint(0, 256, (options.batch, *shape), dtype=torch.uint8, generator=generator)
    rows = {}
    for kind in LAYERS:
        encoder = Pixels(shape, kind, options.features, generator)  # type: ignore[arg-type]

        @torch.no_grad()
        def act(encoder: Pixels = encoder) -> None:
            encoder(images)

        def learn(encoder: Pixels = encoder) -> None:
            encoder.zero_grad()
            encoder(images).square().mean().backward()

        rows[kind] = {"forward_ms": _per_image(act, options), "with_gradients_ms": _per_image(learn, options)}
    return {"kind": "encoder", "batch": options.batch, "machine": machine.describe(options.threads), "encoders": rows}


def _per_image(work: Callable[[], None], options: Options) -> float:
    work()  # the first call prepares its kernels
    return median(timed(work) for _ in range(options.repeats)) / options.batch * 1e3
