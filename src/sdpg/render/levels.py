"""Levels of detail: a shape as it is, and with fewer and fewer triangles."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from sdpg.render.cover import HFIELD
from sdpg.render.fields import field_triangles
from sdpg.render.meshes import Level, Shapes, Triangles, gather, level, mesh_triangles

_NOTHING = Triangles(np.zeros((3, 3)), np.array([[0, 1, 2]]), None, None)


def shapes_of(model: mujoco.MjModel, geoms: NDArray[np.int64]) -> tuple[Shapes, dict[int, int]]:
    """The tables of all shapes that these geoms have, and which of them each geom has."""
    rows: dict[tuple[bool, int], int] = {}
    found: list[list[Level]] = []
    of_geom: dict[int, int] = {}
    for geom in geoms:
        key = (bool(model.geom_type[geom] == HFIELD), int(model.geom_dataid[geom]))
        if key not in rows:
            rows[key] = len(found)
            found.append(field_levels(model, key[1]) if key[0] else mesh_levels(model, key[1]))
        of_geom[int(geom)] = rows[key]
    return gather(found or [[level(_NOTHING)]]), of_geom


def field_levels(model: mujoco.MjModel, field: int) -> list[Level]:
    return [level(field_triangles(model, field))]


def mesh_levels(model: mujoco.MjModel, mesh: int) -> list[Level]:
    return [level(mesh_triangles(model, mesh))]
