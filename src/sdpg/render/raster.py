"""Scenes on a CPU: our own rasteriser, 9 to 50 times faster than tracing rays through a tree.

Poses come from the engine (a small batch of worlds without contacts and constraints). `cover` finds the nearest
primitive of each pixel: per geom only the pixels of its screen bounds, each with the exact intersection of its ray.
`cover_triangles` puts meshes and height fields among them. `shade` and `shade_surfaces` give them colours. Pictures
equal those of `render.warp`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import Image, View
from sdpg.render.cover import cover
from sdpg.render.levels import shapes_of
from sdpg.render.meshes import Shapes
from sdpg.render.own import LOOKS, Rows, varied
from sdpg.render.scene import Geometry, Look, Poses, Scene, Solids
from sdpg.render.shade import shade
from sdpg.render.surfaces import shade_surfaces
from sdpg.render.triangles import cover_triangles
from sdpg.render.views import check_views, obstacle
from sdpg.types import MOCAP
from sdpg.workers import Workers

_SKIPPED = ("CONTACT", "CONSTRAINT", "ACTUATION", "SENSOR")  # of mjtDisableBit: poses do not need them
_POSES = {"geom_xpos": 3, "geom_xmat": 9, "cam_xpos": 3, "cam_xmat": 9, "light_xpos": 3, "light_xdir": 3}
_CHUNK = 4  # worlds that a thread takes at a time: what is known of their pixels should fit a core's own cache


@dataclass(frozen=True)
class Drawn:
    """What was drawn of a view's meshes and height fields in the last call, per picture."""

    shapes: NDArray[np.int64]  # (N,) those in the picture
    levels: NDArray[np.int64]  # (N,) the sum of their levels of detail; 0 is the finest
    triangles: NDArray[np.int64]  # (N,) that face the camera and hold the centre of a pixel


class RasterRenderer:
    """See `render.api.Renderer` for what it promises."""

    kind = "raster"
    device = torch.device("cpu")

    def __init__(
        self, model: mujoco.MjModel, num: int, views: Sequence[View], threads: int = 1, params: Sequence[str] = ()
    ):
        self.varied = varied(model, params)
        self.views, self.num, self.threads = check_views(model, num, views, threads, self.varied), num, threads
        if (reason := obstacle(model, self.views, self.varied)) is not None:
            raise SdpgError(f"the rasteriser can't draw this: {reason}; take the renderer 'warp'")
        self._model = copy.copy(model)
        for name in _SKIPPED:
            self._model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}"))
        if self.varied:  # a geom that is in the middle of its body may be elsewhere in some row
            self._model.geom_sameframe[:] = int(mujoco.mjtSameFrame.mjSAMEFRAME_NONE)
        self._batch = Batch(self._model, nsim=num, nthread=min(threads, num))
        self._rows = Rows(self._model, num, self.varied, self.device)
        self._poses = Poses(*(self._batch.bind(name).reshape(num, -1, n) for name, n in _POSES.items()))
        self._scenes = {view: Scene(self._model, view, self.varied) for view in self.views}
        every = {int(geom) for scene in self._scenes.values() for geom in scene.geoms[scene.solids]}
        self._shapes, of_geom = shapes_of(self._model, np.array(sorted(every), np.int64))
        self._solids = {view: _solids(scene, of_geom) for view, scene in self._scenes.items()}
        self._counts = {view: np.zeros((num, 3), np.int64) for view in self.views}
        self._workers = Workers(threads)
        # Loads the compiled code, or compiles it if it isn't on disk yet: now, so that all pictures take equally long.
        self.render(torch.from_numpy(np.repeat(model.qpos0[None], num, axis=0)))

    def render(self, qpos: Tensor, own: Mapping[str, Tensor] | None = None) -> dict[str, Image]:
        rows = {name: values.numpy() for name, values in self._rows(qpos, own).items()}
        for name, values in rows.items():
            if name in ("qpos", *MOCAP):
                self._batch.bind(name)[:] = values
            elif name not in LOOKS:
                self._batch.expand(name)[:] = values
        with suppress(SimulationError):  # nothing here depends on what the engine may complain of after the positions
            self._batch.forward(stage=int(mujoco.mjtStage.mjSTAGE_POS))
        return {view.camera: self._picture(view, *scene.of(rows)) for view, scene in self._scenes.items()}

    def drawn(self, camera: str) -> Drawn:
        view = next(view for view in self.views if view.camera == camera)
        return Drawn(*self._counts[view].T.copy())

    def _picture(self, view: View, geometry: Geometry, look: Look) -> Image:
        rgb = np.empty((self.num if view.rgb else 0, 3, view.height, view.width), np.uint8)
        depth = np.empty((self.num if view.depth else 0, view.height, view.width), np.float32)
        solids, solid = self._solids[view]
        job = _Job(geometry, look, self._poses, self._shapes, solids, solid, rgb, depth, self._counts[view])
        ends = pairwise([*range(0, self.num, _CHUNK), self.num])
        self._workers.run([lambda a=a, b=b: job(a, b) for a, b in ends])  # type: ignore[misc]
        return Image(torch.from_numpy(rgb) if view.rgb else None, torch.from_numpy(depth) if view.depth else None)


def _solids(scene: Scene, of_geom: dict[int, int]) -> tuple[Solids, NDArray[np.int64]]:
    """Those of a view, and of all its geoms (G,) the shape, or -1."""
    shape = np.array([of_geom.get(int(geom), -1) for geom in scene.geoms], np.int64)
    return Solids(scene.solids.astype(np.int64), shape[scene.solids]), shape


@dataclass(frozen=True)
class _Job:
    """A view of N worlds, to be drawn a few worlds at a time."""

    geometry: Geometry
    look: Look
    poses: Poses
    shapes: Shapes
    solids: Solids
    solid: NDArray[np.int64]  # (G,)
    rgb: NDArray[np.uint8]  # (N or 0, 3, H, W)
    depth: NDArray[np.float32]  # (N or 0, H, W)
    counts: NDArray[np.int64]  # (N, 3)

    def __call__(self, begin: int, end: int) -> None:
        geometry, look, poses, worlds = self.geometry, self.look, self.poses, end - begin
        grid = (worlds, geometry.ys.shape[1], geometry.xs.shape[1])
        near, whose, which = np.empty(grid, np.float32), np.empty(grid, np.int32), np.empty(grid, np.int32)
        pose = np.empty((worlds, geometry.kind.size, 15), np.float32)
        box = np.empty((worlds, geometry.kind.size, 4), np.int64)
        more = self.solids.geom.size > 0
        cover(geometry, poses, begin, end, near, whose, pose, box, self.depth[:0] if more else self.depth)
        if more:
            cover_triangles(
                geometry, self.solids, self.shapes, poses, begin, end, near, whose, which, pose, self.depth, self.counts
            )
        if len(self.rgb):
            lights = np.zeros((worlds, look.light.size, 6), np.float32)
            shade(geometry, look, poses, begin, end, near, whose, pose, box, lights, self.rgb)
            if look.sky_image >= 0 or not look.quick.all():
                shade_surfaces(
                    geometry,
                    look,
                    self.solid,
                    self.shapes,
                    poses,
                    begin,
                    end,
                    near,
                    whose,
                    which,
                    pose,
                    lights,
                    self.rgb,
                )
