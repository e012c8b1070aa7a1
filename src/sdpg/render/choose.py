"""Which renderer draws a scene, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mujoco

from sdpg.errors import SdpgError
from sdpg.render.api import Renderer, View
from sdpg.render.views import check_views, obstacle

Kind = Literal["auto", "raster", "warp"]


def choose(model: mujoco.MjModel, views: Sequence[View]) -> tuple[str, str]:
    """The kind that "auto" means for these views, and a clause that says why."""
    reason = obstacle(model, check_views(model, 1, views))
    if reason is None:
        return "raster", "the scene consists of primitives"
    return "warp", reason


def make_renderer(
    model: mujoco.MjModel, num: int, views: Sequence[View], threads: int = 1, kind: Kind = "auto"
) -> Renderer:
    """N = num images at a time. Takes seconds when a renderer, or a scene on "warp", is used for the first time on a
    machine: code is compiled, and kept on disk."""
    # Imported here: what is not used need not be there, and takes its time to import.
    if kind == "auto":
        kind = choose(model, views)[0]  # type: ignore[assignment]
    if kind == "raster":
        from sdpg.render.raster import RasterRenderer

        return RasterRenderer(model, num, views, threads)
    if kind == "warp":
        from sdpg.render.warp import WarpRenderer

        return WarpRenderer(model, num, views, threads)
    raise SdpgError(f"unknown renderer '{kind}'; give auto, raster or warp")
