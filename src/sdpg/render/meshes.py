"""Triangles as `triangles` and `surfaces` want them: a tree of boxes whose leaves hold a few dozen each, and of every
triangle its normal as a function of the point, so that nothing has to be interpolated between corners."""

from __future__ import annotations

from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

LEAF = 48  # triangles of a leaf at most; as in `triangles`
SMOOTH, FLAT, UV = 12, 3, 8  # numbers that a triangle has in `normals` if that differs over it, if not; in `uvs`
_USABLE = 0.8  # cosine: MuJoCo does without normals of corners that are farther from the triangle's own
_STEEP = 1e4  # how fast a normal may change over a triangle, times its distance from the origin: float32


class Triangles(NamedTuple):
    """A surface: F triangles between V points."""

    points: NDArray[Any]  # (V, 3) float64
    faces: NDArray[Any]  # (F, 3) int64
    normals: NDArray[Any] | None  # (F, 3, 3) float64: at each corner; None: flat
    uvs: NDArray[Any] | None  # (F, 3, 2) float64


class Level(NamedTuple):
    """One level of detail of a shape, as tables. float32 unless said."""

    error: float  # metres: how far it is from the shape itself
    boxes: NDArray[Any]  # (nodes, 6): centre, half sizes
    cones: NDArray[Any]  # (nodes, 4): axis of all normals, sine of the widest angle to it, or 2
    skip: NDArray[Any]  # (nodes,) int32: nodes to the next one that is not below this
    leaf: NDArray[Any]  # (nodes,) int32: which, or -1
    ends: NDArray[Any]  # (leaves + 1,) int64: the number of a leaf's first triangle
    xs: NDArray[Any]  # (3 F,): leaf by leaf, the first corners of its triangles, the second, the third
    ys: NDArray[Any]
    zs: NDArray[Any]
    normals: NDArray[Any]  # (F, SMOOTH): constant (3), then by x, by y, by z; or (F, FLAT)
    uvs: NDArray[Any]  # (F, UV): u: constant, by x, by y, by z; v: the same; or (0, UV)


class Shapes(NamedTuple):
    """All levels of all shapes, one after the other."""

    shape: NDArray[Any]  # (shapes, 2) int64: its first level, the end of its levels; finest first
    levels: NDArray[Any]  # (levels, 2) int64: its first node, the end of its nodes
    errors: NDArray[Any]  # (levels,)
    normals_at: NDArray[Any]  # (shapes, 2) int64: a triangle's place in `normals` is [0] + [1] * its number
    uvs_at: NDArray[Any]  # (shapes,) int64: its place in `uvs` is this + UV * its number, if it has any
    boxes: NDArray[Any]
    cones: NDArray[Any]
    skip: NDArray[Any]
    leaf: NDArray[Any]
    ends: NDArray[Any]
    xs: NDArray[Any]
    ys: NDArray[Any]
    zs: NDArray[Any]
    normals: NDArray[Any]  # flat
    uvs: NDArray[Any]  # flat


def mesh_triangles(model: mujoco.MjModel, mesh: int, uvs: bool) -> Triangles:
    """A mesh of the model, with normals as MuJoCo draws them, and with texture coordinates if it has any that are
    wanted."""
    begin, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    first, points = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    vertices = model.mesh_vert[first : first + points].astype(np.float64)
    faces = model.mesh_face[begin : begin + count].astype(np.int64)
    own = face_normals(vertices[faces])[:, None]  # (F, 1, 3)
    which = int(model.mesh_normaladr[mesh]) + model.mesh_facenormal[begin : begin + count]
    corner = model.mesh_normal[which].astype(np.float64)  # (F, 3, 3)
    usable = (corner * own).sum(axis=2, keepdims=True) >= _USABLE
    places = None
    if uvs and has_coordinates(model, mesh):
        which = int(model.mesh_texcoordadr[mesh]) + model.mesh_facetexcoord[begin : begin + count]
        places = model.mesh_texcoord[which].astype(np.float64)
    return Triangles(vertices, faces, np.where(usable, corner, own), places)


def has_coordinates(model: mujoco.MjModel, mesh: int) -> bool:
    """Whether a mesh says where every corner is in a texture."""
    begin, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    return model.mesh_texcoordadr[mesh] >= 0 and bool((model.mesh_facetexcoord[begin : begin + count] >= 0).all())


def face_normals(corners: NDArray[Any]) -> NDArray[Any]:
    """(F, 3, 3) -> (F, 3); 0 of a triangle without area."""
    across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(across, axis=1, keepdims=True)
    return np.divide(across, length, out=np.zeros_like(across), where=length > 0)


def level(surface: Triangles, error: float = 0.0) -> Level:
    """The tables of a surface that is `error` from the shape that it stands for."""
    corners = surface.points[surface.faces]  # (F, 3, 3)
    order, ends = _leaves(corners.mean(axis=1))
    corners = corners[order]
    own = face_normals(corners)
    count = np.diff(ends)
    begin, many = np.repeat(ends[:-1], count), np.repeat(count, count)  # (F,): of the leaf that it is in
    place = 3 * begin[:, None] + many[:, None] * np.arange(3) + (np.arange(len(corners)) - begin)[:, None]  # (F, 3)
    points = np.empty((3, 3 * len(corners)), np.float32)
    points[:, place] = corners.transpose(2, 0, 1)
    nodes = _tree(corners, own, ends)
    normals: NDArray[Any] = own
    if surface.normals is not None:
        normals = _affine(corners, surface.normals[order], own)
    uvs = np.zeros((0, UV))
    if surface.uvs is not None:
        uvs = _affine(corners, surface.uvs[order], own).reshape(-1, 4, 2).transpose(0, 2, 1).reshape(-1, UV)
    return Level(
        error=float(error),
        **nodes,
        ends=ends.astype(np.int64),
        **dict(zip(("xs", "ys", "zs"), points, strict=True)),
        normals=normals.astype(np.float32),
        uvs=uvs.astype(np.float32),
    )


def _leaves(centres: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """An order of F triangles, and where leaves begin and end in it (a power of two of them, + 1): halved again and
    again along the longest side, all parts at once."""
    count = len(centres)
    depth = 0
    while count > LEAF << depth:
        depth += 1
    order = np.arange(count)
    for step in range(depth):
        ends = np.arange((1 << step) + 1) * count >> step
        part = np.repeat(np.arange(1 << step), np.diff(ends))
        here = centres[order]
        sides = np.maximum.reduceat(here, ends[:-1]) - np.minimum.reduceat(here, ends[:-1])  # (parts, 3)
        along = np.take_along_axis(here, sides.argmax(axis=1)[part][:, None], axis=1)[:, 0]
        order = order[np.lexsort((along, part))]
    return order, np.arange((1 << depth) + 1) * count >> depth


def _tree(corners: NDArray[Any], own: NDArray[Any], ends: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Boxes and cones of all nodes, each followed by those below it."""
    leaves = len(ends) - 1  # a power of two
    depth = leaves.bit_length() - 1
    low = np.minimum.reduceat(corners.min(axis=1), ends[:-1])  # (leaves, 3)
    high = np.maximum.reduceat(corners.max(axis=1), ends[:-1])
    boxes, cones = np.zeros((2 * leaves - 1, 6)), np.full((2 * leaves - 1, 4), 2.0)
    skip, leaf = np.zeros(2 * leaves - 1, np.int32), np.full(2 * leaves - 1, -1, np.int32)
    places = [np.zeros(1, np.int64)]  # of the nodes at each depth
    for d in range(depth):
        below = (1 << (depth - d)) - 1  # nodes of a half
        places.append((places[d][:, None] + np.array([1, 1 + below])).ravel())
    for d in range(depth, -1, -1):
        at = places[d]
        boxes[at] = np.concatenate([(low + high) / 2, (high - low) / 2], axis=1)
        skip[at] = (1 << (depth - d + 1)) - 1
        if d == depth:
            leaf[at] = np.arange(leaves)
            cones[at] = _cones(own, ends)
        if d:
            low, high = np.minimum(low[::2], low[1::2]), np.maximum(high[::2], high[1::2])
    boxes[:, 3:] = boxes[:, 3:] * (1 + 1e-6) + 1e-9  # they are rounded to float32
    return {"boxes": boxes.astype(np.float32), "cones": cones.astype(np.float32), "skip": skip, "leaf": leaf}


def _cones(own: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """(leaves, 4): axis, and the sine of the widest angle to it; 2 where that is no less than a right angle."""
    axis = np.add.reduceat(own, ends[:-1])  # (leaves, 3)
    length = np.linalg.norm(axis, axis=1, keepdims=True)
    axis = np.divide(axis, length, out=np.zeros_like(axis), where=length > 1e-9)
    part = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    cosine = np.where((own != 0).any(axis=1), (own * axis[part]).sum(axis=1), 1.0)  # without area: never seen
    least = np.minimum.reduceat(cosine, ends[:-1])
    sine = np.where(least > 0.05, np.sqrt(np.clip(1 - least**2, 0, 1)) + 1e-4, 2.0)
    return np.concatenate([axis, sine[:, None]], axis=1)


def _affine(corners: NDArray[Any], values: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
    """Functions of the point that have these values (F, 3, k) at the corners (F, 3, 3) and do not change along the
    normal (F, 3): (F, 4 * k), constant, by x, by y, by z. Where that would be too steep: the mean."""
    one, two = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    left, right = np.cross(two, own), np.cross(own, one)
    area = (one * left).sum(axis=1, keepdims=True)  # twice
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by = (left / area)[:, :, None] * (values[:, 1] - values[:, 0])[:, None]  # (F, 3, k)
        by += (right / area)[:, :, None] * (values[:, 2] - values[:, 0])[:, None]
        steep = np.abs(by).max(axis=(1, 2)) * np.maximum(np.abs(corners).max(axis=(1, 2)), 1e-3)
        constant = values[:, 0] - (corners[:, 0][:, :, None] * by).sum(axis=1)
        good = (steep < _STEEP)[:, None, None]  # NaN compares false
    every = np.concatenate([constant[:, None], by], axis=1)  # (F, 4, k)
    plain = np.concatenate([values.mean(axis=1)[:, None], np.zeros_like(by)], axis=1)
    return np.where(good, every, plain).reshape(len(corners), -1)


def gather(shapes: list[list[Level]]) -> Shapes:
    """Shapes as levels, finest first, into one table."""
    every = [level for levels in shapes for level in levels]
    counts = _starts([len(levels) for levels in shapes])
    first = counts[:-1]
    nodes, leaves = _starts([len(level.skip) for level in every]), _starts([len(level.ends) - 1 for level in every])
    faces, uvs = _starts([len(level.normals) for level in every]), _starts([level.uvs.size for level in every])
    numbers = _starts([level.normals.size for level in every])
    stride = np.array([level.normals.shape[1] for level in every], np.int64)
    ends = [level.ends[:-1] + start for level, start in zip(every, faces[:-1], strict=True)]
    leaf = [np.where(level.leaf < 0, -1, level.leaf + start) for level, start in zip(every, leaves[:-1], strict=True)]
    return Shapes(
        shape=np.stack([counts[:-1], counts[1:]], axis=1),
        levels=np.stack([nodes[:-1], nodes[1:]], axis=1),
        errors=np.array([level.error for level in every], np.float32),
        normals_at=np.stack([numbers[:-1] - stride * faces[:-1], stride], axis=1)[first],
        uvs_at=uvs[first] - UV * faces[first],
        leaf=np.concatenate(leaf).astype(np.int32),
        ends=np.concatenate([*ends, faces[-1:]]),
        normals=np.concatenate([level.normals.ravel() for level in every]),
        uvs=np.concatenate([*(level.uvs.ravel() for level in every), np.zeros(1, np.float32)]),
        **{
            name: np.concatenate([getattr(level, name) for level in every])
            for name in ("boxes", "cones", "skip", "xs", "ys", "zs")
        },
    )


def _starts(sizes: list[int]) -> NDArray[np.int64]:
    """Where each begins, and the end of all."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
