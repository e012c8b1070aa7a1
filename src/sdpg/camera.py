"""What a task declares of a camera: what it renders, how an image becomes what a policy sees, and what a real one would
get wrong. Nothing here waits for torch: a robot runs the same pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from sdpg.pipeline import Pipeline as Pipeline
from sdpg.pipeline import Range

_UNCHANGED = Pipeline()


@dataclass(frozen=True)
class Sensor:
    """What a real camera does to a perfect image. Ranges are drawn uniformly when an episode begins, all else anew for
    every image; by the row, so that they do not depend on the other rows."""

    latency: Range = (0.0, 0.0)  # milliseconds from the light to the policy; it waits for a control step
    rate: float | None = None  # images a second, if fewer than control steps; between them the last one is seen again
    shift: int = 0  # pixels by which the image is moved at most, either way; its edge is repeated
    brightness: Range = (1.0, 1.0)  # colours: factor of all
    colour: float = 0.0  # colours: added to each of red, green and blue, at most; the whole range is 1
    noise: float = 0.0  # depth: standard deviation, as a share of the depth
    edge: float = 0.0  # depth: share of the pixels that are lost where depth jumps
    jump: float = 0.1  # depth: which jump to a neighbour counts, as a share of the depth
    holes: float = 0.0  # depth: share of the patches that are lost
    hole_size: int = 4  # pixels along a side of a patch

    # A depth that is lost is 0, as depth cameras tell it.


@dataclass(frozen=True)
class Camera:
    """Images of one of the scene's cameras as a source: the last `stack` frames, the newest last."""

    name: str
    width: int = 84  # as rendered; the pipeline may change it
    height: int = 84
    depth: bool = False  # metres (N, stack, H, W) float32 in place of colours (N, 3 * stack, H, W) uint8
    stack: int = 3
    groups: tuple[int, ...] = (0, 1, 2)  # the geom groups that it sees
    far: float = 5.0  # metres that a depth camera measures; to a policy, what lies beyond is as far as this
    pipeline: Pipeline = _UNCHANGED
    sensor: Sensor | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what a policy sees."""
        return self.pipeline.size(self.height, self.width)

    @property
    def channels(self) -> int:
        """Of a frame."""
        return 1 if self.depth else 3

    @property
    def floats(self) -> bool:
        """Whether a policy sees numbers in place of bytes."""
        return self.depth and self.pipeline.depth != "bytes"
