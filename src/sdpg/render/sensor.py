"""What a real camera does to a perfect image: one small pure function for each effect, of an image and random numbers.

Time is counted in control steps: an image is taken in one of them and seen `lag` of them later.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sdpg.camera import Camera, Sensor
from sdpg.rng import RowRng

LOST = 0.0  # metres: how depth cameras tell that they do not know
_MICRO = 1_000_000


def sensed(image: Tensor, camera: Camera, looks: dict[str, Tensor], rng: RowRng) -> Tensor:
    """Images (n, C, H, W) of rows as their cameras take them. `looks`: what `begun` drew for them; `rng` is theirs."""
    sensor = camera.sensor
    assert sensor is not None
    if sensor.shift:
        image = moved(image, looks["shift"])
    if not camera.depth:
        return recoloured(image, looks["brightness"], looks["colour"]) if _recolours(sensor) else image
    size = image.shape[1:]
    lost = torch.zeros_like(image, dtype=torch.bool)
    if sensor.edge:
        lost |= edges(image, sensor.jump) & (rng.uniform(0.0, 1.0, *size) < sensor.edge)
    if sensor.holes:
        grid = [math.ceil(n / sensor.hole_size) for n in size[1:]]
        lost |= enlarged(rng.uniform(0.0, 1.0, 1, *grid) < sensor.holes, sensor.hole_size, size[1], size[2])
    if sensor.noise:
        image = image * (1.0 + sensor.noise * rng.normal(*size)).clamp(min=1e-3)  # what is infinite stays so
    return torch.where(lost, LOST, image) if sensor.edge or sensor.holes else image


def begun(sensor: Sensor, rng: RowRng, step_seconds: float) -> dict[str, Tensor]:
    """What stays as it is for an episode: name -> (n, ...), drawn by the row."""
    drawn = {}
    if sensor.latency[1] > 0.0:
        milliseconds = rng.uniform(*sensor.latency, 1)[:, 0]
        drawn["lag"] = steps_late(milliseconds, step_seconds)
    if sensor.shift:
        drawn["shift"] = rng.integers(2 * sensor.shift + 1, 2) - sensor.shift
    if _recolours(sensor):
        drawn["brightness"] = rng.uniform(*sensor.brightness, 1)
        drawn["colour"] = rng.uniform(-255.0 * sensor.colour, 255.0 * sensor.colour, 3)
    return drawn


def _recolours(sensor: Sensor) -> bool:
    return sensor.brightness != (1.0, 1.0) or sensor.colour > 0.0


def steps_late(milliseconds: Tensor, step_seconds: float) -> Tensor:
    """Control steps until an image of this latency is there: it is waited for."""
    return (milliseconds * (1e-3 / step_seconds) - 1e-6).ceil().long().clamp(min=0)


def most_late(sensor: Sensor, step_seconds: float) -> int:
    return int(steps_late(torch.tensor(sensor.latency[1]), step_seconds))


def taken(age: Tensor, rate: float | None, step_seconds: float) -> Tensor:
    """(n,) bool: whether an image is taken `age` (n,) control steps after the episode's first one. In whole
    microseconds, which do not depend on rounding."""
    if rate is None:
        return torch.ones_like(age, dtype=torch.bool)
    step, period = round(step_seconds * _MICRO), round(_MICRO / rate)
    return (age * step) // period > ((age - 1) * step) // period  # whole numbers are rounded down, -1 // period to -1


def moved(image: Tensor, by: Tensor) -> Tensor:
    """(n, C, H, W) by (n, 2) pixels down and right; the edge is repeated. Its channels are last in memory."""
    along = [
        (torch.arange(size, device=image.device) - by[:, axis, None]).clamp(0, size - 1)  # (n, size)
        for axis, size in enumerate(image.shape[-2:])
    ]
    row = torch.arange(len(image), device=image.device)[:, None, None]
    return image[row, :, along[0][:, :, None], along[1][:, None, :]].permute(0, 3, 1, 2)  # from (n, H, W, C)


def recoloured(image: Tensor, brightness: Tensor, colour: Tensor) -> Tensor:
    """uint8 (n, 3, H, W) times (n, 1), plus (n, 3) of 255."""
    return (image.float() * brightness[:, :, None, None] + colour[:, :, None, None]).clamp(0.0, 255.0).round().byte()


def edges(depth: Tensor, jump: float) -> Tensor:
    """(n, C, H, W) bool: pixels that are nearer or farther than a neighbour by more than this share of their depth."""
    found = torch.zeros_like(depth, dtype=torch.bool)
    for axis in (-2, -1):
        n = depth.shape[axis] - 1
        one, other = depth.narrow(axis, 0, n), depth.narrow(axis, 1, n)
        far_apart = (one - other).abs() > jump * torch.minimum(one, other)  # where both are infinite there is no edge
        found.narrow(axis, 0, n).logical_or_(far_apart)
        found.narrow(axis, 1, n).logical_or_(far_apart)
    return found


def enlarged(patches: Tensor, size: int, height: int, width: int) -> Tensor:
    """(n, C, h, w) of patches -> (n, C, height, width) of pixels."""
    return patches.repeat_interleave(size, -2).repeat_interleave(size, -1)[..., :height, :width]
