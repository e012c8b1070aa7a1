"""Encoders: one per source, their features are concatenated. Images stay uint8 until they are in here."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sdpg.errors import SdpgError
from sdpg.nn.modules import linear
from sdpg.nn.scaling import scaled

Convolutions = Literal["drqv2", "nature", "half", "small"]
Origin = Literal["grey", "first"]

# (channels, kernel, stride) of each layer; no padding, ReLU after each.
LAYERS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "drqv2": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),  # the paper's
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "half": ((32, 4, 2), (64, 4, 2), (64, 3, 1)),  # the same on images of half the size
    "small": ((16, 4, 2), (32, 4, 2), (32, 3, 1)),  # and at half the width
}
DEPTH_LAYERS = ((32, 5, 1), (32, 2, 2), (64, 3, 1))  # the second one is a pooling
HALVED = frozenset({"half", "small"})
MOTION_GAIN = 2.0  # about makes up for a change being smaller than a frame


class _Motion(nn.Conv2d):
    """A convolution of the newest frame and of the changes from each frame to the next.

    What the frames of a stack have in common is several times as large as what tells them apart, and a network that is
    given them as they are learns of motion late. The frames are not touched: their change of basis is one of the
    weights, which are few.
    """

    changes: Tensor  # (C, C): frames, oldest first, to changes, oldest first, and the newest frame

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, colours: int = 3):
        """`colours`: channels of a frame."""
        super().__init__(inputs, outputs, kernel, stride)
        frames = inputs // colours
        later = torch.eye(frames).roll(1, dims=1)
        basis = MOTION_GAIN * (later - torch.eye(frames))
        basis[-1] = torch.eye(frames)[-1]
        self.register_buffer("changes", torch.kron(basis, torch.eye(colours)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, torch.einsum("oihw,ij->ojhw", self.weight, self.changes), self.bias)


def _conv(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    generator: torch.Generator | None,
    make: Callable[[int, int, int, int], nn.Conv2d] = nn.Conv2d,
) -> nn.Conv2d:
    layer = make(inputs, outputs, kernel, stride)
    if layer.weight.is_meta:  # only its shape is of interest
        return layer
    nn.init.orthogonal_(layer.weight, math.sqrt(2), generator=generator)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def least_size(kind: Convolutions | None) -> int:
    """Pixels along a side that leave one behind the last layer; None: of the paper's depth encoder."""
    least = 1
    for _, kernel, stride in reversed(DEPTH_LAYERS if kind is None else LAYERS[kind]):
        least = (least - 1) * stride + kernel
    return 2 * least if kind in HALVED else least


def require_large_enough(height: int, width: int, kind: Convolutions | None) -> None:
    least = least_size(kind)
    if min(height, width) < least:
        encoder = "the depth encoder" if kind is None else f"the encoder '{kind}'"
        raise SdpgError(
            f"images of {width} x {height} pixels are too small for {encoder}: "
            f"give the camera a width and height of at least {least}"
        )


def convolutions(
    shape: Sequence[int],
    kind: Convolutions,
    generator: torch.Generator | None,
    motion: bool = False,
    colours: int = 3,
) -> tuple[nn.Sequential, int]:
    """Layers for `scaled` images of this shape (C, H, W), and how many numbers they put out for each. `colours`:
    channels of a frame, whose `motion` counts."""
    channels, height, width = shape
    require_large_enough(height, width, kind)
    if kind in HALVED:
        height, width = height // 2, width // 2
    layers: list[nn.Module] = []
    for outputs, kernel, stride in LAYERS[kind]:
        make = partial(_Motion, colours=colours) if motion and not layers else nn.Conv2d
        layers += [_conv(channels, outputs, kernel, stride, generator, make), nn.ReLU()]
        channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers), channels * height * width


class Pixels(nn.Module):
    """uint8 images (B, C, H, W) less `origin` -> convolutions -> Linear, LayerNorm, tanh: (B, features)."""

    origin: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        kind: Convolutions,
        features: int,
        generator: torch.Generator | None,
        motion: bool = False,
        colours: int = 3,
    ):
        super().__init__()
        self.halved = kind in HALVED
        self.convolutions, flat = convolutions(shape, kind, generator, motion, colours)
        half = 2 if self.halved else 1
        grey = torch.full((1, shape[0], shape[1] // half, shape[2] // half), 0.5)
        self.register_buffer("origin", grey.to(memory_format=torch.channels_last))
        self.projection = linear(flat, features, generator, gain=1.0)
        self.norm = nn.LayerNorm(features)

    def look_from(self, image: Tensor) -> None:
        """Make `image` (C, H, W) the origin. What all images share is most of each of them: left in, it drowns what
        tells them apart, and the normalised features of a new network hardly depend on the state."""
        self.origin.copy_(scaled(image[None], self.halved))

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(scaled(x, self.halved).sub_(self.origin))
        return torch.tanh(self.norm(self.projection(x.flatten(1)).float()))


class Depth(nn.Module):
    """Depth images (B, C, H, W) -> (B, features): metres, scaled by `far` to [-0.5, 0.5]; without it, as they are.

    The paper's layers take 30 million multiply-adds an image of 58 x 87. The kinds for images of half the size look at
    means of 2 x 2 depths, by the layers that they have for colours: 2.6 and 0.7 million. What is too small for them has
    the paper's."""

    def __init__(
        self,
        shape: Sequence[int],
        features: int,
        generator: torch.Generator | None,
        far: float | None,
        kind: Convolutions = "drqv2",
    ):
        super().__init__()
        channels, height, width = shape
        self.far = far
        if kind in HALVED and min(height, width) >= least_size(kind):
            layers, flat = convolutions(shape, kind, generator)
            self.convolutions = nn.Sequential(nn.AvgPool2d(2), layers)
        else:
            require_large_enough(height, width, None)
            first, second = _conv(channels, 32, 5, 1, generator), _conv(32, 64, 3, 1, generator)
            self.convolutions = nn.Sequential(first, nn.MaxPool2d(2), nn.ELU(), second, nn.ELU())
            flat = 64 * ((height - 4) // 2 - 2) * ((width - 4) // 2 - 2)
        self.head = nn.Sequential(linear(flat, 128, generator), nn.ELU(), linear(128, features, generator), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        if self.far is not None:
            x = (x / self.far).clamp(0.0, 1.0) - 0.5
        return self.head(self.convolutions(x).flatten(1)).float()


@dataclass(frozen=True)
class ImageCost:
    """Of the encoder of one image source: its parameters; of one sample, the numbers that its layers put out, the
    multiply-adds that these take, and the numbers that are in memory at most while its gradient is made."""

    parameters: int
    outputs: int
    multiply_adds: int
    kept: int


def image_cost(shape: Sequence[int], depth: bool, kind: Convolutions, features: int) -> ImageCost:
    counts: list[tuple[int, int]] = []

    def count(layer: nn.Module, inputs: object, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append((output.numel(), output.numel() * weight[0].numel()))

    with torch.device("meta"):  # shapes without memory
        encoder = Depth(shape, features, None, 1.0, kind) if depth else Pixels(shape, kind, features, None)
        for layer in encoder.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        encoder(torch.zeros(1, *shape, dtype=torch.float32 if depth else torch.uint8))
    outputs, multiply_adds = map(sum, zip(*counts, strict=True))
    inputs = math.prod(shape) // (4 if kind in HALVED else 1)  # as floats, already halved
    # What goes in and what each ReLU puts out is kept; beside it, there is one layer before its ReLU, and its gradient.
    # Pooling and ELU keep what goes in and what comes out.
    kept = inputs + (3 * outputs if depth else outputs + 2 * max(size for size, _ in counts))
    return ImageCost(sum(p.numel() for p in encoder.parameters()), outputs, multiply_adds, kept)


def use_bfloat16(precision: Literal["auto", "float32", "bfloat16"], sources: Iterable[Tensor]) -> bool:
    """auto: for images where the hardware multiplies bfloat16; elsewhere it is emulated and slower than float32."""
    if precision != "auto":
        return precision == "bfloat16"
    images = [source for source in sources if source.dim() == 4]
    if not images:
        return False
    if images[0].device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    # Of an x86 with AVX-512 alone oneDNN says yes, too, and emulates.
    return platform.machine() not in ("x86_64", "AMD64") or torch.cpu._is_avx512_bf16_supported()
