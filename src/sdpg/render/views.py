"""What every renderer does with its model, its views and its states before it draws."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import View


def camera_id(model: mujoco.MjModel, name: str) -> int:
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
    if found < 0:
        known = [model.camera(i).name for i in range(model.ncam)]
        raise SdpgError(f"the scene has no camera '{name}'; it has: {', '.join(filter(None, known)) or 'none'}")
    return found


def check_views(
    model: mujoco.MjModel, num: int, views: Sequence[View], threads: int = 1, varied: Sequence[str] = ()
) -> tuple[View, ...]:
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
        if not len(seen(model, view.groups, varied)) and not model.nflex:
            raise SdpgError(
                f"camera '{view.camera}': nothing in the geom groups {view.groups} is visible; choose others"
            )
    names = [view.camera for view in views]
    if len(set(names)) < len(names):
        raise SdpgError(f"a camera can have one view; given: {', '.join(names)}")
    return tuple(views)


def seen(model: mujoco.MjModel, groups: Sequence[int], varied: Sequence[str] = ()) -> np.ndarray:
    """The geoms (n,) of these groups that are not invisible, or not in every row, in the model's order."""
    visible = (colours(model.geom_rgba[None], model.mat_rgba[None], model.geom_matid)[0, :, 3] > 0) | bool(
        {"geom_rgba", "mat_rgba"} & set(varied)
    )
    return np.flatnonzero(np.isin(model.geom_group, list(groups)) & visible)


def colours(geom_rgba: np.ndarray, mat_rgba: np.ndarray, materials: np.ndarray) -> np.ndarray:
    """(R, ngeom, 4) of geoms (R, ngeom, 4) and materials (R, nmat, 4): as MuJoCo has it, that of a geom's material
    (ngeom,) unless its own is not the default."""
    own = np.asarray(geom_rgba, np.float32)
    default = (own == np.array([0.5, 0.5, 0.5, 1.0], np.float32)).all(axis=2) & (materials >= 0)
    if not default.any():
        return own
    return np.where(default[..., None], np.asarray(mat_rgba, np.float32)[:, materials], own)


def textures(model: mujoco.MjModel, geoms: np.ndarray) -> np.ndarray:
    """(G,) the texture that colours each geom, or -1."""
    if not model.nmat:
        return np.full(len(geoms), -1)
    materials = model.geom_matid[geoms]
    return np.where(materials >= 0, model.mat_texid[materials, int(mujoco.mjtTextureRole.mjTEXROLE_RGB)], -1)


def obstacle(model: mujoco.MjModel, views: Sequence[View], varied: Sequence[str] = ()) -> str | None:
    """Why the rasteriser can't draw these views: a clause; None: it can."""
    if model.nflex:
        return "the scene has flexible bodies"
    for view in views:
        if model.cam_projection[camera_id(model, view.camera)] == mujoco.mjtProjection.mjPROJ_ORTHOGRAPHIC:
            return f"camera '{view.camera}' is orthographic"
    return None


def frustum(
    model: mujoco.MjModel, view: View, fovy: np.ndarray | None = None, intrinsic: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Left, right, bottom, top (R,) of the picture on the plane at distance 1 before the camera; of the model's fovy
    (ncam,) and intrinsic (ncam, 4), unless (R, ncam) and (R, ncam, 4) are given."""
    camera = camera_id(model, view.camera)
    aspect = view.width / view.height
    sensor_w, sensor_h = (float(size) for size in model.cam_sensorsize[camera])
    if sensor_h == 0.0:
        degrees = model.cam_fovy[None] if fovy is None else fovy
        top = np.tan(np.radians(degrees[:, camera]) / 2)
        return -top * aspect, top * aspect, -top, top
    # Intrinsics: the part of the sensor that has the picture's aspect.
    lengths = model.cam_intrinsic[None] if intrinsic is None else intrinsic
    fx, fy, cx, cy = lengths[:, camera].astype(np.float64).T
    if aspect > sensor_w / sensor_h:
        sensor_h = sensor_w / aspect
    else:
        sensor_w = sensor_h * aspect
    return (cx - sensor_w / 2) / fx, (cx + sensor_w / 2) / fx, -(cy + sensor_h / 2) / fy, (sensor_h / 2 - cy) / fy


def pixel_coordinates(model: mujoco.MjModel, view: View) -> tuple[np.ndarray, np.ndarray]:
    """x (W,), y (H,) float64: the ray of pixel (i, j) goes along (x[j], y[i], -1) in the camera's frame."""
    x, y = pixel_rows(view, *frustum(model, view))
    return x[0], y[0]


def pixel_rows(
    view: View, left: np.ndarray, right: np.ndarray, bottom: np.ndarray, top: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of several frusta: (R, W), (R, H)."""
    x = left[:, None] + (right - left)[:, None] * (np.arange(view.width) + 0.5) / view.width
    y = top[:, None] + (bottom - top)[:, None] * (np.arange(view.height) + 0.5) / view.height
    return x, y


def ray_length(model: mujoco.MjModel, view: View) -> Tensor:
    """(H, W) float32: times depth it is the distance from the camera along each pixel's ray."""
    x, y = pixel_coordinates(model, view)
    return torch.from_numpy(np.sqrt(1 + x[None, :] ** 2 + y[:, None] ** 2).astype(np.float32))
