"""Compiled: what the nearest geom looks like in each pixel, as `mujoco_warp` has it, where that is quickly said:
planes, capsules and spheres that lights reach evenly and without highlights. `surfaces` does all else.

In the camera's frame, after `cover`; a row at a time, in loops that become vector instructions.
"""

from __future__ import annotations

import numpy as np

from sdpg.compiled import inline_jit, jit

PLANE = 0  # mjtGeom
DIRECTIONAL = 1  # mjtLightType
HEADLIGHT = -1  # in place of a light's number: directional, along the camera's view

_ZERO, _HALF, _ONE, _FULL = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255)


@inline_jit
def _byte(value):
    return np.uint8(min(max(value, _ZERO), _ONE) * _FULL)


@inline_jit
def _sample(look, image, u, v):
    """Colour 0 to 255 at u, v in [0, 1]: linear between texels, constant beyond the outermost centres."""
    start, width, height = look.images[image, 0], look.images[image, 1], look.images[image, 2]
    fx, fy = u * np.float32(width) - _HALF, v * np.float32(height) - _HALF
    x, y = np.floor(fx), np.floor(fy)
    fx, fy = fx - x, fy - y
    x0, y0 = min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1)
    x1, y1 = min(max(int(x) + 1, 0), width - 1), min(max(int(y) + 1, 0), height - 1)
    t, up, low = look.texels, start + y0 * width, start + y1 * width
    r = (t[up + x0, 0] * (_ONE - fx) + t[up + x1, 0] * fx) * (_ONE - fy)
    r += (t[low + x0, 0] * (_ONE - fx) + t[low + x1, 0] * fx) * fy
    g = (t[up + x0, 1] * (_ONE - fx) + t[up + x1, 1] * fx) * (_ONE - fy)
    g += (t[low + x0, 1] * (_ONE - fx) + t[low + x1, 1] * fx) * fy
    b = (t[up + x0, 2] * (_ONE - fx) + t[up + x1, 2] * fx) * (_ONE - fy)
    b += (t[low + x0, 2] * (_ONE - fx) + t[low + x1, 2] * fx) * fy
    return r, g, b


@inline_jit
def _shade_plane(xs, ys, look, r, p, g, lights, z, ids, box, rgb):
    """Row by row: texture coordinates, colours 0 to 255, light, which is the same everywhere."""
    m, image, wide, rows, ambient = look.material[r, g], look.texture[g], xs.size, look.light_rows[r], look.ambient[r]
    start, width, height = look.images[image]
    c0 = p[3] * p[0] + p[4] * p[1] + p[5] * p[2]
    c1 = p[6] * p[0] + p[7] * p[1] + p[8] * p[2]
    m0, m1, m2, m3 = look.mapping[r, g]
    ux, vx, cells = p[3], p[6], look.cells
    us, vs, at = np.empty(wide, np.float32), np.empty(wide, np.float32), np.zeros(wide, np.int32)
    colour, lit = np.full(wide, 0xFFFFFF, np.int32), np.zeros(3, np.float32)
    for k in range(lights.shape[0]):
        facing = max(p[9] * lights[k, 0] + p[10] * lights[k, 1] + p[11] * lights[k, 2], _ZERO)
        for c in range(3):
            lit[c] += rows[k, c] * facing
    for i in range(box[0], box[1]):
        y, near, whose = ys[i], z[i], ids[i]
        touched = False
        for j in range(wide):
            touched |= whose[j] == g
        if not touched:
            continue
        if image >= 0:
            u0, v0 = p[4] * y - p[5], p[7] * y - p[8]
            for j in range(wide):
                x, t = xs[j], near[j]
                u, v = m0 * (t * (ux * x + u0) - c0) + m1, m2 * (t * (vx * x + v0) - c1) + m3
                us[j], vs[j] = u - np.floor(u), v - np.floor(v)
                cell = np.int32(vs[j] * np.float32(height) + _HALF) * np.int32(width + 1)
                at[j] = cell + np.int32(us[j] * np.float32(width) + _HALF) if whose[j] == g else np.int32(0)
            mixed = False
            for j in range(wide):
                colour[j] = cells[start + at[j]]
                mixed |= colour[j] < 0
            if mixed:
                for j in range(wide):
                    if colour[j] < 0 and whose[j] == g:
                        red, green, blue = _sample(look, image, us[j], vs[j])
                        colour[j] = (int(red + _HALF) << 16) + (int(green + _HALF) << 8) + int(blue + _HALF)
        for c in range(3):
            base, out, light, shift = m[c] / _FULL, rgb[c, i], m[3] + ambient[c] + lit[c], np.int32(16 - 8 * c)
            for j in range(wide):
                texel = np.float32((colour[j] >> shift) & np.int32(255))
                value = _byte(base * texel * light)
                out[j] = value if whose[j] == g else out[j]


@inline_jit
def _shade_round(xs, ys, look, r, p, g, lights, z, ids, box, rgb):
    """Capsules and spheres."""
    h, inverse, ax, ay, az = p[13], _ONE / p[12], p[9], p[10], p[11]
    along = p[0] * ax + p[1] * ay + p[2] * az
    columns, rows = xs[box[2] : box[3]], look.light_rows[r]
    lit = np.empty((3, columns.size), np.float32)
    for i in range(box[0], box[1]):
        y, near, whose = ys[i], z[i, box[2] : box[3]], ids[i, box[2] : box[3]]
        touched = False
        for j in range(columns.size):
            touched |= whose[j] == g
        if not touched:
            continue
        for c in range(3):
            lit[c] = look.material[r, g, 3] + look.ambient[r, c]
        a0, red, green, blue = ay * y - az, lit[0], lit[1], lit[2]
        for k in range(lights.shape[0]):
            lx, l0 = lights[k, 0], lights[k, 1] * y - lights[k, 2]
            dr, dg, db = rows[k, 0], rows[k, 1], rows[k, 2]
            centre = p[0] * lx + p[1] * lights[k, 1] + p[2] * lights[k, 2]
            slope = ax * lx + ay * lights[k, 1] + az * lights[k, 2]
            for j in range(columns.size):
                x, t = columns[j], near[j]
                s = max(min(t * (ax * x + a0) - along, h), -h)  # the foot of the normal on the axis
                facing = max((t * (lx * x + l0) - centre - s * slope) * inverse, _ZERO)
                red[j], green[j], blue[j] = red[j] + dr * facing, green[j] + dg * facing, blue[j] + db * facing
        for c in range(3):
            base, light, out = look.material[r, g, c], lit[c], rgb[c, i, box[2] : box[3]]
            for j in range(columns.size):
                value = _byte(base * light[j])
                out[j] = value if whose[j] == g else out[j]


@inline_jit
def _place_lights(look, poses, n, cpos, cmat, lights):
    """lights (L, 6): towards it, or where it is if it is not directional (3); its direction (3)."""
    for k in range(look.light.shape[0]):
        which = look.light[k]
        if which == HEADLIGHT:
            lights[k, 2] = _ONE
            continue
        q, d = poses.light_xpos[n, which], poses.light_xdir[n, which]
        for c in range(3):
            lights[k, 3 + c] = cmat[c] * d[0] + cmat[3 + c] * d[1] + cmat[6 + c] * d[2]
            if look.light_kind[k] == DIRECTIONAL:
                lights[k, c] = -lights[k, 3 + c]
            else:
                lights[k, c] = (
                    cmat[c] * (q[0] - cpos[0]) + cmat[3 + c] * (q[1] - cpos[1]) + cmat[6 + c] * (q[2] - cpos[2])
                )


@jit
def shade(geometry, look, poses, begin, end, z, ids, pose, box, lights, rgb):
    """Worlds begin to end, n of them: from z and ids (n, H, Wp), pose (n, G, 15), box (n, G, 4) to rgb (N, 3, H, W).
    Places lights (n, L, 6), 0 before."""
    height, wide, count = geometry.ys.shape[1], geometry.xs.shape[1], geometry.kind.size
    paint = np.empty((3, height, wide), np.uint8)
    for w in range(end - begin):
        n = begin + w
        cpos, cmat = poses.cam_xpos[n, geometry.camera], poses.cam_xmat[n, geometry.camera]
        r = n % geometry.xs.shape[0]
        xs, ys = geometry.xs[r], geometry.ys[r]
        for c in range(3):
            paint[c].fill(np.uint8(look.sky[c]))
        _place_lights(look, poses, n, cpos, cmat, lights[w])
        for g in range(count):
            mine = box[w, g]
            if mine[3] == 0 or not look.quick[r, g]:
                continue
            if geometry.kind[g] == PLANE:
                _shade_plane(xs, ys, look, r, pose[w, g], np.int32(g), lights[w], z[w], ids[w], mine, paint)
            else:
                _shade_round(xs, ys, look, r, pose[w, g], np.int32(g), lights[w], z[w], ids[w], mine, paint)
        for c in range(3):
            for i in range(height):
                source, target = paint[c, i], rgb[n, c, i]
                for j in range(target.size):
                    target[j] = source[j]
