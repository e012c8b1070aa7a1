"""Compiled: what the nearest geom looks like in each pixel: textures and light, as `mujoco_warp` has them.

In the camera's frame, after `cover`. Planes, capsules and spheres are done a row at a time, in loops that become vector
instructions; all else pixel by pixel.
"""

from __future__ import annotations

import numpy as np

from sdpg.render.compiled import inline_jit, jit

PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 2, 3, 4, 5, 6  # mjtGeom
SPOT, DIRECTIONAL = 0, 1  # mjtLightType; any other shines from a point in all directions
HEADLIGHT = -1  # in place of a light's number: directional, along the camera's view

_ZERO, _HALF, _ONE, _FULL, _TINY = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255), np.float32(1e-12)


@inline_jit
def _normal(p, g, kind, x, y, z):
    """Of the surface at a point of a geom that is not a plane."""
    qx, qy, qz = x - p[g, 0], y - p[g, 1], z - p[g, 2]
    u = qx * p[g, 3] + qy * p[g, 4] + qz * p[g, 5]
    v = qx * p[g, 6] + qy * p[g, 7] + qz * p[g, 8]
    w = qx * p[g, 9] + qy * p[g, 10] + qz * p[g, 11]
    if kind == BOX:
        fu, fv, fw = (
            abs(u) - p[g, 12],
            abs(v) - p[g, 13],
            abs(w) - p[g, 14],
        )  # the face is the one that it is nearest to
        if fu >= fv and fu >= fw:
            u, v, w = (_ONE if u > _ZERO else -_ONE), _ZERO, _ZERO
        elif fv >= fw:
            u, v, w = _ZERO, (_ONE if v > _ZERO else -_ONE), _ZERO
        else:
            u, v, w = _ZERO, _ZERO, (_ONE if w > _ZERO else -_ONE)
    elif kind == CYLINDER:
        if abs(w) - p[g, 13] > np.sqrt(u * u + v * v) - p[g, 12]:
            u, v, w = _ZERO, _ZERO, (_ONE if w > _ZERO else -_ONE)
        else:
            w = _ZERO
    elif kind == ELLIPSOID:
        u, v, w = u / (p[g, 12] * p[g, 12]), v / (p[g, 13] * p[g, 13]), w / (p[g, 14] * p[g, 14])
    else:
        w -= max(min(w, p[g, 13]), -p[g, 13])
    scale = _ONE / max(np.sqrt(u * u + v * v + w * w), _TINY)
    u, v, w = u * scale, v * scale, w * scale
    return (
        p[g, 3] * u + p[g, 6] * v + p[g, 9] * w,
        p[g, 4] * u + p[g, 7] * v + p[g, 10] * w,
        p[g, 5] * u + p[g, 8] * v + p[g, 11] * w,
    )


@inline_jit
def _light(nx, ny, nz, x, y, z, shine, exponent, kinds, lights, rows):
    """Diffuse (3) and specular (3) light on a point."""
    dr, dg, db, sr, sg, sb = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for k in range(kinds.shape[0]):
        lx, ly, lz, weight = lights[k, 0], lights[k, 1], lights[k, 2], _ONE
        if kinds[k] != DIRECTIONAL:
            lx, ly, lz = lx - x, ly - y, lz - z
            far = max(np.sqrt(lx * lx + ly * ly + lz * lz), _TINY)
            lx, ly, lz = lx / far, ly / far, lz / far
            weight = _ONE / max(rows[k, 6] + far * (rows[k, 7] + far * rows[k, 8]), _TINY)
            if kinds[k] == SPOT:
                cosine = -(lx * lights[k, 3] + ly * lights[k, 4] + lz * lights[k, 5])
                weight = weight * max(cosine, _ZERO) ** rows[k, 10] if cosine >= rows[k, 9] else _ZERO
        facing = max(nx * lx + ny * ly + nz * lz, _ZERO)
        diffuse = facing * weight
        dr, dg, db = dr + rows[k, 0] * diffuse, dg + rows[k, 1] * diffuse, db + rows[k, 2] * diffuse
        if shine > _ZERO and exponent > _ZERO and facing > _ZERO:
            inverse = _ONE / np.sqrt(x * x + y * y + z * z)
            hx, hy, hz = lx - x * inverse, ly - y * inverse, lz - z * inverse  # half-way to the camera
            cosine = max(nx * hx + ny * hy + nz * hz, _ZERO) / max(np.sqrt(hx * hx + hy * hy + hz * hz), _TINY)
            glare = shine * cosine**exponent * weight
            sr, sg, sb = sr + rows[k, 3] * glare, sg + rows[k, 4] * glare, sb + rows[k, 5] * glare
    return dr, dg, db, sr, sg, sb


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
def _shade_sky(xs, ys, width, look, cmat, ids, rgb):
    """The pixels of a sky with a picture on it; MuJoCo turns it so that the cube's y is up, faces +x -x +y -y +z -z."""
    side = np.float32(look.images[look.sky_image, 1])
    for i in range(ids.shape[0]):
        for j in range(width):
            if ids[i, j] >= 0:
                continue
            x, y = xs[j], ys[i]
            rx = np.float32(cmat[0] * x + cmat[1] * y - cmat[2])
            rz = -np.float32(cmat[3] * x + cmat[4] * y - cmat[5])
            ry = np.float32(cmat[6] * x + cmat[7] * y - cmat[8])
            ax, ay, az = abs(rx), abs(ry), abs(rz)
            if ax >= ay and ax >= az:
                face, s, t, m = (0 if rx > _ZERO else 1), (-rz if rx > _ZERO else rz), -ry, ax
            elif ay >= az:
                face, s, t, m = (2 if ry > _ZERO else 3), rx, (rz if ry > _ZERO else -rz), ay
            else:
                face, s, t, m = (4 if rz > _ZERO else 5), (rx if rz > _ZERO else -rx), -ry, az
            s, t = (s / m + _ONE) * _HALF, (t / m + _ONE) * _HALF
            t = max(min(t, _ONE - _HALF / side), _HALF / side)  # no colours of the next face
            r, g, b = _sample(look, look.sky_image, s, (np.float32(face) + t) / np.float32(6))
            rgb[0, i, j], rgb[1, i, j], rgb[2, i, j] = np.uint8(r), np.uint8(g), np.uint8(b)


@inline_jit
def _shade_plane(xs, ys, look, r, p, g, lights, z, ids, box, rgb):
    """Row by row: texture coordinates, colours 0 to 255, light. A plane under directional lights is lit evenly."""
    m, image, wide, rows, ambient = look.material[r, g], look.texture[g], xs.size, look.light_rows[r], look.ambient[r]
    start, width, height = look.images[image]
    c0 = p[3] * p[0] + p[4] * p[1] + p[5] * p[2]
    c1 = p[6] * p[0] + p[7] * p[1] + p[8] * p[2]
    m0, m1, m2, m3 = look.mapping[r, g]
    ux, vx, cells = p[3], p[6], look.cells
    us, vs, at = np.empty(wide, np.float32), np.empty(wide, np.float32), np.zeros(wide, np.int32)
    colour, lit = np.full(wide, 0xFFFFFF, np.int32), np.zeros((6, wide), np.float32)
    light = _light(p[9], p[10], p[11], _ZERO, _ZERO, -_ONE, _ZERO, _ZERO, look.light_kind, lights, rows)
    for k in range(6):
        lit[k] = light[k]
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
        if not look.flat[r]:
            for j in range(wide):
                if whose[j] == g:
                    t, shine, exponent = near[j], m[4], m[5]
                    light = _light(
                        p[9], p[10], p[11], t * xs[j], t * y, -t, shine, exponent, look.light_kind, lights, rows
                    )
                    for k in range(6):
                        lit[k, j] = light[k]
        for c in range(3):
            shade, glare, base, out = lit[c], lit[3 + c], m[c] / _FULL, rgb[c, i]
            constant, shift = m[3] + ambient[c], np.int32(16 - 8 * c)
            for j in range(wide):
                texel = np.float32((colour[j] >> shift) & np.int32(255))
                value = _byte(base * texel * (constant + shade[j]) + glare[j])
                out[j] = value if whose[j] == g else out[j]


@inline_jit
def _shade_round(xs, ys, look, r, p, g, lights, z, ids, box, rgb):
    """Capsules and spheres under directional lights, a row at a time: what `_shade_others` does, and much faster."""
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
def _shade_others(xs, ys, kinds, look, r, pose, lights, z, ids, box, done, rgb):
    """What is left; `box` is around all of it. (No views of arrays in here: counting references costs more.)"""
    m, rows, ambient = look.material[r], look.light_rows[r], look.ambient[r]
    for i in range(box[0], box[1]):
        y, whose = ys[i], ids[i]
        for j in range(box[2], box[3]):
            g = whose[j]
            if g < 0 or done[g]:
                continue
            t = z[i, j]
            x, y_, z_ = t * xs[j], t * y, -t
            nx, ny, nz = _normal(pose, g, kinds[g], x, y_, z_)
            light = _light(nx, ny, nz, x, y_, z_, m[g, 4], m[g, 5], look.light_kind, lights, rows)
            for c in range(3):
                rgb[c, i, j] = _byte(m[g, c] * (m[g, 3] + ambient[c] + light[c]) + light[3 + c])


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
def shade(geometry, look, poses, begin, end, z, ids, pose, box, rgb):
    """Worlds begin to end, n of them: from z and ids (n, H, Wp), pose (n, G, 15), box (n, G, 4) to rgb (N, 3, H, W)."""
    height, wide, count = geometry.ys.shape[1], geometry.xs.shape[1], geometry.kind.size
    lights, paint = np.zeros((look.light.size, 6), np.float32), np.empty((3, height, wide), np.uint8)
    around, done = np.empty(4, np.int64), np.empty(count, np.bool_)
    for w in range(end - begin):
        n = begin + w
        cpos, cmat = poses.cam_xpos[n, geometry.camera], poses.cam_xmat[n, geometry.camera]
        r = n % geometry.xs.shape[0]
        xs, ys = geometry.xs[r], geometry.ys[r]
        for c in range(3):
            paint[c].fill(np.uint8(look.sky[c]))
        if look.sky_image >= 0:
            _shade_sky(xs, ys, geometry.width, look, cmat, ids[w], paint)
        _place_lights(look, poses, n, cpos, cmat, lights)
        around[0], around[1], around[2], around[3] = height, 0, wide, 0
        for g in range(count):
            kind, mine = geometry.kind[g], box[w, g]
            done[g] = mine[3] == 0 or kind == PLANE or (look.flat[r] and kind in (CAPSULE, SPHERE))
            if not done[g]:
                around[0], around[1] = min(around[0], mine[0]), max(around[1], mine[1])
                around[2], around[3] = min(around[2], mine[2]), max(around[3], mine[3])
            elif kind == PLANE:
                _shade_plane(xs, ys, look, r, pose[w, g], np.int32(g), lights, z[w], ids[w], mine, paint)
            elif mine[3] > 0:
                _shade_round(xs, ys, look, r, pose[w, g], np.int32(g), lights, z[w], ids[w], mine, paint)
        _shade_others(xs, ys, geometry.kind, look, r, pose[w], lights, z[w], ids[w], around, done, paint)
        for c in range(3):
            for i in range(height):
                source, target = paint[c, i], rgb[n, c, i]
                for j in range(target.size):
                    target[j] = source[j]
