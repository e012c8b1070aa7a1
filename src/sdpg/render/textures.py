"""Textures of a model: their pixels, and how they are laid on geoms, as MuJoCo has it."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
from numpy.typing import NDArray

from sdpg.render.cover import BOX, CAPSULE, CYLINDER, HFIELD, PLANE, SPHERE
from sdpg.render.meshes import has_coordinates
from sdpg.render.surfaces import ALONG, BY_KIND, COORDINATES, CUBE


def styles(model: mujoco.MjModel, geoms: NDArray[np.int64], texture: NDArray[np.int64]) -> NDArray[np.int64]:
    """(G,) how the texture (G,), -1 if there is none, of each geom is laid on."""
    kind = model.geom_type[geoms]
    found = np.where(np.isin(kind, (PLANE, HFIELD)) | (kind > BOX), ALONG, BY_KIND)
    with_uv = [k > BOX and has_coordinates(model, int(d)) for k, d in zip(kind, model.geom_dataid[geoms], strict=True)]
    found = np.where(with_uv, COORDINATES, found)
    flat = mujoco.mjtTexture.mjTEXTURE_2D
    cube = [t >= 0 and model.tex_type[t] != flat for t in texture]
    return np.where(cube, CUBE, found).astype(np.int64)


def mapping(
    model: mujoco.MjModel, geoms: NDArray[np.int64], style: NDArray[np.int64], own: Callable[[str], np.ndarray]
) -> np.ndarray:
    """(R, G, 4): m of u = m0 a + m1, v = m2 b + m3. a and b are x and y of the geom's own frame (ALONG), or what the
    style makes 0 to 1 of the surface. Of a cube map: what x, y and z are multiplied by."""
    which, kind = model.geom_matid[geoms], model.geom_type[geoms]  # (G,)
    if not (which >= 0).any():
        return np.zeros((1, len(geoms), 4), np.float32)
    size = own("geom_size")[:, geoms].astype(np.float64)  # (R, G, 3)
    repeat = own("mat_texrepeat")[:, which].astype(np.float64)  # (R, G, 2)
    uniform = model.mat_texuniform[which].astype(bool)[None, :, None]
    along = _along(size[..., :2], repeat, uniform)
    loose = _loose(size[..., :2], repeat, uniform)
    radii = np.where(np.isin(kind, (SPHERE, CYLINDER, CAPSULE))[None, :, None], size[..., :1], size[..., :2])
    times = np.where(uniform, repeat * radii, repeat)
    laid = np.stack([times[..., 0], 0 * times[..., 0], times[..., 1], 0 * times[..., 1]], axis=2)
    plain = np.stack([repeat[..., 0], 0 * repeat[..., 0], repeat[..., 1], 0 * repeat[..., 1]], axis=2)
    solid = (kind > BOX)[None, :, None]
    chosen = style[None, :, None]
    table = np.where(chosen == ALONG, np.where(solid, loose, along), np.where(chosen == COORDINATES, plain, laid))
    table = np.where(chosen == CUBE, _cube(size, kind, uniform), table)
    return np.where((which >= 0)[None, :, None], table, 0.0).astype(np.float32)


def _along(half: np.ndarray, repeat: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Planes and height fields: repeated `texrepeat` times over them, or, if it is uniform or the plane is endless,
    every 2 m / texrepeat."""
    shift = np.where((half > 0).all(axis=2, keepdims=True), 0.0, -0.5)
    across = np.where(uniform, repeat * half, repeat) / 2  # repeats from the middle to the edge
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(half > 0, across / half, repeat / 2)
    offset = np.where(half > 0, across + shift, shift)
    return np.stack([scale[..., 0], offset[..., 0], -scale[..., 1], offset[..., 1]], axis=2)


def _loose(half: np.ndarray, repeat: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Meshes without texture coordinates: as if on a plane of twice their size, beginning in its middle."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where((half > 0) & ~uniform, repeat / half, repeat) / 2
    minus = np.full_like(scale[..., 0], -0.5)
    return np.stack([scale[..., 0], minus, -scale[..., 1], minus], axis=2)


def _cube(size: np.ndarray, kind: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A cube map is laid on a shape of unit size, or, if it is uniform, on the geom as it is; meshes and fields are
    the other way round."""
    size = np.where(np.isin(kind, (SPHERE, CYLINDER, CAPSULE))[None, :, None], size[..., [0, 0, 1]], size)
    size = np.where((kind == SPHERE)[None, :, None], size[..., :1], size)
    with np.errstate(divide="ignore"):
        unit = np.where(size > 0, 1 / size, 1.0)
    primitive = ~((kind == HFIELD) | (kind > BOX))[None, :, None]
    scale = np.where(primitive, np.where(uniform, 1.0, unit), np.where(uniform, size, 1.0))
    return np.concatenate([scale, 0 * scale[..., :1]], axis=2)


class Images:
    """Textures, in the layout of `scene.Look`."""

    def __init__(self, model: mujoco.MjModel):
        self.model = model
        self.rows: list[tuple[int, int, int]] = []
        self.cells: list[np.ndarray] = []
        self.texels: list[np.ndarray] = []
        self._known: dict[int, int] = {}

    def add(self, texture: int) -> int:
        """The row of a texture of the model."""
        if texture not in self._known:
            self._known[texture] = len(self.rows)
            pixels = self._pixels(texture)  # (h, w, 3) uint8
            height, width = pixels.shape[:2]
            around = np.pad(pixels.astype(np.int32), ((1, 1), (1, 1), (0, 0)), mode="edge")
            corner = around @ np.array([1 << 16, 1 << 8, 1], np.int32)  # (h + 2, w + 2)
            four = np.stack([corner[:-1, :-1], corner[1:, :-1], corner[:-1, 1:], corner[1:, 1:]])  # (4, h + 1, w + 1)
            self.rows.append((sum(len(cells) for cells in self.cells), width, height))
            self.cells.append(np.where((four == four[0]).all(axis=0), four[0], -1).astype(np.int32).ravel())
            texels = np.zeros((len(self.cells[-1]), 3), np.float32)  # as long as the cells: one address for both
            texels[: width * height] = pixels.reshape(-1, 3)
            self.texels.append(texels)
        return self._known[texture]

    def only_colour(self, row: int) -> np.ndarray | None:
        """(3,) where the whole texture has one."""
        _, width, height = self.rows[row]
        texels = self.texels[row][: width * height]
        return texels[0] if (texels == texels[0]).all() else None

    def _pixels(self, texture: int) -> np.ndarray:
        model = self.model
        start, channels = int(model.tex_adr[texture]), int(model.tex_nchannel[texture])
        if start < 0:  # kept in its file
            pixels = mujoco.mj_loadTexture(model, texture)[0]
        else:
            shape = (int(model.tex_height[texture]), int(model.tex_width[texture]), channels)
            pixels = model.tex_data[start : start + int(np.prod(shape))].reshape(shape)
        return np.pad(pixels[..., :3], ((0, 0), (0, 0), (0, max(0, 3 - pixels.shape[2]))))
