"""From an image to what a policy sees: one small pure function for each stage.

They take torch tensors or numpy arrays and give the same bits for both, on every device: sums go one tap after the
other, nothing is divided, and nothing here imports either library, so that a robot needs no torch. Images are (..., H,
W): uint8 colours, or float32 metres. This file stands alone: the runtime for robots ships it as it is.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

Resize = Literal["bicubic", "bilinear", "area"]
Range = tuple[float, float]

Array = Any
"""A torch.Tensor or a numpy.ndarray."""

Taps = tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]
"""Of a resized axis: the first pixel that each new one is made of, then the second ...: their indices and weights."""


@dataclass(frozen=True)
class Pipeline:
    """From an image to what a policy sees, in this order; on a robot the same as in training."""

    crop: tuple[int, int, int, int] = (0, 0, 0, 0)  # pixels cut off: top, bottom, left, right
    limit: Range | None = None  # depth: metres, nearer and farther is as near and as far as this
    width: int | None = None  # to which the image is resized; None: as wide as it is
    height: int | None = None
    resize: Resize = "area"
    depth: Literal["metres", "centred", "bytes"] = "metres"
    """How depth is told: float32 metres; from -0.5 to 0.5 over the limit; or as bytes from 0 to 255 over the limit,
    which go through the encoder of colours."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that are left of an image."""
        top, bottom, left, right = self.crop
        height, width = height - top - bottom, width - left - right
        return self.height or height, self.width or width


def processed(image: Array, pipeline: Pipeline, depth: bool) -> Array:
    """All stages of a camera's pipeline."""
    if pipeline == _IDENTITY:
        return image
    height, width = pipeline.size(*image.shape[-2:])
    image = cropped(image, *pipeline.crop)
    if depth and pipeline.limit is not None:
        image = limited(image, pipeline.limit)
    image = resized(image, height, width, pipeline.resize)
    if not depth:
        return image
    if pipeline.limit is not None:
        image = limited(image, pipeline.limit)  # bicubic curves go beyond
        if pipeline.depth == "centred":
            image = centred(image, pipeline.limit)
        elif pipeline.depth == "bytes":
            image = as_bytes(image, pipeline.limit)
    return image


_IDENTITY = Pipeline()


def cropped(image: Array, top: int, bottom: int, left: int, right: int) -> Array:
    height, width = image.shape[-2:]
    return image[..., top : height - bottom, left : width - right]


def limited(depth: Array, limit: Range) -> Array:
    """Metres within the limit; what is infinitely far, too."""
    return depth.clip(*limit)


def centred(depth: Array, limit: Range) -> Array:
    """Metres within the limit -> -0.5 to 0.5."""
    return (depth - limit[0]) * (1.0 / (limit[1] - limit[0])) - 0.5


def as_bytes(depth: Array, limit: Range) -> Array:
    """Metres within the limit -> 0 to 255, the nearest of them."""
    return _to_bytes(((depth - limit[0]) * (1.0 / (limit[1] - limit[0]))) * 255.0)


def resized(image: Array, height: int, width: int, how: Resize) -> Array:
    """(..., H, W) -> (..., height, width), rows first. Bytes stay bytes: rounded once, at the end."""
    if image.shape[-2:] == (height, width):
        return image
    bytes_ = "uint8" in str(image.dtype)
    out = _to_floats(image) if bytes_ else image
    out = _resized_rows(out, taps(out.shape[-2], height, how))
    out = _resized_columns(out, taps(out.shape[-1], width, how))
    return _to_bytes(out.clip(0.0, 255.0)) if bytes_ else out


def _resized_rows(image: Array, along: Taps) -> Array:
    total = None
    for index, weight in along:
        part = image[..., list(index), :] * _like(image, weight)[:, None]
        total = part if total is None else total + part
    return image if total is None else total


def _resized_columns(image: Array, along: Taps) -> Array:
    total = None
    for index, weight in along:
        part = image[..., list(index)] * _like(image, weight)
        total = part if total is None else total + part
    return image if total is None else total


@functools.cache
def taps(size: int, new: int, how: Resize) -> Taps:
    """What each of `new` pixels along an axis of `size` is made of; none if nothing changes.

    Pixels are areas, their centres half a pixel from the edge; beyond the edge lies the last pixel again. "bilinear"
    and "bicubic" (a = -0.75) look at the pixels around a new one's centre, "area" takes the mean of what it covers.
    """
    if size == new:
        return ()
    made = [_around(i, size / new, how) for i in range(new)]
    most = max(map(len, made))
    columns = []
    for t in range(most):
        # A pixel that is made of fewer takes part of nothing: its last one again, with a weight of 0.
        column = [each[t] if t < len(each) else (each[-1][0], 0.0) for each in made]
        columns.append((tuple(min(max(i, 0), size - 1) for i, _ in column), tuple(w for _, w in column)))
    return tuple(columns)


def _around(pixel: int, scale: float, how: Resize) -> list[tuple[int, float]]:
    """Old pixels that a new one is made of, with their weights."""
    if how == "area":
        begin, end = pixel * scale, (pixel + 1) * scale
        first, last = math.floor(begin + 1e-9), math.ceil(end - 1e-9)
        return [(i, (min(end, i + 1) - max(begin, i)) / scale) for i in range(first, last)]
    centre = (pixel + 0.5) * scale - 0.5
    first = math.floor(centre)
    t = centre - first
    if how == "bilinear":
        return [(first, 1.0 - t), (first + 1, t)]
    return [(first + k, _cubic(abs(t - k))) for k in (-1, 0, 1, 2)]


def _cubic(x: float, a: float = -0.75) -> float:
    """Keys' kernel."""
    if x <= 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a


def _like(image: Array, values: tuple[float, ...]) -> Array:
    """Numbers as an array of the image's library, type and device."""
    if hasattr(image, "new_tensor"):
        return image.new_tensor(values)
    import numpy as np

    return np.asarray(values, image.dtype)


def _to_floats(image: Array) -> Array:
    return image.float() if hasattr(image, "new_tensor") else image.astype("float32")


def _to_bytes(image: Array) -> Array:
    """Rounded, halves to the even number."""
    rounded = image.round()
    return rounded.byte() if hasattr(image, "new_tensor") else rounded.astype("uint8")
