"""Levels of detail: a shape as it is, and with fewer and fewer triangles. `triangles` takes the coarsest that can't be
told from it where it is seen."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from sdpg.render import mesh_cache
from sdpg.render.cover import HFIELD
from sdpg.render.fields import field_triangles
from sdpg.render.meshes import Level, Shapes, Triangles, gather, level, mesh_triangles
from sdpg.render.progress import tell
from sdpg.render.views import textures

_NOTHING = Triangles(np.zeros((3, 3)), np.array([[0, 1, 2]]), None, None)
_SMALL = 256  # triangles that are not worth fewer


def shapes_of(model: mujoco.MjModel, geoms: NDArray[np.int64]) -> tuple[Shapes, dict[int, int]]:
    """The tables of all shapes that these geoms have, and which of them each geom has."""
    keys = [(bool(model.geom_type[geom] == HFIELD), int(model.geom_dataid[geom])) for geom in geoms]
    rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
    textured = {key for key, texture in zip(keys, textures(model, geoms), strict=True) if texture >= 0}
    surfaces = [mesh_triangles(model, key[1], uvs=key in textured) for key in rows if not key[0]]
    meshes = iter(_levels_of(surfaces))
    found = [[level(field_triangles(model, number))] if field else next(meshes) for field, number in rows]
    return gather(found or [[level(_NOTHING)]]), {int(geom): rows[key] for geom, key in zip(geoms, keys, strict=True)}


def _levels_of(surfaces: list[Triangles]) -> list[list[Level]]:
    """From the cache, or made and put there."""
    found: list[list[Level] | None] = []
    for surface in surfaces:
        if len(surface.faces) < _SMALL or surface.uvs is not None:
            found.append([level(surface)])
        else:
            found.append(mesh_cache.load(mesh_cache.path_of(surface)))
    missing = [k for k, levels in enumerate(found) if levels is None]
    for done, k in enumerate(missing):
        tell("levels of detail of meshes", done, len(missing))
        found[k] = _made(surfaces[k])
        mesh_cache.save(mesh_cache.path_of(surfaces[k]), found[k] or [])
    if missing:
        tell("levels of detail of meshes", len(missing), len(missing))
    return [levels for levels in found if levels is not None]


def _made(surface: Triangles) -> list[Level]:
    from sdpg.render.decimate import coarser  # takes its time to import

    return [level(surface), *(level(fewer, error) for error, fewer in coarser(surface))]
