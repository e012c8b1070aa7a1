"""Any scene: the batch ray tracer of `mujoco_warp`, on a small `Data` of its own.

On a CPU a Warp launch is serial, so the N worlds are split over threads, each part with its own data and context. The
code is compiled for the scene when the renderer is made (seconds, the first time) and kept in Warp's cache directory.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import Image, View
from sdpg.render.views import check_views, clean, mocap
from sdpg.render.workers import Workers
from sdpg.warp_engine import engine


@dataclass
class _Part:
    """Worlds start to end: their data, and a context for each choice of geom groups."""

    start: int
    end: int
    data: Any
    contexts: list[tuple[tuple[View, ...], Any]] = field(default_factory=list)


class WarpRenderer:
    """See `render.api.Renderer` for what it promises."""

    kind = "warp"

    def __init__(self, model: mujoco.MjModel, num: int, views: Sequence[View], threads: int = 1, device: str = "cpu"):
        self.views, self.num, self.threads = check_views(model, num, views, threads), num, threads
        self._wp, self._mjw = engine()
        self._model, self._device = copy.copy(model), device
        self._workers = Workers(threads)
        parts = min(threads, num) if device == "cpu" else 1
        with self._wp.ScopedDevice(device):
            try:
                self._shared = self._mjw.put_model(self._model)
                self._parts = [self._part(*ends) for ends in pairwise(num * i // parts for i in range(parts + 1))]
                for part in self._parts:  # compiles, one after the other
                    self._draw(part)
            except NotImplementedError as error:
                raise SdpgError(f"mujoco_warp can't draw this scene: {error}") from error

    def render(
        self, qpos: Tensor, mocap_pos: Tensor | None = None, mocap_quat: Tensor | None = None
    ) -> dict[str, Image]:
        state = {
            "qpos": clean(self._model, qpos, self.num),  # (N, nq)
            "mocap_pos": mocap(self._model, mocap_pos, "pos", self.num),
            "mocap_quat": mocap(self._model, mocap_quat, "quat", self.num),
        }
        images = {view.camera: _blank(view, self.num) for view in self.views}

        def job(part: _Part) -> None:
            for name, values in state.items():
                if values.size:
                    getattr(part.data, name).assign(values[part.start : part.end].astype(np.float32))
            self._draw(part)
            for views, context in part.contexts:
                _read(part, views, context, images)

        with self._wp.ScopedDevice(self._device):  # the default device is the process's, not the thread's
            self._workers.run([lambda part=part: job(part) for part in self._parts])  # type: ignore[misc]
        return images

    def _part(self, start: int, end: int) -> _Part:
        part = _Part(start, end, self._mjw.make_data(self._model, nworld=end - start, nconmax=1, njmax=1))
        for groups, same in groupby(sorted(self.views, key=lambda v: v.groups), key=lambda v: v.groups):
            views = tuple(same)
            context = self._mjw.create_render_context(
                self._model,
                nworld=end - start,
                cam_active=[view.camera for view in views],
                cam_res=[(view.width, view.height) for view in views],
                render_rgb=[view.rgb for view in views],
                render_depth=[view.depth for view in views],
                render_seg=False,
                enabled_geom_groups=list(groups),
                render_skybox=True,
                use_shadows=False,
                deterministic=True,
            )
            part.contexts.append((views, context))
        return part

    def _draw(self, part: _Part) -> None:
        model, data = self._shared, part.data
        self._mjw.kinematics(model, data)
        self._mjw.com_pos(model, data)
        self._mjw.camlight(model, data)
        if self._model.nflex:
            self._mjw.flex(model, data)
        for _, context in part.contexts:
            self._mjw.refit_bvh(model, data, context)
            self._mjw.render(model, data, context)


def _blank(view: View, num: int) -> Image:
    shape = (view.height, view.width)
    return Image(
        torch.empty((num, 3, *shape), dtype=torch.uint8) if view.rgb else None,
        torch.empty((num, *shape), dtype=torch.float32) if view.depth else None,
    )


def _read(part: _Part, views: tuple[View, ...], context: Any, images: dict[str, Image]) -> None:
    """The context's buffers hold the pictures of its cameras one after the other."""
    num = part.end - part.start
    rgb_adr, depth_adr = context.rgb_adr.numpy(), context.depth_adr.numpy()
    for i, view in enumerate(views):
        image, pixels = images[view.camera], view.width * view.height
        if image.rgb is not None:
            packed = context.rgb_data.numpy()[:, rgb_adr[i] : rgb_adr[i] + pixels]  # (n, H W) 0xAARRGGBB
            rgb = image.rgb.numpy()[part.start : part.end].reshape(num, 3, pixels)
            for channel, shift in enumerate((16, 8, 0)):
                rgb[:, channel] = packed >> shift  # uint8 keeps the lowest byte
        if image.depth is not None:
            metres = context.depth_data.numpy()[:, depth_adr[i] : depth_adr[i] + pixels]  # (n, H W), 0: nothing hit
            depth = image.depth.numpy()[part.start : part.end].reshape(num, pixels)
            depth[:] = np.where(metres > 0, metres, np.inf)
