"""What every renderer does with its model, its views and its states before it draws."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import View

PRIMITIVES = {"PLANE", "SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX"}  # of mjtGeom: what the rasteriser draws
LARGEST = 1e10  # mjMAXVAL: the engine calls a coordinate beyond this bad


def camera_id(model: mujoco.MjModel, name: str) -> int:
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
    if found < 0:
        known = [model.camera(i).name for i in range(model.ncam)]
        raise SdpgError(f"the scene has no camera '{name}'; it has: {', '.join(filter(None, known)) or 'none'}")
    return found


def check_views(model: mujoco.MjModel, num: int, views: Sequence[View], threads: int = 1) -> tuple[View, ...]:
    if num < 1 or threads < 1:
        raise SdpgError(f"{num} images on {threads} threads can't be rendered; give at least 1 of both")
    if not views:
        raise SdpgError("a renderer needs at least one view")
    for view in views:
        camera_id(model, view.camera)
        if view.width < 1 or view.height < 1:
            raise SdpgError(f"camera '{view.camera}': an image of {view.width}x{view.height} pixels can't be rendered")
        if not (view.rgb or view.depth):
            raise SdpgError(f"camera '{view.camera}': ask for rgb, depth or both")
        if not len(seen(model, view.groups)) and not model.nflex:
            raise SdpgError(
                f"camera '{view.camera}': nothing in the geom groups {view.groups} is visible; choose others"
            )
    names = [view.camera for view in views]
    if len(set(names)) < len(names):
        raise SdpgError(f"a camera can have one view; given: {', '.join(names)}")
    return tuple(views)


def seen(model: mujoco.MjModel, groups: Sequence[int]) -> np.ndarray:
    """The geoms (n,) of these groups that are not invisible, in the model's order."""
    return np.flatnonzero(np.isin(model.geom_group, list(groups)) & (colours(model)[:, 3] > 0))


def colours(model: mujoco.MjModel) -> np.ndarray:
    """(ngeom, 4): as MuJoCo has it, a material's colour unless the geom's own is not the default."""
    rgba = np.array(model.geom_rgba, np.float32)
    default = (rgba == np.array([0.5, 0.5, 0.5, 1.0], np.float32)).all(axis=1) & (model.geom_matid >= 0)
    rgba[default] = model.mat_rgba[model.geom_matid[default]]
    return rgba


def textures(model: mujoco.MjModel, geoms: np.ndarray) -> np.ndarray:
    """(G,) the texture that colours each geom, or -1."""
    if not model.nmat:
        return np.full(len(geoms), -1)
    materials = model.geom_matid[geoms]
    return np.where(materials >= 0, model.mat_texid[materials, int(mujoco.mjtTextureRole.mjTEXROLE_RGB)], -1)


def obstacle(model: mujoco.MjModel, views: Sequence[View]) -> str | None:
    """Why the rasteriser can't draw these views: a clause; None: it can."""
    if model.nflex:
        return "the scene has flexible bodies"
    for view in views:
        if model.cam_projection[camera_id(model, view.camera)] == mujoco.mjtProjection.mjPROJ_ORTHOGRAPHIC:
            return f"camera '{view.camera}' is orthographic"
        geoms = seen(model, view.groups)
        for g, texture in zip(geoms, textures(model, geoms), strict=True):
            kind = mujoco.mjtGeom(model.geom_type[g]).name.removeprefix("mjGEOM_")
            name = model.geom(g).name or str(g)
            if kind not in PRIMITIVES:
                return f"geom '{name}' is a {kind.lower()}"
            if texture >= 0 and (kind != "PLANE" or model.tex_type[texture] != mujoco.mjtTexture.mjTEXTURE_2D):
                return f"geom '{name}', a {kind.lower()}, has a texture that only planes can have here"
    return None


def frustum(model: mujoco.MjModel, view: View) -> tuple[float, float, float, float]:
    """Left, right, bottom, top of the picture on the plane at distance 1 before the camera."""
    camera = camera_id(model, view.camera)
    aspect = view.width / view.height
    sensor_w, sensor_h = (float(size) for size in model.cam_sensorsize[camera])
    if sensor_h == 0.0:
        top = float(np.tan(np.radians(model.cam_fovy[camera]) / 2))
        return -top * aspect, top * aspect, -top, top
    # Intrinsics: the part of the sensor that has the picture's aspect.
    fx, fy, cx, cy = (float(value) for value in model.cam_intrinsic[camera])
    if aspect > sensor_w / sensor_h:
        sensor_h = sensor_w / aspect
    else:
        sensor_w = sensor_h * aspect
    return (cx - sensor_w / 2) / fx, (cx + sensor_w / 2) / fx, -(cy + sensor_h / 2) / fy, (sensor_h / 2 - cy) / fy


def pixel_coordinates(model: mujoco.MjModel, view: View) -> tuple[np.ndarray, np.ndarray]:
    """x (W,), y (H,) float64: the ray of pixel (i, j) goes along (x[j], y[i], -1) in the camera's frame."""
    left, right, bottom, top = frustum(model, view)
    x = left + (right - left) * (np.arange(view.width) + 0.5) / view.width
    y = top + (bottom - top) * (np.arange(view.height) + 0.5) / view.height
    return x, y


def ray_length(model: mujoco.MjModel, view: View) -> Tensor:
    """(H, W) float32: times depth it is the distance from the camera along each pixel's ray."""
    x, y = pixel_coordinates(model, view)
    return torch.from_numpy(np.sqrt(1 + x[None, :] ** 2 + y[:, None] ** 2).astype(np.float32))


class States:
    """What renderers make of the N states that they are given: float64 rows on `device`, by field of MjData."""

    def __init__(self, model: mujoco.MjModel, num: int, device: torch.device):
        bodies = np.flatnonzero(model.body_mocapid >= 0)
        bodies = bodies[np.argsort(model.body_mocapid[bodies])]  # (nmocap,)
        own = {"qpos": model.qpos0, "mocap_pos": model.body_pos[bodies], "mocap_quat": model.body_quat[bodies]}
        self._own = {name: torch.tensor(values, dtype=torch.float64, device=device) for name, values in own.items()}
        self._num = num

    def __call__(self, qpos: Tensor, mocap_pos: Tensor | None, mocap_quat: Tensor | None) -> dict[str, Tensor]:
        """qpos (N, nq), rows that are no state replaced by the reference pose; mocap_pos (N, nmocap, 3) and mocap_quat
        (N, nmocap, 4): what is given, else, and where it is no number, the model's. Only fields that have numbers."""
        expected = (self._num, len(self._own["qpos"]))
        if qpos.shape != expected:
            raise ValueError(f"qpos is {tuple(qpos.shape)}; the renderer was made for {expected}")
        given = {"qpos": qpos, "mocap_pos": mocap_pos, "mocap_quat": mocap_quat}
        return {name: self._mended(name, given[name]) for name, own in self._own.items() if own.numel()}

    def _mended(self, name: str, given: Tensor | None) -> Tensor:
        own = self._own[name].expand(self._num, *self._own[name].shape)
        if given is None:
            return own
        rows = given.detach().to(own).reshape(own.shape)
        number = rows.abs() < LARGEST  # NaN compares false
        return torch.where(number.all(-1, keepdim=True) if name == "qpos" else number, rows, own)
