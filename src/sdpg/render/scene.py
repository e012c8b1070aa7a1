"""A model as the rasteriser wants it: arrays of what can be seen in a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from sdpg.render.api import View
from sdpg.render.cover import BOX, CAPSULE, HFIELD, LANES, PLANE, SPHERE
from sdpg.render.own import LOOKS
from sdpg.render.shade import DIRECTIONAL, HEADLIGHT
from sdpg.render.surfaces import ALONG
from sdpg.render.textures import Images, mapping, styles
from sdpg.render.views import camera_id, colours, frustum, pixel_rows, seen, textures

_MAX_SHININESS = 128.0  # OpenGL's, and mujoco_warp's
_NO_MATERIAL = (0.0, 0.5, 64.0)  # emission, specular, exponent
_NO_LIGHT = 0.3  # ambient light where there is no other


class Geometry(NamedTuple):
    """What `cover` needs of a view. G geoms; R is N where rows have looks of their own, else 1; float32 unless said."""

    camera: int  # its number in the model
    width: int  # W; Wp is W rounded up to a multiple of LANES
    xs: NDArray[Any]  # (R, Wp)
    ys: NDArray[Any]  # (R, H)
    grid: NDArray[Any]  # (R, 4) float64: x of the first column, step to the next, y of the first row, step
    far: np.float32  # depth beyond which nothing is seen
    geom: NDArray[Any]  # (G,) int64: its number in the model
    kind: NDArray[Any]  # (G,) int64, mjtGeom
    size: NDArray[Any]  # (R, G, 3)
    visible: NDArray[Any]  # (R, G) bool


class Look(NamedTuple):
    """What `shade` needs besides. L lights; float32 unless said."""

    material: NDArray[Any]  # (R, G, 6): colour (3), emission, specular, exponent of the highlight
    texture: NDArray[Any]  # (G,) int64: row of `images`, or -1
    style: NDArray[Any]  # (G,) int64: how it is laid on
    mapping: NDArray[Any]  # (R, G, 4): see `textures.mapping`
    images: NDArray[Any]  # (textures, 3) int64: where it begins in `cells` and `texels`, width, height
    cells: NDArray[Any]  # int32: the colour 0xRRGGBB between four equal texels, -1 between others
    texels: NDArray[Any]  # (..., 3): 0 to 255
    light: NDArray[Any]  # (L,) int64: its number in the model, or HEADLIGHT
    light_kind: NDArray[Any]  # (L,) int64, mjtLightType
    light_rows: NDArray[Any]  # (R, L, 11): diffuse (3), specular (3), attenuation (3), cosine of the cutoff, exponent
    ambient: NDArray[Any]  # (R, 3)
    quick: NDArray[Any]  # (R, G) bool: what `shade` does; `surfaces` does the others
    sky: NDArray[Any]  # (3,): its colour, 0 to 255, where it has only one
    sky_image: int  # row of `images`, or -1


class Solids(NamedTuple):
    """The geoms of a view that are meshes or height fields."""

    geom: NDArray[Any]  # (S,) int64: its place among the view's geoms
    shape: NDArray[Any]  # (S,) int64: its row in `meshes.Shapes`


class Poses(NamedTuple):
    """N worlds, float64, as MuJoCo has them."""

    geom_xpos: NDArray[Any]  # (N, ngeom, 3)
    geom_xmat: NDArray[Any]  # (N, ngeom, 9)
    cam_xpos: NDArray[Any]  # (N, ncam, 3)
    cam_xmat: NDArray[Any]  # (N, ncam, 9)
    light_xpos: NDArray[Any]  # (N, nlight, 3)
    light_xdir: NDArray[Any]  # (N, nlight, 3)


class Scene:
    """The tables of a view. Rows that have looks of their own get tables of their own, whenever they are drawn."""

    def __init__(self, model: mujoco.MjModel, view: View, varied: Sequence[str]):
        self._model, self._view = model, view
        self._varied = tuple(name for name in varied if name in LOOKS)
        self._geoms = geoms = seen(model, view.groups, varied)  # (G,)
        self._light, light_kind = _lights(model, self._varied)
        images = Images(model)
        sky = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
        sky_image = images.add(int(sky[0])) if len(sky) else -1
        sky_colour = images.only_colour(sky_image) if len(sky) else np.zeros(3, np.float32)
        which = textures(model, geoms)  # (G,)
        self._texture = np.array([images.add(int(tex)) if tex >= 0 else -1 for tex in which], np.int64)
        self._style = styles(model, geoms, which)
        own = _Own(model, {})
        far = model.vis.map.zfar * model.stat.extent
        self._geometry = Geometry(
            camera=camera_id(model, view.camera),
            width=view.width,
            far=np.float32(far if far > 0 else np.inf),
            geom=geoms.astype(np.int64),
            kind=model.geom_type[geoms].astype(np.int64),
            **self._outlines(own),
        )
        self._look = Look(
            texture=self._texture,
            style=self._style,
            images=np.array(images.rows or [(0, 1, 1)], np.int64),
            cells=np.concatenate([*images.cells, np.zeros(1, np.int32)]),
            texels=np.concatenate([*images.texels, np.zeros((1, 3), np.float32)]),
            light=self._light,
            light_kind=light_kind,
            sky=np.zeros(3, np.float32) if sky_colour is None else sky_colour,
            sky_image=sky_image if sky_colour is None else -1,
            **self._colours(own, light_kind),
        )

    @property
    def solids(self) -> NDArray[Any]:
        """(S,): which of the view's geoms are meshes or height fields."""
        kind = self._geometry.kind
        return np.flatnonzero((kind == HFIELD) | (kind > BOX))

    @property
    def geoms(self) -> NDArray[Any]:
        """(G,): the model's geoms that are seen."""
        return self._geoms

    def of(self, values: Mapping[str, NDArray[Any]]) -> tuple[Geometry, Look]:
        """`values`: name -> (N, ...), at least of the fields that the scene was made for."""
        if not self._varied:
            return self._geometry, self._look
        own = _Own(self._model, {name: values[name] for name in self._varied})
        return (
            self._geometry._replace(**self._outlines(own)),
            self._look._replace(**self._colours(own, self._look.light_kind)),
        )

    def _outlines(self, own: _Own) -> dict[str, Any]:
        model, view, geoms = self._model, self._view, self._geoms
        x, y = pixel_rows(view, *frustum(model, view, own["cam_fovy"], own["cam_intrinsic"]))  # (R, W), (R, H)
        steps = [v[:, 1] - v[:, 0] if v.shape[1] > 1 else np.ones(len(v)) for v in (x, y)]
        return own.rows(
            xs=np.pad(x, ((0, 0), (0, -view.width % LANES)), mode="edge").astype(np.float32),
            ys=y.astype(np.float32),
            grid=np.stack([x[:, 0], steps[0], y[:, 0], steps[1]], axis=1),
            size=own["geom_size"][:, geoms].astype(np.float32),
            visible=colours(own["geom_rgba"], own["mat_rgba"], model.geom_matid)[:, geoms, 3] > 0,
        )

    def _colours(self, own: _Own, light_kind: NDArray[Any]) -> dict[str, Any]:
        material = _materials(self._model, self._geoms, own)
        light_rows = _light_rows(self._model, self._light, own)
        glossy = np.logical_and(material[..., 4] > 0, material[..., 5] > 0)  # (R, G)
        glare = np.logical_and(glossy, np.expand_dims((light_rows[..., 3:6] > 0).any(axis=(1, 2)), 1))  # (R, G)
        kind, plain = self._geometry.kind, self._texture < 0
        easy = ((kind == PLANE) & (plain | (self._style == ALONG))) | (np.isin(kind, (SPHERE, CAPSULE)) & plain)  # (G,)
        return own.rows(
            material=material,
            mapping=mapping(self._model, self._geoms, self._style, own.__getitem__),
            light_rows=light_rows,
            ambient=_ambient(self._model, own),
            quick=np.logical_and((light_kind == DIRECTIONAL).all() & easy, ~glare),
        )


class _Own:
    """Fields of the model as (R, ...): rows' own values where there are any, else the model's once."""

    def __init__(self, model: mujoco.MjModel, values: Mapping[str, NDArray[Any]]):
        self._model, self._values = model, values
        self._rows = len(next(iter(values.values()))) if values else 1  # R

    def __getitem__(self, name: str) -> NDArray[Any]:
        """(R or 1, ...)."""
        shared: NDArray[Any] = getattr(self._model, name)
        return self._values[name].astype(shared.dtype) if name in self._values else shared[None]

    def rows(self, **tables: NDArray[Any]) -> dict[str, Any]:
        """Each of them R times, one after the other in memory: compiled code is for one layout."""
        return {
            name: np.ascontiguousarray(np.broadcast_to(table, (self._rows, *table.shape[1:])))
            for name, table in tables.items()
        }


def _materials(model: mujoco.MjModel, geoms: np.ndarray, own: _Own) -> np.ndarray:
    """(R, G, 6): colour, emission, specular, exponent."""
    colour = colours(own["geom_rgba"], own["mat_rgba"], model.geom_matid)[:, geoms, :3]  # (R, G, 3)
    which = model.geom_matid[geoms]  # (G,)
    columns = [colour]
    scales = {"emission": 1.0, "specular": 1.0, "shininess": _MAX_SHININESS}
    for default, (name, scale) in zip(_NO_MATERIAL, scales.items(), strict=True):
        values = own[f"mat_{name}"] * np.float32(scale) if model.nmat else np.zeros((1, 1), np.float32)
        columns.append(np.where(which >= 0, values[:, which], np.float32(default))[..., None])
    rows = max(len(column) for column in columns)
    return np.concatenate([np.broadcast_to(c, (rows, *c.shape[1:])) for c in columns], axis=2).astype(np.float32)


def _lights(model: mujoco.MjModel, varied: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Those that give any light, or may do so in a row: number (L,), kind (L,)."""
    bright = (model.light_diffuse > 0).any(axis=1) | (model.light_specular > 0).any(axis=1)
    bright |= bool({"light_diffuse", "light_specular"} & set(varied))
    on = model.light_active.astype(bool) | ("light_active" in varied)
    found = [(int(k), int(model.light_type[k])) for k in np.flatnonzero(bright & on)]
    head = model.vis.headlight
    if head.active and (np.any(head.diffuse > 0) or np.any(head.specular > 0)):
        found.append((HEADLIGHT, DIRECTIONAL))
    return np.array([k for k, _ in found], np.int64), np.array([kind for _, kind in found], np.int64)


def _light_rows(model: mujoco.MjModel, lights: np.ndarray, own: _Own) -> np.ndarray:
    """(R, L, 11)."""
    on = own["light_active"].astype(np.float32)[..., None]
    columns = [own["light_diffuse"] * on, own["light_specular"] * on, own["light_attenuation"]]
    columns += [np.cos(np.radians(own["light_cutoff"]))[..., None], own["light_exponent"][..., None]]
    rows = max(len(column) for column in columns)
    head = model.vis.headlight
    last = np.array([*head.diffuse, *head.specular, 1.0, 0.0, 0.0, -1.0, 0.0], np.float32)  # HEADLIGHT is -1
    every = np.concatenate([np.broadcast_to(c, (rows, *c.shape[1:])) for c in columns], axis=2)  # (R, nlight, 11)
    every = np.concatenate([every, np.broadcast_to(last, (rows, 1, 11))], axis=1)
    return every[:, lights].astype(np.float32)


def _ambient(model: mujoco.MjModel, own: _Own) -> np.ndarray:
    """(R, 3): it reaches everything."""
    total = np.where(own["light_active"].astype(bool)[..., None], own["light_ambient"], np.float32(0)).sum(axis=1)
    if model.vis.headlight.active:
        total = total + model.vis.headlight.ambient
    elif not model.nlight:
        total = total + _NO_LIGHT
    return total.astype(np.float32)
