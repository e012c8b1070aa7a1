"""The renderer's written contract: N states in, N pictures per camera out. It knows nothing of branches or tasks.

Promises, each with a test that quotes it (tests/contract/test_render.py and test_meshes.py, the last one
test_renderers_agree.py):

1. A picture is a function of its own row: nothing is remembered between calls, calling twice gives the same bytes, and
   the other rows do not matter.
2. Nothing depends on the number of threads.
3. What is returned is the caller's: later calls write elsewhere. It is on the renderer's device, wherever the states
   were; on a GPU nothing goes through the host, and it is ordered by the stream that torch has as its current one.
4. Pixels: a pinhole camera with MuJoCo's axes (looks along its -z, +y is up), `fovy` is the vertical field of view (a
   camera with `sensorsize` has its own intrinsics). Row 0 is the top, column 0 the left; one ray per pixel, through its
   centre. Nothing is too near to be seen; nothing is seen beyond the model's `zfar`.
5. Depth: metres along the optical axis, not along the ray: what depth cameras, `mujoco.Renderer` and `mujoco_warp`
   give. Times `ray_length` it is the distance along the ray. Where nothing is hit it is `inf`, so that clamping to the
   far end of a sensor does what it should.
6. Colour: Lambert and Blinn-Phong from the model's lights and its headlight, textures, no shadows. Where nothing is hit
   it is the sky box, or black if there is none. A geom whose alpha is 0 is invisible, every other one is opaque. Sites,
   tendons and skins are not drawn.
7. A row that is no state (a number that is not finite, or beyond what the engine accepts) is drawn as the model's
   reference pose and spoils nothing else.
8. Rows may differ in the model fields that `make_renderer` was told of and in the poses of mocap bodies: a picture is
   that of a model with its row's values, given in `own`. What is drawn but can't differ from row to row is refused when
   the renderer is made, in a line that names the field; what isn't seen, such as a mass, does no harm. A value that is
   no number is the model's.
9. All implementations agree: on the suite's tasks the robot's pixels overlap by at least 97 %, colours differ by at
   most 4 of 255 in the mean, depths of common pixels by at most 1 %. With robots made of meshes: 96 %, 5 of 255, 1 % in
   the median and 3 % in all but a twentieth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class View:
    """What is wanted of one camera."""

    camera: str  # a camera of the model
    width: int = 84  # W
    height: int = 84  # H
    rgb: bool = True
    depth: bool = False
    groups: tuple[int, ...] = (0, 1, 2)  # the geom groups that are seen; MuJoCo's own viewers hide 3 to 5 as well


@dataclass(frozen=True)
class Image:
    """What one camera saw in N states."""

    rgb: Tensor | None  # (N, 3, H, W) uint8
    depth: Tensor | None  # (N, H, W) float32, metres along the optical axis, inf where nothing is hit


class Renderer(Protocol):
    """Made from (model, N, views, threads, device, fields that rows differ in). The model is copied: later changes to
    it are not seen."""

    kind: str  # "raster" or "warp"
    num: int  # N
    views: tuple[View, ...]
    varied: tuple[str, ...]  # fields that `own` may have: "mocap_pos", "mocap_quat", and those of the model
    threads: int
    device: torch.device  # where the pictures are

    def render(self, qpos: Tensor, own: Mapping[str, Tensor] | None = None) -> dict[str, Image]:
        """Camera -> image of the states qpos (N, nq). `own`: of some of the fields in `varied` each row's value (N,
        ...), in place of the model's."""
        ...
