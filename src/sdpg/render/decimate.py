"""Fewer triangles for a surface: points that are close become one, then edges collapse, as long as the result is where
the surface was. Colours stay right because normals are those of the surface, not those of what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import fast_simplification
import numpy as np
from numpy.typing import NDArray

from sdpg.render.meshes import Triangles, face_normals
from sdpg.warp_engine import engine

_FINEST, _STEPS = 6e-4, 10  # tolerances: this share of the shape's radius, doubled again and again
_SAMPLES = 4000  # points of the surface by which a result is judged
_WITHIN = 0.98  # of them are nearer than the tolerance
_WORTH = 0.7  # of the triangles of the next finer one: with more, a level isn't worth its memory
_FEWEST = 16  # triangles


def coarser(surface: Triangles) -> Iterator[tuple[float, Triangles]]:
    """Error in metres, and a surface with fewer triangles, again and again."""
    points, faces = _welded(surface.points, surface.faces)
    if len(faces) <= _FEWEST:
        return
    original = _Original(surface)
    radius = float(np.linalg.norm(np.ptp(surface.points, axis=0))) / 2
    count = len(surface.faces)
    for step in range(_STEPS):
        tolerance = radius * _FINEST * 2**step
        merged = _clustered(points, faces, tolerance)
        if original.holds(*merged, tolerance):
            points, faces = merged
        while len(faces) > _FEWEST:
            fewer = _collapsed(points, faces)
            if len(fewer[1]) > 0.9 * len(faces) or not original.holds(*fewer, tolerance):
                break
            points, faces = fewer
        if 0 < len(faces) <= _WORTH * count:
            count = len(faces)
            yield tolerance, Triangles(points, faces, original.normals(points[faces]), None)
        if len(faces) <= _FEWEST:
            return


def _welded(points: NDArray[Any], faces: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """One point where there were several, such as along the edges that MuJoCo splits."""
    kept, place = np.unique(points.astype(np.float32), axis=0, return_inverse=True)
    return _without_slivers(kept.astype(np.float64), place.ravel()[faces])


def _clustered(points: NDArray[Any], faces: NDArray[Any], cell: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """The points of each cell of a grid become their mean."""
    where = np.floor((points - points.min(axis=0)) / cell).astype(np.int64)
    size = where.max(axis=0) + 1
    key = (where[:, 0] * size[1] + where[:, 1]) * size[2] + where[:, 2]
    known, place = np.unique(key, return_inverse=True)
    count = np.bincount(place, minlength=len(known))
    mean = np.stack([np.bincount(place, points[:, k], len(known)) / count for k in range(3)], axis=1)
    return _without_slivers(mean, place[faces])


def _without_slivers(points: NDArray[Any], faces: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Triangles with three different corners, each once."""
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    faces = np.unique(np.take_along_axis(faces, (faces.argmin(axis=1)[:, None] + np.arange(3)) % 3, axis=1), axis=0)
    used, place = np.unique(faces, return_inverse=True)
    return points[used], place.reshape(-1, 3)


def _collapsed(points: NDArray[Any], faces: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two thirds of the triangles."""
    found = fast_simplification.simplify(points, faces.astype(np.int32), target_reduction=1 / 3)
    return _without_slivers(found[0], found[1].astype(np.int64))


class _Original:
    """A surface, and how far others are from it."""

    def __init__(self, surface: Triangles):
        self._surface = surface
        self._corners = surface.points[surface.faces]  # (F, 3, 3)
        areas = np.linalg.norm(
            np.cross(self._corners[:, 1] - self._corners[:, 0], self._corners[:, 2] - self._corners[:, 0]), axis=1
        )
        rng = np.random.default_rng(0)
        total = areas.sum()
        chosen = rng.choice(len(areas), _SAMPLES, p=areas / total if total > 0 else None)
        shares = rng.dirichlet((1, 1, 1), _SAMPLES)  # (samples, 3)
        self._samples = (self._corners[chosen] * shares[:, :, None]).sum(axis=1)
        self._mesh = _mesh(surface.points, surface.faces)
        self._reach = 4 * float(np.ptp(surface.points, axis=0).max()) + 1e-6

    def holds(self, points: NDArray[Any], faces: NDArray[Any], tolerance: float) -> bool:
        """Nearly all of the surface is within the tolerance of the other, and the other of it."""
        if not len(faces):
            return False
        there = _nearest(_mesh(points, faces), self._samples, self._reach)[0]
        if np.quantile(there, _WITHIN) > tolerance:
            return False
        middles = points[faces].mean(axis=1)
        if len(middles) > _SAMPLES:
            middles = middles[:: len(middles) // _SAMPLES]
        back = _nearest(self._mesh, np.concatenate([points[:: max(1, len(points) // _SAMPLES)], middles]), self._reach)
        return bool(np.quantile(back[0], _WITHIN) <= tolerance)

    def normals(self, corners: NDArray[Any]) -> NDArray[Any]:
        """(F, 3, 3): those of the surface next to the corners (F, 3, 3) of other triangles, moved inwards a little so
        that an edge of the shape stays one; where they look the other way, the triangle's own."""
        own = np.repeat(face_normals(corners)[:, None], 3, axis=1)  # (F, 3, 3)
        if self._surface.normals is None:
            return own
        inside = 0.8 * corners + 0.2 * corners.mean(axis=1, keepdims=True)
        _, face, shares = _nearest(self._mesh, inside.reshape(-1, 3), self._reach)
        found = (self._surface.normals[face] * shares[:, :, None]).sum(axis=1).reshape(-1, 3, 3)
        length = np.linalg.norm(found, axis=2, keepdims=True)
        found = np.divide(found, length, out=own.copy(), where=length > 1e-6)
        return np.where((found * own).sum(axis=2, keepdims=True) > 0, found, own)


@cache
def _warp() -> tuple[Any, Any]:
    """Warp, whose trees find the nearest triangle, and the loop that asks one."""
    wp = engine()[0]

    def nearest(mesh, points, reach, distance, face, shares):  # type: ignore[no-untyped-def]
        i = wp.tid()
        query = wp.mesh_query_point_no_sign(mesh, points[i], reach)
        distance[i] = reach
        if query.result:
            there = wp.mesh_eval_position(mesh, query.face, query.u, query.v)
            distance[i] = wp.length(there - points[i])
            face[i] = query.face
            shares[i] = wp.vec3(query.u, query.v, 1.0 - query.u - query.v)

    numbers, places = wp.array(dtype=float), wp.array(dtype=wp.vec3)
    nearest.__annotations__ = {
        "mesh": wp.uint64, "points": places, "reach": float, "distance": numbers, "face": wp.array(dtype=int),
        "shares": places,
    }  # fmt: skip
    return wp, wp.kernel(nearest, enable_backward=False)


def _mesh(points: NDArray[Any], faces: NDArray[Any]) -> Any:
    wp = _warp()[0]
    with wp.ScopedDevice("cpu"):
        return wp.Mesh(wp.array(points.astype(np.float32), dtype=wp.vec3), wp.array(faces.astype(np.int32).ravel()))


def _nearest(mesh: Any, points: NDArray[Any], reach: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of each point: how far the nearest triangle is, which it is, and what it has of its corners (n, 3)."""
    wp, nearest = _warp()
    count = len(points)
    with wp.ScopedDevice("cpu"):
        given = wp.array(points.astype(np.float32), dtype=wp.vec3)
        distance, face = wp.zeros(count, dtype=float), wp.zeros(count, dtype=int)
        shares = wp.zeros(count, dtype=wp.vec3)
        wp.launch(nearest, dim=count, inputs=[mesh.id, given, reach], outputs=[distance, face, shares])
        return distance.numpy(), face.numpy(), shares.numpy()
