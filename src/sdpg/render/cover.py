"""Compiled: which primitive is nearest in each pixel, and how far.

Everything happens in the camera's frame: the origin is the camera, the ray of a pixel goes along d = (x, y, -1), so
that its parameter t is the depth. Every geom writes depth and its index into those pixels of its screen bounds where it
is the nearest so far. The inner loops have no branches, so that the compiler makes vector instructions of them; hence
also the float32 constants, the slices, and rows that are a multiple of LANES long.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

import numpy as np

from sdpg.compiled import inline_jit, jit

LANES = 8  # pixels that are worked on at once
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 1, 2, 3, 4, 5, 6  # mjtGeom; MESH and SDF are more

_ZERO, _ONE, _TINY, _INF = np.float32(0), np.float32(1), np.float32(1e-12), np.float32(np.inf)
_TIE = np.float32(1 + 1e-6)  # surfaces this close are one; the later geom is seen, as in MuJoCo


@inline_jit
def _turn(matrix, v0, v1, v2, k):
    """Component k in the camera's frame of a world vector."""
    return matrix[k] * v0 + matrix[3 + k] * v1 + matrix[6 + k] * v2


@inline_jit
def _place(pose, kind, size, xpos, xmat, cpos, cmat):
    """A geom's row: 0 centre, 3, 6, 9 its axes x, y, z, 12 size. (15,)"""
    for k in range(3):
        # Differences in float64: far from the world's origin float32 would make the picture shake.
        pose[k] = _turn(cmat, xpos[0] - cpos[0], xpos[1] - cpos[1], xpos[2] - cpos[2], k)
        for axis in range(3):
            pose[3 + 3 * axis + k] = _turn(cmat, xmat[axis], xmat[3 + axis], xmat[6 + axis], k)
        pose[12 + k] = size[k]
    if kind == SPHERE:
        pose[13] = _ZERO  # a capsule without length


@inline_jit
def _sphere_bounds(c, depth, r):
    """Where a sphere at coordinate c and this depth begins and ends on the plane at depth 1."""
    over = depth * depth - r * r
    reach = r * sqrt(max(c * c + over, 0.0))
    return (c * depth - reach) / over, (c * depth + reach) / over


@inline_jit
def _bounds(pose, kind, out):
    """xmin, xmax, ymin, ymax on the plane at depth 1; everything if the camera is close. False: it is behind."""
    out[0], out[1], out[2], out[3] = -1e9, 1e9, -1e9, 1e9
    if kind == PLANE:
        return True
    if kind in (SPHERE, CAPSULE):
        r, h = np.float64(pose[12]), np.float64(pose[13])
        d0, d1 = h * pose[11] - pose[2], -h * pose[11] - pose[2]
        if d0 <= -r and d1 <= -r:
            return False
        if d0 > 1.001 * r and d1 > 1.001 * r:
            for k in range(2):
                a0, b0 = _sphere_bounds(pose[k] - h * pose[9 + k], d0, r)
                a1, b1 = _sphere_bounds(pose[k] + h * pose[9 + k], d1, r)
                out[2 * k], out[2 * k + 1] = min(a0, a1), max(b0, b1)
        return True
    sx, sy, sz = pose[12], pose[13], pose[14]
    if kind == CYLINDER:
        sy, sz = pose[12], pose[13]
    nearest, farthest = np.inf, -np.inf
    x0, x1, y0, y1 = np.inf, -np.inf, np.inf, -np.inf
    for corner in range(8):  # of the box around it
        fx = sx if corner & 1 else -sx
        fy = sy if corner & 2 else -sy
        fz = sz if corner & 4 else -sz
        depth = -np.float64(pose[2] + fx * pose[5] + fy * pose[8] + fz * pose[11])
        nearest, farthest = min(nearest, depth), max(farthest, depth)
        x = (pose[0] + fx * pose[3] + fy * pose[6] + fz * pose[9]) / depth
        y = (pose[1] + fx * pose[4] + fy * pose[7] + fz * pose[10]) / depth
        x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
    if nearest > 1e-4:
        out[0], out[1], out[2], out[3] = x0, x1, y0, y1
    return farthest > 0.0


@inline_jit
def _pixels(low, high, first, step, count):
    """Pixels [a, b) of `count` whose centres, first + index * step, are from low to high, and one more either side."""
    a, b = (low - first) / step, (high - first) / step
    if a > b:
        a, b = b, a
    a, b = max(a, -1.0), min(b, float(count))
    if not a <= b:  # beside the picture, or not a number
        return 0, 0
    return max(0, floor(a)), min(count, ceil(b) + 1)


# p: the geom's row; z (H, Wp): nearest depth so far; ids (H, Wp): whose; box: rows [0, 1) and columns [2, 3)


@inline_jit
def _draw_capsule(p, xs, ys, z, ids, box, g):
    """Also spheres. The parts of d and of the centre that are perpendicular to the axis make a quadratic in t."""
    r, h, ax, ay, az = p[12], p[13], p[9], p[10], p[11]
    along = p[0] * ax + p[1] * ay + p[2] * az  # of the centre on the axis
    nx, ny, nz = p[1] * az - p[2] * ay, p[2] * ax - p[0] * az, p[0] * ay - p[1] * ax  # centre x axis
    centre = p[0] * p[0] + p[1] * p[1] + p[2] * p[2] + h * h - r * r
    c_plus, c_minus = centre + (h + h) * along, centre - (h + h) * along  # of the spheres at the ends
    rr, px = r * r, p[0]
    columns = xs[box[2] : box[3]]
    for i in range(box[0], box[1]):
        near, whose = z[i, box[2] : box[3]], ids[i, box[2] : box[3]]
        y = ys[i]
        a0, p0, n0, d0 = ay * y - az, p[1] * y - p[2], ny * y - nz, y * y + _ONE
        for j in range(columns.size):
            x = columns[j]
            da, dp, dn, dd = ax * x + a0, px * x + p0, nx * x + n0, x * x + d0
            a = max(dd - da * da, _TINY)
            disc = a * rr - dn * dn
            t = (dp - da * along - np.sqrt(max(disc, _ZERO))) / a
            s = t * da - along
            # Beyond an end of the cylinder only the sphere at that end can be hit.
            b = dp + (h if s > _ZERO else -h) * da
            disc_end = b * b - dd * (c_plus if s > _ZERO else c_minus)
            t_end = (b - np.sqrt(max(disc_end, _ZERO))) / dd
            inside = abs(s) <= h
            t = t if inside else t_end
            disc = disc if inside else min(disc, disc_end)
            seen = (disc >= _ZERO) & (t > _ZERO) & (t <= near[j] * _TIE)
            near[j] = t if seen else near[j]
            whose[j] = g if seen else whose[j]


@inline_jit
def _draw_ellipsoid(p, xs, ys, z, ids, box, g):
    """A unit sphere, after dividing its own coordinates by its half axes."""
    iu, iv, iw = _ONE / p[12], _ONE / p[13], _ONE / p[14]
    ux, uy, uz = p[3] * iu, p[4] * iu, p[5] * iu
    vx, vy, vz = p[6] * iv, p[7] * iv, p[8] * iv
    wx, wy, wz = p[9] * iw, p[10] * iw, p[11] * iw
    cu, cv, cw = (
        ux * p[0] + uy * p[1] + uz * p[2], vx * p[0] + vy * p[1] + vz * p[2], wx * p[0] + wy * p[1] + wz * p[2],
    )  # fmt: skip
    columns = xs[box[2] : box[3]]
    for i in range(box[0], box[1]):
        near, whose = z[i, box[2] : box[3]], ids[i, box[2] : box[3]]
        y = ys[i]
        u0, v0, w0 = uy * y - uz, vy * y - vz, wy * y - wz
        for j in range(columns.size):
            x = columns[j]
            du, dv, dw = ux * x + u0, vx * x + v0, wx * x + w0
            dd = du * du + dv * dv + dw * dw
            # |d|^2 - |d x centre|^2 instead of b^2 - a c: the numbers stay small.
            mu, mv, mw = dv * cw - dw * cv, dw * cu - du * cw, du * cv - dv * cu
            disc = dd - (mu * mu + mv * mv + mw * mw)
            t = (du * cu + dv * cv + dw * cw - np.sqrt(max(disc, _ZERO))) / dd
            seen = (disc >= _ZERO) & (t > _ZERO) & (t <= near[j] * _TIE)
            near[j] = t if seen else near[j]
            whose[j] = g if seen else whose[j]


@inline_jit
def _nonzero(value):
    return value if abs(value) > _TINY else _TINY


@inline_jit
def _draw_cylinder(p, xs, ys, z, ids, box, g):
    """Where the ray is both inside the endless cylinder and between the planes of the ends."""
    h, ax, ay, az = p[13], p[9], p[10], p[11]
    along = p[0] * ax + p[1] * ay + p[2] * az
    nx, ny, nz = p[1] * az - p[2] * ay, p[2] * ax - p[0] * az, p[0] * ay - p[1] * ax
    rr, px = p[12] * p[12], p[0]
    columns = xs[box[2] : box[3]]
    for i in range(box[0], box[1]):
        near, whose = z[i, box[2] : box[3]], ids[i, box[2] : box[3]]
        y = ys[i]
        a0, p0, n0, d0 = ay * y - az, p[1] * y - p[2], ny * y - nz, y * y + _ONE
        for j in range(columns.size):
            x = columns[j]
            da, dp, dn, dd = ax * x + a0, px * x + p0, nx * x + n0, x * x + d0
            a = max(dd - da * da, _TINY)
            disc = a * rr - dn * dn
            root, middle, slope = np.sqrt(max(disc, _ZERO)), dp - da * along, _nonzero(da)
            t0, t1 = (along - h) / slope, (along + h) / slope
            t = max((middle - root) / a, min(t0, t1))
            leave = min((middle + root) / a, max(t0, t1))
            seen = (disc >= _ZERO) & (t <= leave) & (t > _ZERO) & (t <= near[j] * _TIE)
            near[j] = t if seen else near[j]
            whose[j] = g if seen else whose[j]


@inline_jit
def _draw_box(p, xs, ys, z, ids, box, g):
    """Where the ray is between all three pairs of planes."""
    px, qx, rx, s0, s1, s2 = p[3], p[6], p[9], p[12], p[13], p[14]
    c0 = p[3] * p[0] + p[4] * p[1] + p[5] * p[2]
    c1 = p[6] * p[0] + p[7] * p[1] + p[8] * p[2]
    c2 = p[9] * p[0] + p[10] * p[1] + p[11] * p[2]
    columns = xs[box[2] : box[3]]
    for i in range(box[0], box[1]):
        near, whose = z[i, box[2] : box[3]], ids[i, box[2] : box[3]]
        y = ys[i]
        u0, v0, w0 = p[4] * y - p[5], p[7] * y - p[8], p[10] * y - p[11]
        for j in range(columns.size):
            x = columns[j]
            du, dv, dw = _nonzero(px * x + u0), _nonzero(qx * x + v0), _nonzero(rx * x + w0)
            a0, a1, a2 = (c0 - s0) / du, (c1 - s1) / dv, (c2 - s2) / dw
            b0, b1, b2 = (c0 + s0) / du, (c1 + s1) / dv, (c2 + s2) / dw
            t = max(max(min(a0, b0), min(a1, b1)), min(a2, b2))
            leave = min(min(max(a0, b0), max(a1, b1)), max(a2, b2))
            seen = (t <= leave) & (t > _ZERO) & (t <= near[j] * _TIE)
            near[j] = t if seen else near[j]
            whose[j] = g if seen else whose[j]


@inline_jit
def _draw_plane(p, xs, ys, z, ids, box, g):
    """Seen from above only; a size of 0 means endless."""
    ax, ux, vx = p[9], p[3], p[6]
    height = p[9] * p[0] + p[10] * p[1] + p[11] * p[2]  # of the plane above the camera, along its normal
    c0 = p[3] * p[0] + p[4] * p[1] + p[5] * p[2]
    c1 = p[6] * p[0] + p[7] * p[1] + p[8] * p[2]
    s0, s1 = (p[12] if p[12] > _ZERO else _INF), (p[13] if p[13] > _ZERO else _INF)
    columns = xs[box[2] : box[3]]
    for i in range(box[0], box[1]):
        near, whose = z[i, box[2] : box[3]], ids[i, box[2] : box[3]]
        y = ys[i]
        n0, u0, v0 = p[10] * y - p[11], p[4] * y - p[5], p[7] * y - p[8]
        if ax * columns[0] + n0 >= _ZERO and ax * columns[-1] + n0 >= _ZERO:
            continue  # the row looks away from it
        for j in range(columns.size):
            x = columns[j]
            dn = ax * x + n0
            t = height / dn
            u, v = t * (ux * x + u0) - c0, t * (vx * x + v0) - c1
            seen = (dn < -_TINY) & (abs(u) <= s0) & (abs(v) <= s1) & (t > _ZERO) & (t <= near[j] * _TIE)
            near[j] = t if seen else near[j]
            whose[j] = g if seen else whose[j]


@inline_jit
def _draw(kind, xs, ys, p, g, z, ids, box):
    if kind == PLANE:
        _draw_plane(p, xs, ys, z, ids, box, g)
    elif kind == BOX:
        _draw_box(p, xs, ys, z, ids, box, g)
    elif kind == CYLINDER:
        _draw_cylinder(p, xs, ys, z, ids, box, g)
    elif kind == ELLIPSOID:
        _draw_ellipsoid(p, xs, ys, z, ids, box, g)
    else:
        _draw_capsule(p, xs, ys, z, ids, box, g)


@jit
def cover(geometry, poses, begin, end, z, ids, pose, box, depth):
    """Worlds begin to end, n of them: fills z and ids (n, H, Wp), the geoms' rows `pose` (n, G, 15), `box` (n, G, 4) of
    rows and columns that they may be in, and depth (N, H, W), unless that is (0, H, W)."""
    height = geometry.ys.shape[1]
    bounds = np.empty(4)
    for w in range(end - begin):
        n = begin + w
        cpos, cmat = poses.cam_xpos[n, geometry.camera], poses.cam_xmat[n, geometry.camera]
        r = n % geometry.xs.shape[0]
        xs, ys, grid = geometry.xs[r], geometry.ys[r], geometry.grid[r]
        z[w], ids[w], box[w] = geometry.far, -1, 0
        for g in range(geometry.kind.size):
            k, row, around, kind = geometry.geom[g], pose[w, g], box[w, g], geometry.kind[g]
            if not geometry.visible[r, g] or kind == HFIELD or kind > BOX:
                continue
            _place(row, kind, geometry.size[r, g], poses.geom_xpos[n, k], poses.geom_xmat[n, k], cpos, cmat)
            if _bounds(row, kind, bounds):
                i0, i1 = _pixels(bounds[2], bounds[3], grid[2], grid[3], height)
                j0, j1 = _pixels(bounds[0], bounds[1], grid[0], grid[1], geometry.width)
                if i1 > i0 and j1 > j0:
                    around[0], around[1] = i0, i1
                    around[2], around[3] = j0 // LANES * LANES, (j1 + LANES - 1) // LANES * LANES
                    _draw(kind, xs, ys, row, np.int32(g), z[w], ids[w], around)
        if depth.shape[0]:
            for i in range(height):
                near, whose, out = z[w, i], ids[w, i], depth[n, i]
                for j in range(out.size):
                    out[j] = near[j] if whose[j] >= 0 else _INF
