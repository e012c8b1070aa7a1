"""Any scene: the batch ray tracer of `mujoco_warp`, on a small `Data` of its own.

States go in and pictures come out as torch tensors on the renderer's device, through views of Warp's arrays: the same
code on a CPU and on a GPU, where nothing is copied to the host. On a CPU a Warp launch is serial, so the N worlds are
split over threads, each part with its own data and context. The code is compiled for the scene when the renderer is
made (seconds, the first time) and kept in Warp's cache directory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import mujoco
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import Image, View
from sdpg.render.own import Rows, varied
from sdpg.render.views import check_views
from sdpg.types import MOCAP
from sdpg.warp_engine import engine, in_order, numbered
from sdpg.workers import Workers

_STATE = ("qpos", *MOCAP)  # fields of Data that decide what is seen


@dataclass(frozen=True)
class _Canvas:
    """What the ray tracer writes for one camera, seen by torch."""

    rgb: Tensor | None  # (n, H, W, 4) uint8: blue, green, red, alpha
    depth: Tensor | None  # (n, H, W) float32, 0 where nothing is hit


@dataclass(frozen=True)
class _Part:
    """Worlds start to end: their data, and a context for each choice of geom groups."""

    start: int
    end: int
    model: Any  # shared, but for what rows have of their own
    data: Any
    rows: dict[str, Tensor]  # name -> (n, ...): state of the data, fields of the model, seen by torch
    contexts: list[Any]
    canvases: dict[str, _Canvas]  # by camera


class WarpRenderer:
    """See `render.api.Renderer` for what it promises."""

    kind = "warp"

    def __init__(
        self,
        model: mujoco.MjModel,
        num: int,
        views: Sequence[View],
        threads: int = 1,
        device: torch.device | str = "cpu",
        params: Sequence[str] = (),
    ):
        self.varied = varied(model, params)
        self.views, self.num, self.threads = check_views(model, num, views, threads, self.varied), num, threads
        self.device = numbered(device)
        self._wp, self._mjw = engine()
        self._model, self._rows = copy.copy(model), Rows(model, num, self.varied, self.device)
        self._workers = Workers(threads)
        parts = min(threads, num) if self.device.type == "cpu" else 1
        with in_order(self.device):
            try:
                self._shared = self._mjw.put_model(self._model)
                self._parts = [self._part(*ends) for ends in pairwise(num * i // parts for i in range(parts + 1))]
                for part in self._parts:  # compiles, one after the other
                    self._draw(part)
            except NotImplementedError as error:
                raise SdpgError(f"mujoco_warp can't draw this scene: {error}") from error

    def render(self, qpos: Tensor, own: Mapping[str, Tensor] | None = None) -> dict[str, Image]:
        rows = self._rows(qpos, own)  # name -> (N, ...)
        with in_order(self.device):
            for part in self._parts:
                for name, values in rows.items():
                    mine = part.rows[name]
                    mine.copy_(values[part.start : part.end].view_as(mine))
            self._workers.run([lambda part=part: self._draw(part) for part in self._parts])  # type: ignore[misc]
            return {view.camera: self._image(view) for view in self.views}

    def _part(self, start: int, end: int) -> _Part:
        data = self._mjw.make_data(self._model, nworld=end - start, nconmax=1, njmax=1)
        arrays = {name: getattr(data, name) for name in _STATE}
        model = copy.copy(self._shared)
        for name in (name for name in self.varied if name not in _STATE):
            shared = getattr(model, name)
            arrays[name] = self._wp.empty((end - start, *shared.shape[1:]), dtype=shared.dtype)
            setattr(model, name, arrays[name])
        if any(name not in _STATE for name in self.varied):
            # The engine places what is fixed to the world once and for all, unless it is not told what is.
            model.body_weldid = self._wp.full(self._model.nbody, 1, dtype=int)
        rows = {name: self._wp.to_torch(array) for name, array in arrays.items() if array.size}
        part = _Part(start, end, model, data, rows, [], {})
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
                use_precomputed_rays=not {"cam_fovy", "cam_intrinsic"} & set(self.varied),
                deterministic=True,
            )
            if "light_attenuation" in self.varied:
                context.light_attenuation_is_default = False
            part.contexts.append(context)
            part.canvases.update(self._canvases(context, views))
        return part

    def _canvases(self, context: Any, views: tuple[View, ...]) -> dict[str, _Canvas]:
        """The context's buffers (n, ...) hold the pictures of its cameras one after the other."""
        wp, found = self._wp, {}
        rgb_starts, depth_starts = context.rgb_adr.numpy().tolist(), context.depth_adr.numpy().tolist()
        for view, rgb_start, depth_start in zip(views, rgb_starts, depth_starts, strict=True):
            rgb, depth, pixels = None, None, view.width * view.height
            if view.rgb:
                packed = wp.to_torch(context.rgb_data.view(wp.int32))[:, rgb_start : rgb_start + pixels]  # 0xAARRGGBB
                rgb = packed.view(torch.uint8).unflatten(1, (view.height, view.width, 4))
            if view.depth:
                metres = wp.to_torch(context.depth_data)[:, depth_start : depth_start + pixels]
                depth = metres.unflatten(1, (view.height, view.width))
            found[view.camera] = _Canvas(rgb, depth)
        return found

    def _draw(self, part: _Part) -> None:
        model, data = part.model, part.data
        self._mjw.kinematics(model, data)
        self._mjw.com_pos(model, data)
        self._mjw.camlight(model, data)
        if self._model.nflex:
            self._mjw.flex(model, data)
        for context in part.contexts:
            self._mjw.refit_bvh(model, data, context)
            self._mjw.render(model, data, context)

    def _image(self, view: View) -> Image:
        """A copy of what all parts have drawn. By the caller's thread: torch has threads of its own."""
        shape = (view.height, view.width)
        rgb = torch.empty((self.num, 3, *shape), dtype=torch.uint8, device=self.device) if view.rgb else None
        depth = torch.empty((self.num, *shape), dtype=torch.float32, device=self.device) if view.depth else None
        for part in self._parts:
            canvas = part.canvases[view.camera]
            if rgb is not None and canvas.rgb is not None:
                for channel, byte in enumerate((2, 1, 0)):
                    rgb[part.start : part.end, channel] = canvas.rgb[..., byte]
            if depth is not None and canvas.depth is not None:
                depth[part.start : part.end] = torch.where(canvas.depth > 0, canvas.depth, torch.inf)
        return Image(rgb, depth)
