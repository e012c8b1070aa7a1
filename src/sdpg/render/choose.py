"""Which renderer draws a scene, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mujoco
import torch

from sdpg.errors import SdpgError
from sdpg.render.api import Renderer, View
from sdpg.render.own import varied
from sdpg.render.views import check_views, obstacle

Kind = Literal["auto", "raster", "warp"]


def choose(
    model: mujoco.MjModel, views: Sequence[View], device: torch.device | str = "cpu", params: Sequence[str] = ()
) -> tuple[str, str]:
    """The kind that "auto" means for these views, and a clause that says why."""
    fields = varied(model, params)
    views = check_views(model, 1, views, varied=fields)
    if torch.device(device).type != "cpu":
        return "warp", "the rasteriser draws on CPU cores only"
    reason = obstacle(model, views, fields)
    if reason is None:
        return "raster", "all of the scene can be rasterised"
    return "warp", reason


def make_renderer(
    model: mujoco.MjModel,
    num: int,
    views: Sequence[View],
    threads: int = 1,
    kind: Kind = "auto",
    device: torch.device | str = "cpu",
    params: Sequence[str] = (),
) -> Renderer:
    """N = num images at a time, on `device`, of rows that may differ in the model fields `params`. Takes seconds when a
    renderer, a mesh, or a scene on "warp" is used for the first time on a machine: code is compiled, levels of detail
    are made (`progress.listen` tells how far that is), and both are kept on disk."""
    # Imported here: what is not used need not be there, and takes its time to import.
    if kind == "auto":
        kind = choose(model, views, device, params)[0]  # type: ignore[assignment]
    if kind == "raster":
        if torch.device(device).type != "cpu":
            raise SdpgError("the rasteriser draws on CPU cores only; take the renderer 'warp'")
        from sdpg.render.raster import RasterRenderer

        return RasterRenderer(model, num, views, threads, params)
    if kind == "warp":
        from sdpg.render.warp import WarpRenderer

        return WarpRenderer(model, num, views, threads, device, params)
    raise SdpgError(f"unknown renderer '{kind}'; give auto, raster or warp")
