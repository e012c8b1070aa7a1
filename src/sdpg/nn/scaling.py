"""Images of bytes as the floats that convolutions take.

Half of what a network does to a small image is this, if it is left to tensor operations: they go through it seven
times, and convolutions on CPUs want the channels last. On CPUs it is a compiled loop, with the same result to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdpg.workers import Workers

_WHOLE, _HALVED = 1.0 / 255.0, 1.0 / (4 * 255.0)
_WORTH = 64  # images: with fewer, handing work over takes longer than doing it
_workers = Workers(1)


def scaled(x: Tensor, halved: bool) -> Tensor:
    """uint8 (B, C, H, W) -> [0, 1], with `halved` the means of 2 x 2 pixels: (B, C, H', W'), channels last."""
    if x.device.type != "cpu" or torch.jit.is_tracing():
        return _by_operations(x, halved)
    n, channels, height, width = x.shape
    if halved:
        height, width = height // 2, width // 2
    result = torch.empty(n, height, width, channels)
    _by_loops(x.contiguous().numpy(), result.numpy(), halved)
    return result.permute(0, 3, 1, 2)


def _by_operations(x: Tensor, halved: bool) -> Tensor:
    """On other devices, and in graphs that are exported. Summed in integers."""
    if halved:
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        even, odd = x[..., :height:2, :width], x[..., 1:height:2, :width]
        x = even[..., ::2].to(torch.int16) + even[..., 1::2] + odd[..., ::2] + odd[..., 1::2]
    return x.to(torch.float32, memory_format=torch.channels_last).mul_(_HALVED if halved else _WHOLE)


def _by_loops(image: np.ndarray, result: np.ndarray, halved: bool) -> None:
    """By as many threads as torch has."""
    global _workers
    loop, n = _compiled(_halve if halved else _scale), len(image)
    threads = torch.get_num_threads()
    if threads == 1 or n < _WORTH:
        loop(image, result)
        return
    if _workers.threads != threads:
        _workers = Workers(threads)
    edges = [n * i // threads for i in range(threads + 1)]
    pieces = (slice(a, b) for a, b in itertools.pairwise(edges))
    _workers.run([partial(loop, image[piece], result[piece]) for piece in pieces])


@cache
def _compiled(loop: Callable[..., None]) -> Any:
    from sdpg.compiled import jit  # 60 MB, which policies without images can do without

    return jit(loop)


def _halve(image: Any, result: Any) -> None:
    """(B, C, H, W) bytes -> (B, H / 2, W / 2, C) floats."""
    n, channels, _, _ = image.shape
    _, height, width, _ = result.shape
    line, scale = np.empty((channels, width), np.float32), np.float32(_HALVED)
    for b in range(n):
        for y in range(height):
            for c in range(channels):
                even, odd = image[b, c, 2 * y], image[b, c, 2 * y + 1]
                for x in range(width):
                    total = np.int32(even[2 * x]) + even[2 * x + 1] + odd[2 * x] + odd[2 * x + 1]
                    line[c, x] = np.float32(total) * scale
            for x in range(width):
                for c in range(channels):
                    result[b, y, x, c] = line[c, x]


def _scale(image: Any, result: Any) -> None:
    """(B, C, H, W) bytes -> (B, H, W, C) floats."""
    n, height, width, channels = result.shape
    line, scale = np.empty((channels, width), np.float32), np.float32(_WHOLE)
    for b in range(n):
        for y in range(height):
            for c in range(channels):
                for x in range(width):
                    line[c, x] = np.float32(image[b, c, y, x]) * scale
            for x in range(width):
                for c in range(channels):
                    result[b, y, x, c] = line[c, x]
