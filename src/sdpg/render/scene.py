"""A model as the rasteriser wants it: arrays of what can be seen in a view."""

from __future__ import annotations

from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from sdpg.render.api import View
from sdpg.render.cover import LANES, PLANE
from sdpg.render.shade import DIRECTIONAL, HEADLIGHT
from sdpg.render.views import camera_id, colours, pixel_coordinates, seen, textures

_MAX_SHININESS = 128.0  # OpenGL's, and mujoco_warp's
_NO_MATERIAL = (0.0, 0.5, 64.0)  # emission, specular, exponent
_NO_LIGHT = 0.3  # ambient light where there is no other


class Geometry(NamedTuple):
    """What `cover` needs of a view. G geoms; float32 unless said."""

    camera: int  # its number in the model
    width: int  # W; Wp is W rounded up to a multiple of LANES
    xs: NDArray[Any]  # (Wp,)
    ys: NDArray[Any]  # (H,)
    grid: NDArray[Any]  # (4,) float64: x of the first column, step to the next, y of the first row, step
    far: np.float32  # depth beyond which nothing is seen
    geom: NDArray[Any]  # (G,) int64: its number in the model
    kind: NDArray[Any]  # (G,) int64, mjtGeom
    size: NDArray[Any]  # (G, 3)


class Look(NamedTuple):
    """What `shade` needs besides. L lights; float32 unless said."""

    material: NDArray[Any]  # (G, 6): colour (3), emission, specular, exponent of the highlight
    texture: NDArray[Any]  # (G,) int64: row of `images`, or -1
    mapping: NDArray[Any]  # (G, 4): u = m0 x + m1, v = m2 y + m3 of a plane's own coordinates
    images: NDArray[Any]  # (textures, 3) int64: where it begins in `cells` and `texels`, width, height
    cells: NDArray[Any]  # int32: the colour 0xRRGGBB between four equal texels, -1 between others
    texels: NDArray[Any]  # (..., 3): 0 to 255
    light: NDArray[Any]  # (L,) int64: its number in the model, or HEADLIGHT
    light_kind: NDArray[Any]  # (L,) int64, mjtLightType
    light_rows: NDArray[Any]  # (L, 11): diffuse (3), specular (3), attenuation (3), cosine of the cutoff, exponent
    ambient: NDArray[Any]  # (3,)
    flat: bool  # all lights are directional and nothing is glossy: a plane is lit evenly
    sky: NDArray[Any]  # (3,): its colour, 0 to 255, where it has only one
    sky_image: int  # row of `images`, or -1


class Poses(NamedTuple):
    """N worlds, float64, as MuJoCo has them."""

    geom_xpos: NDArray[Any]  # (N, ngeom, 3)
    geom_xmat: NDArray[Any]  # (N, ngeom, 9)
    cam_xpos: NDArray[Any]  # (N, ncam, 3)
    cam_xmat: NDArray[Any]  # (N, ncam, 9)
    light_xpos: NDArray[Any]  # (N, nlight, 3)
    light_xdir: NDArray[Any]  # (N, nlight, 3)


def geometry_of(model: mujoco.MjModel, view: View) -> Geometry:
    geoms = seen(model, view.groups)  # (G,)
    x, y = pixel_coordinates(model, view)
    steps = [float(v[1] - v[0]) if len(v) > 1 else 1.0 for v in (x, y)]
    far = model.vis.map.zfar * model.stat.extent
    return Geometry(
        camera=camera_id(model, view.camera),
        width=view.width,
        xs=np.pad(x, (0, -view.width % LANES), mode="edge").astype(np.float32),
        ys=y.astype(np.float32),
        grid=np.array([x[0], steps[0], y[0], steps[1]]),
        far=np.float32(far if far > 0 else np.inf),
        geom=geoms.astype(np.int64),
        kind=model.geom_type[geoms].astype(np.int64),
        size=model.geom_size[geoms].astype(np.float32),
    )


def look_of(model: mujoco.MjModel, view: View) -> Look:
    geoms = seen(model, view.groups)  # (G,)
    images = _Images(model)
    material = _materials(model, geoms)
    light, light_kind, light_rows = _lights(model)
    glare = (light_rows[:, 3:6] > 0).any() and (material[:, 4:6] > 0).all(axis=1).any()
    sky = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    sky_image = images.add(int(sky[0])) if len(sky) else -1
    sky_colour = images.only_colour(sky_image) if len(sky) else np.zeros(3, np.float32)
    texture = [images.add(int(tex)) if tex >= 0 else -1 for tex in textures(model, geoms)]
    return Look(
        material=material,
        texture=np.array(texture, np.int64),
        mapping=np.array([_mapping(model, g) for g in geoms], np.float32).reshape(-1, 4),
        images=np.array(images.rows or [(0, 1, 1)], np.int64),
        cells=np.concatenate([*images.cells, np.zeros(1, np.int32)]),
        texels=np.concatenate([*images.texels, np.zeros((1, 3), np.float32)]),
        light=light,
        light_kind=light_kind,
        light_rows=light_rows,
        ambient=_ambient(model),
        flat=bool((light_kind == DIRECTIONAL).all() and not glare),
        sky=np.zeros(3, np.float32) if sky_colour is None else sky_colour,
        sky_image=sky_image if sky_colour is None else -1,
    )


def _materials(model: mujoco.MjModel, geoms: np.ndarray) -> np.ndarray:
    """(G, 6): colour, emission, specular, exponent."""
    rows = [
        (*colour[:3], *_NO_MATERIAL)
        if m < 0
        else (*colour[:3], model.mat_emission[m], model.mat_specular[m], model.mat_shininess[m] * _MAX_SHININESS)
        for colour, m in zip(colours(model)[geoms], model.geom_matid[geoms], strict=True)
    ]
    return np.array(rows, np.float32).reshape(-1, 6)


def _mapping(model: mujoco.MjModel, geom: int) -> tuple[float, float, float, float]:
    """From a plane's own x and y to u and v, as MuJoCo has it: the texture is repeated `texrepeat` times over a plane,
    or, if it is uniform or the plane is endless, every 2 m / texrepeat."""
    material = model.geom_matid[geom]
    if model.geom_type[geom] != PLANE or material < 0:
        return 0.0, 0.0, 0.0, 0.0
    size, uniform = model.geom_size[geom][:2], bool(model.mat_texuniform[material])
    shift = 0.0 if (size > 0).all() else -0.5
    scales, offsets = [], []
    for repeat, half in zip(model.mat_texrepeat[material], size, strict=True):
        across = float(repeat * half if uniform else repeat) / 2  # repeats from the middle to the edge
        scales.append(across / float(half) if half > 0 else float(repeat) / 2)
        offsets.append(across + shift if half > 0 else shift)
    return scales[0], offsets[0], -scales[1], offsets[1]


class _Images:
    """Textures, in the layout of `Scene`."""

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


def _lights(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those that give any light: number (L,), kind (L,), rows (L, 11)."""
    found: list[tuple[int, int, list[float]]] = []
    for k in range(model.nlight):
        row = [*model.light_diffuse[k], *model.light_specular[k], *model.light_attenuation[k]]
        row += [np.cos(np.radians(model.light_cutoff[k])), model.light_exponent[k]]
        if model.light_active[k]:
            found.append((k, int(model.light_type[k]), row))
    head = model.vis.headlight
    if head.active:
        found.append((HEADLIGHT, DIRECTIONAL, [*head.diffuse, *head.specular, 1.0, 0.0, 0.0, -1.0, 0.0]))
    found = [light for light in found if any(value > 0 for value in light[2][:6])]
    return (
        np.array([light[0] for light in found], np.int64),
        np.array([light[1] for light in found], np.int64),
        np.array([light[2] for light in found], np.float32).reshape(-1, 11),
    )


def _ambient(model: mujoco.MjModel) -> np.ndarray:
    """(3,): it reaches everything."""
    total = model.light_ambient[model.light_active.astype(bool)].sum(axis=0)
    if model.vis.headlight.active:
        total = total + model.vis.headlight.ambient
    elif not model.nlight:
        total = total + _NO_LIGHT
    return np.broadcast_to(total, 3).astype(np.float32)
