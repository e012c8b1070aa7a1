"""Height fields as triangles: cells that lie in one plane become one rectangle."""

from __future__ import annotations

import mujoco
import numpy as np

from sdpg.compiled import jit
from sdpg.render.meshes import Triangles

_FLAT = 1e-6  # metres by which heights of a plane may differ from it
_LARGEST = 32  # cells along a side of a rectangle: larger ones could not be left out one by one


def field_triangles(model: mujoco.MjModel, field: int) -> Triangles:
    """A height field of the model, in its geom's frame. MuJoCo cuts a cell from its lowest x and y to its highest."""
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    start = int(model.hfield_adr[field])
    x, y, z = (float(size) for size in model.hfield_size[field][:3])
    heights = model.hfield_data[start : start + rows * columns].reshape(rows, columns).astype(np.float64) * z
    patches = _rectangles(heights, _FLAT, _LARGEST)  # (P, 4)
    r0, c0, r1, c1 = patches.T
    nodes = np.stack([r0 * columns + c0, r0 * columns + c1, r1 * columns + c1, r1 * columns + c0], axis=1)  # (P, 4)
    used, corner = np.unique(nodes, return_inverse=True)
    corner = corner.reshape(-1, 4)
    points = np.stack(
        [
            x * (2 * (used % columns) / max(columns - 1, 1) - 1),
            y * (2 * (used // columns) / max(rows - 1, 1) - 1),
            heights.ravel()[used],
        ],
        axis=1,
    )
    faces = np.stack([corner[:, [0, 1, 2]], corner[:, [0, 2, 3]]], axis=1).reshape(-1, 3)
    return Triangles(points, faces, None, None)


@jit
def _rectangles(heights, tolerance, largest):  # type: ignore[no-untyped-def]
    """(P, 4): first row and column of nodes, last row and column. Greedy, along rows first."""
    rows, columns = heights.shape[0] - 1, heights.shape[1] - 1
    taken, found = np.zeros((rows, columns), np.bool_), np.empty((rows * columns, 4), np.int64)
    count = 0
    for r in range(rows):
        for c in range(columns):
            if taken[r, c]:
                continue
            base, right, up = heights[r, c], heights[r, c + 1] - heights[r, c], heights[r + 1, c] - heights[r, c]
            high, wide = 1, 1
            if abs(base + right + up - heights[r + 1, c + 1]) <= tolerance:
                while wide < largest and c + wide < columns and not taken[r, c + wide]:
                    k = wide + 1
                    if (
                        abs(base + k * right - heights[r, c + k]) > tolerance
                        or abs(base + k * right + up - heights[r + 1, c + k]) > tolerance
                    ):
                        break
                    wide += 1
                while high < largest and r + high < rows:
                    k, good = high + 1, True
                    for q in range(wide + 1):
                        if abs(base + q * right + k * up - heights[r + k, c + q]) > tolerance:
                            good = False
                        if q < wide and taken[r + high, c + q]:
                            good = False
                    if not good:
                        break
                    high += 1
            taken[r : r + high, c : c + wide] = True
            found[count, 0], found[count, 1], found[count, 2], found[count, 3] = r, c, r + high, c + wide
            count += 1
    return found[:count].copy()
