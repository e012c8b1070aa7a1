"""Compiled: which triangle of meshes and height fields is nearest in each pixel.

After `cover`, into the same depths. A shape is a tree of boxes with leaves of a few dozen triangles. Boxes beside the
picture and leaves that face away are skipped; of a leaf's triangles, those that face the camera and hold the centre of
a pixel are filled row by row: in the picture an edge is a line, and one over the depth is linear. For a triangle that
reaches behind the camera the same lines come from cross products, so that nothing has to be clipped.

Pixels are counted from 0 at the centre of the first: (x, y) = (hx, hy) / hw, where hx, hy and the depth hw are linear
in a shape's own coordinates.
"""

from __future__ import annotations

from math import ceil, floor, inf, sqrt

import numpy as np

from sdpg.compiled import inline_jit, jit

LEAF = 48  # triangles of a leaf at most
DETAIL = 0.25  # of a pixel: the error that a level of detail may have

_ZERO, _ONE, _INF, _TIE = np.float32(0), np.float32(1), np.float32(np.inf), np.float32(1 + 1e-6)
_NEAR = 1e-4  # metres: what is nearer is treated as if it were behind the camera in part
_SMALL = 4.0  # pixels: what is smaller is filled without lines
_ROUNDING = np.float32(-1e-3)  # square pixels
_FARTHEST = 4096.0  # pixels from the corner of the picture: beyond that float32 is too coarse for lines


@inline_jit
def _place(pose, size, xpos, xmat, cpos, cmat):
    """A shape's row as `cover` has it: 0 where it is, 3, 6, 9 its axes, 12 size. (15,)"""
    d0, d1, d2 = xpos[0] - cpos[0], xpos[1] - cpos[1], xpos[2] - cpos[2]
    for k in range(3):
        pose[k] = cmat[k] * d0 + cmat[3 + k] * d1 + cmat[6 + k] * d2
        for axis in range(3):
            pose[3 + 3 * axis + k] = cmat[k] * xmat[axis] + cmat[3 + k] * xmat[3 + axis] + cmat[6 + k] * xmat[6 + axis]
        pose[12 + k] = size[k]


@inline_jit
def _projection(pose, grid, m):
    """m (12,): hx, hy, hw as rows of (x, y, z, 1)."""
    for k in range(4):
        at = 3 + 3 * k if k < 3 else 0
        x, y, z = np.float64(pose[at]), np.float64(pose[at + 1]), np.float64(pose[at + 2])
        m[k] = (x + grid[0] * z) / grid[1]
        m[4 + k] = (y + grid[2] * z) / grid[3]
        m[8 + k] = -z


@inline_jit
def _sides(m, width, height, far, planes):
    """planes (6, 4): functions that are below 0 beside the picture, behind the camera, and too far away."""
    for k in range(4):
        planes[0, k], planes[1, k] = m[k], (width - 1) * m[8 + k] - m[k]
        planes[2, k], planes[3, k] = m[4 + k], (height - 1) * m[8 + k] - m[4 + k]
        planes[4, k], planes[5, k] = m[8 + k], -m[8 + k]
    planes[5, 3] += far


@inline_jit
def _outside(boxes, node, planes):
    x, y, z = np.float64(boxes[node, 0]), np.float64(boxes[node, 1]), np.float64(boxes[node, 2])
    a, b, c = np.float64(boxes[node, 3]), np.float64(boxes[node, 4]), np.float64(boxes[node, 5])
    for k in range(6):
        p, q, r = planes[k, 0], planes[k, 1], planes[k, 2]
        if p * x + q * y + r * z + planes[k, 3] + abs(p) * a + abs(q) * b + abs(r) * c < 0.0:
            return True
    return False


@inline_jit
def _nearest(boxes, node, planes):
    """The least depth of a box."""
    p, q, r = planes[4, 0], planes[4, 1], planes[4, 2]
    middle = p * boxes[node, 0] + q * boxes[node, 1] + r * boxes[node, 2] + planes[4, 3]
    return middle - abs(p) * boxes[node, 3] - abs(q) * boxes[node, 4] - abs(r) * boxes[node, 5]


@inline_jit
def _turned_away(boxes, cones, node, ex, ey, ez):
    """No triangle of this leaf faces the eye: all normals are within a cone."""
    cutoff = np.float64(cones[node, 3])
    if cutoff > 1.0:
        return False
    x, y, z = boxes[node, 0] - ex, boxes[node, 1] - ey, boxes[node, 2] - ez
    a, b, c = np.float64(boxes[node, 3]), np.float64(boxes[node, 4]), np.float64(boxes[node, 5])
    along = x * cones[node, 0] + y * cones[node, 1] + z * cones[node, 2]
    return along >= cutoff * sqrt(x * x + y * y + z * z) + sqrt(a * a + b * b + c * c)


@inline_jit
def _distance(boxes, node, ex, ey, ez):
    x = max(abs(ex - boxes[node, 0]) - boxes[node, 3], 0.0)
    y = max(abs(ey - boxes[node, 1]) - boxes[node, 4], 0.0)
    z = max(abs(ez - boxes[node, 2]) - boxes[node, 5], 0.0)
    return sqrt(x * x + y * y + z * z)


@inline_jit
def _level(boxes, skip, leaf, levels, errors, first, end, planes, ex, ey, ez, pixel):
    """The coarsest whose error is small where the shape is nearest: its row of `levels`, or -1 if nothing is seen."""
    if end - first == 1:
        return first
    node, last = levels[end - 1, 0], levels[end - 1, 1]
    nearest = inf
    while node < last:  # the leaves of the coarsest
        if _outside(boxes, node, planes):
            node += skip[node]
        else:
            if leaf[node] >= 0:
                nearest = min(nearest, _distance(boxes, node, ex, ey, ez))
            node += 1
    if nearest == inf:
        return np.int64(-1)
    allowed = DETAIL * pixel * max(nearest - np.float64(errors[end - 1]), 0.0)
    chosen = end - 1
    while chosen > first and errors[chosen] > allowed:
        chosen -= 1
    return chosen


# What bounds a triangle in the picture: of each edge whether it ends (1), begins (-1) or does not bound (0) a row, the
# column where it does so at row 0, and columns per row; one over the depth at (0, 0), per column, per row; the least
# and the greatest that it can be; first and last row.


@inline_jit
def _line(ax, ay, bx, by, turn):
    """The edge from a to b; computed the same way, whichever of its two triangles it belongs to."""
    if by > ay:
        slope = (bx - ax) / (by - ay)
        return turn, ax - ay * slope, slope
    if by < ay:
        slope = (ax - bx) / (ay - by)
        return -turn, bx - by * slope, slope
    return 0.0, 0.0, 0.0


@inline_jit
def _before(turn, height, ax, ay, aw, bx, by, bw, cx, cy, cw):
    """The bounds of a triangle before the camera: corners in pixels, and one over their depths."""
    k0, b0, s0 = _line(ax, ay, bx, by, turn)
    k1, b1, s1 = _line(bx, by, cx, cy, turn)
    k2, b2, s2 = _line(cx, cy, ax, ay, turn)
    ux, uy, uw, vx, vy, vw = bx - ax, by - ay, bw - aw, cx - ax, cy - ay, cw - aw
    scale = 1.0 / (ux * vy - uy * vx)
    wx, wy = (uw * vy - vw * uy) * scale, (vw * ux - uw * vx) * scale
    least, most = min(aw, min(bw, cw)), max(aw, max(bw, cw))
    i0, i1 = ceil(max(min(ay, min(by, cy)), 0.0)), floor(min(max(ay, max(by, cy)), height - 1.0))
    return k0, b0, s0, k1, b1, s1, k2, b2, s2, aw - wx * ax - wy * ay, wx, wy, least, most, i0, i1


@inline_jit
def _corner(m, x, y, z):
    """hx, hy, hw of a point."""
    return (
        m[0] * x + m[1] * y + m[2] * z + m[3], m[4] * x + m[5] * y + m[6] * z + m[7],
        m[8] * x + m[9] * y + m[10] * z + m[11],
    )  # fmt: skip


@inline_jit
def _side(x, y, c):
    """Where x column + y row + c >= 0: the edge as above, and the first and the last row if they are what it bounds."""
    if abs(x) > 1e-12 * (abs(y) + abs(c)):
        return (-1.0 if x > 0.0 else 1.0), -c / x, -y / x, -inf, inf
    if y > 0.0:
        return 0.0, 0.0, 0.0, -c / y, inf
    if y < 0.0:
        return 0.0, 0.0, 0.0, -inf, -c / y
    return 0.0, 0.0, 0.0, (inf if c < 0.0 else -inf), inf


@inline_jit
def _across(turn, height, ax, ay, aw, bx, by, bw, cx, cy, cw):
    """The bounds of a triangle of which a part is before the camera: hx, hy, hw of its corners. A point of the picture
    is in it if its products with the three cross products of corners have the sign of their volume."""
    px, py, pw = by * cw - bw * cy, bw * cx - bx * cw, bx * cy - by * cx
    qx, qy, qw = cy * aw - cw * ay, cw * ax - cx * aw, cx * ay - cy * ax
    rx, ry, rw = ay * bw - aw * by, aw * bx - ax * bw, ax * by - ay * bx
    volume = ax * px + ay * py + aw * pw
    if not volume * turn > 0.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, -1
    v = 1.0 / volume
    k0, b0, s0, low0, high0 = _side(px * v, py * v, pw * v)
    k1, b1, s1, low1, high1 = _side(qx * v, qy * v, qw * v)
    k2, b2, s2, low2, high2 = _side(rx * v, ry * v, rw * v)
    low = min(max(max(low0, max(low1, low2)), 0.0), float(height))
    high = max(min(min(high0, min(high1, high2)), height - 1.0), -1.0)
    w0, wx, wy = (pw + qw + rw) * v, (px + qx + rx) * v, (py + qy + ry) * v
    return k0, b0, s0, k1, b1, s1, k2, b2, s2, w0, wx, wy, 1e-6, 1e9, ceil(low), floor(high)


@inline_jit
def _project(xs, ys, zs, m, px, py, iw):
    """A leaf's corners in pixels, and one over their depths."""
    m0, m1, m2, m3 = np.float32(m[0]), np.float32(m[1]), np.float32(m[2]), np.float32(m[3])
    m4, m5, m6, m7 = np.float32(m[4]), np.float32(m[5]), np.float32(m[6]), np.float32(m[7])
    m8, m9, m10, m11 = np.float32(m[8]), np.float32(m[9]), np.float32(m[10]), np.float32(m[11])
    for v in range(xs.size):
        x, y, w = xs[v], ys[v], zs[v]
        inverse = _ONE / (m8 * x + m9 * y + m10 * w + m11)
        px[v], py[v] = (m0 * x + m1 * y + m2 * w + m3) * inverse, (m4 * x + m5 * y + m6 * w + m7) * inverse
        iw[v] = inverse


@inline_jit
def _keep(ax, ay, bx, by, cx, cy, turn, height, width, keep):
    """Which triangles of a leaf face the camera and may hold the centre of a pixel."""
    side, right, bottom = np.float32(turn), np.float32(width - 1), np.float32(height - 1)
    for k in range(ax.size):
        x, y, p, q, r, s = ax[k], ay[k], bx[k], by[k], cx[k], cy[k]
        area = ((p - x) * (s - y) - (q - y) * (r - x)) * side
        x0, x1 = np.ceil(max(min(x, min(p, r)), _ZERO)), np.floor(min(max(x, max(p, r)), right))
        y0, y1 = np.ceil(max(min(y, min(q, s)), _ZERO)), np.floor(min(max(y, max(q, s)), bottom))
        # Most have one centre at most in the box around them; if it is not in the triangle, that's it.
        u = ((p - x) * (y0 - y) - (q - y) * (x0 - x)) * side
        v = ((r - p) * (y0 - q) - (s - q) * (x0 - p)) * side
        w = ((x - r) * (y0 - s) - (y - s) * (x0 - r)) * side
        missed = (x0 == x1) & (y0 == y1) & (min(u, min(v, w)) < _ROUNDING)
        good = (area > _ZERO) & (x0 <= x1) & (y0 <= y1) & (not missed)
        keep[k] = np.int32(1) if good else np.int32(0)


@inline_jit
def _draw_leaf(corners, leaf, before, m, turn, height, width, g, z, ids, tri, room):
    """How many triangles were filled. before: all of it is before the camera; room: arrays to work with. (One call for
    a leaf, and of a triangle only numbers are handed on: handing over an array costs more than a small triangle.)"""
    ends, all_x, all_y, all_z = corners
    begin, end = ends[leaf], ends[leaf + 1]
    xs, ys, zs = all_x[3 * begin : 3 * end], all_y[3 * begin : 3 * end], all_z[3 * begin : 3 * end]
    (px, py, iw, keep), many = room, end - begin
    _project(xs, ys, zs, m, px, py, iw)
    if before:
        _keep(
            px[:many], py[:many], px[many : 2 * many], py[many : 2 * many], px[2 * many : 3 * many],
            py[2 * many : 3 * many], turn, height, width, keep,
        )  # fmt: skip
    count = 0
    for k in range(many):
        ia, ib, ic = k, many + k, 2 * many + k
        if not before:
            # With a corner behind the camera, none of that holds; with all three it can't be seen.
            if iw[ia] < 0 and iw[ib] < 0 and iw[ic] < 0:
                continue
        elif keep[k] == 0:
            continue
        ax, ay, aw = np.float64(px[ia]), np.float64(py[ia]), np.float64(iw[ia])
        bx, by, bw = np.float64(px[ib]), np.float64(py[ib]), np.float64(iw[ib])
        cx, cy, cw = np.float64(px[ic]), np.float64(py[ic]), np.float64(iw[ic])
        x0, x1 = min(ax, min(bx, cx)), max(ax, max(bx, cx))
        wide = max(max(abs(x0), abs(x1)), max(abs(ay), max(abs(by), abs(cy))))
        if before and wide < _FARTHEST:
            y0, y1 = min(ay, min(by, cy)), max(ay, max(by, cy))
            if x1 - x0 < _SMALL and y1 - y0 < _SMALL:
                count += 1
                f = np.int32(begin + k)
                for i in range(ceil(max(y0, 0.0)), floor(min(y1, height - 1.0)) + 1):
                    for j in range(ceil(max(x0, 0.0)), floor(min(x1, width - 1.0)) + 1):
                        # Each is what the corner across from an edge has of the point, times the area.
                        c_has = ((bx - ax) * (i - ay) - (by - ay) * (j - ax)) * turn
                        a_has = ((cx - bx) * (i - by) - (cy - by) * (j - bx)) * turn
                        b_has = ((ax - cx) * (i - cy) - (ay - cy) * (j - cx)) * turn
                        if min(a_has, min(b_has, c_has)) < 0.0:
                            continue
                        t = np.float32((a_has + b_has + c_has) / (a_has * aw + b_has * bw + c_has * cw))
                        if t <= (z[i, j] * _TIE if ids[i, j] <= g else z[i, j] / _TIE):
                            z[i, j], ids[i, j], tri[i, j] = t, g, f
                continue
            bounds = _before(turn, height, ax, ay, aw, bx, by, bw, cx, cy, cw)
            j0, j1 = max(x0, 0.0), min(x1, width - 1.0)
        else:
            ax, ay, aw = _corner(m, xs[ia], ys[ia], zs[ia])
            bx, by, bw = _corner(m, xs[ib], ys[ib], zs[ib])
            cx, cy, cw = _corner(m, xs[ic], ys[ic], zs[ic])
            bounds = _across(turn, height, ax, ay, aw, bx, by, bw, cx, cy, cw)
            j0, j1 = 0.0, width - 1.0
        k0, b0, s0, k1, b1, s1, k2, b2, s2, w0, wx, wy, least, most, i0, i1 = bounds
        count += 1
        f = np.int32(begin + k)
        for i in range(i0, i1 + 1):
            low, high = j0, j1
            x = b0 + s0 * i
            if k0 > 0.0:
                high = min(high, x)
            elif k0 < 0.0:
                low = max(low, x)
            x = b1 + s1 * i
            if k1 > 0.0:
                high = min(high, x)
            elif k1 < 0.0:
                low = max(low, x)
            x = b2 + s2 * i
            if k2 > 0.0:
                high = min(high, x)
            elif k2 < 0.0:
                low = max(low, x)
            if not low <= high:
                continue
            along = w0 + wy * i
            for j in range(ceil(low), floor(high) + 1):
                t = np.float32(1.0 / min(max(along + wx * j, least), most))
                # Where two surfaces are as near as each other the later geom is seen.
                if t <= (z[i, j] * _TIE if ids[i, j] <= g else z[i, j] / _TIE):
                    z[i, j], ids[i, j], tri[i, j] = t, g, f
    return count


@jit
def cover_triangles(geometry, solids, shapes, poses, begin, end, z, ids, tri, pose, depth, counts):
    """Worlds begin to end, n of them: adds to z, ids and tri (n, H, Wp) and to pose (n, G, 15); fills depth (N, H, W),
    unless that is (0, H, W), and counts (N, 3): shapes that were drawn, the sum of their levels, triangles filled."""
    height, width = geometry.ys.shape[1], geometry.width
    m, planes = np.empty(12), np.empty((6, 4))
    boxes, cones, skip, leaves, levels = shapes.boxes, shapes.cones, shapes.skip, shapes.leaf, shapes.levels
    errors, corners = shapes.errors, (shapes.ends, shapes.xs, shapes.ys, shapes.zs)
    room = (
        np.empty(3 * LEAF, np.float32), np.empty(3 * LEAF, np.float32), np.empty(3 * LEAF, np.float32),
        np.empty(LEAF, np.int32),
    )  # fmt: skip
    for w in range(end - begin):
        n = begin + w
        cpos, cmat = poses.cam_xpos[n, geometry.camera], poses.cam_xmat[n, geometry.camera]
        r = n % geometry.xs.shape[0]
        grid, near, whose, which = geometry.grid[r], z[w], ids[w], tri[w]
        pixel, turn = min(abs(grid[1]), abs(grid[3])), (1.0 if grid[1] * grid[3] > 0.0 else -1.0)
        counts[n] = 0
        for s in range(solids.geom.size):
            g = solids.geom[s]
            if not geometry.visible[r, g]:
                continue
            row, k = pose[w, g], geometry.geom[g]
            _place(row, geometry.size[r, g], poses.geom_xpos[n, k], poses.geom_xmat[n, k], cpos, cmat)
            _projection(row, grid, m)
            _sides(m, width, height, np.float64(geometry.far), planes)
            ex = -(np.float64(row[0]) * row[3] + np.float64(row[1]) * row[4] + np.float64(row[2]) * row[5])
            ey = -(np.float64(row[0]) * row[6] + np.float64(row[1]) * row[7] + np.float64(row[2]) * row[8])
            ez = -(np.float64(row[0]) * row[9] + np.float64(row[1]) * row[10] + np.float64(row[2]) * row[11])
            first, beyond = shapes.shape[solids.shape[s], 0], shapes.shape[solids.shape[s], 1]
            level = _level(boxes, skip, leaves, levels, errors, first, beyond, planes, ex, ey, ez, pixel)
            if level < 0:
                continue
            seen = 0
            node, last = levels[level, 0], levels[level, 1]
            while node < last:
                if _outside(boxes, node, planes):
                    node += skip[node]
                    continue
                leaf = leaves[node]
                if leaf >= 0 and not _turned_away(boxes, cones, node, ex, ey, ez):
                    seen = 1
                    before = _nearest(boxes, node, planes) > _NEAR
                    counts[n, 2] += _draw_leaf(
                        corners, leaf, before, m, turn, height, width, np.int32(g), near, whose, which, room
                    )
                node += 1
            counts[n, 0] += seen
            counts[n, 1] += seen * (level - first)
        if depth.shape[0]:
            for i in range(height):
                for j in range(width):
                    depth[n, i, j] = near[i, j] if whose[i, j] >= 0 else _INF
