"""Compiled: colours of what `shade` leaves out: meshes, height fields, boxes and other shapes, textures on them, lights
that are not the same everywhere, highlights, and skies with a picture. As `mujoco_warp` has them.

Some hundred pixels at a time: first, one by one, normals and the surface's own colours; then, in loops that become
vector instructions, what every light adds. What is known of them is a table (ROWS, MANY):

 0  normal (3)             9  towards the light (3)      17  light, by colour (3)
 3  colour (3)            12  its weight                 20  highlights, by colour (3)
 6  emission, specular,   13  how it faces the surface   23  room to work with
    exponent              14  1 / length of the ray      24  the ray: x, y
 9  place in the texture  15  cosine, its power          26  depth
    (2), at first         16  room to work with
"""

from __future__ import annotations

from math import pi

import numpy as np

from sdpg.compiled import inline_jit, jit

PLANE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 3, 4, 5, 6  # mjtGeom
SPOT, DIRECTIONAL = 0, 1  # mjtLightType; any other shines from a point in all directions
# How a texture is laid on: along the geom's x and y, by coordinates of the mesh, as a cube map, or by its kind.
ALONG, COORDINATES, CUBE, BY_KIND = 0, 1, 2, 3

_ZERO, _HALF, _ONE, _FULL, _TINY = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255), np.float32(1e-12)
ROWS, MANY = 27, 512
_TURN, _QUARTER = np.float32(0.5 / pi), np.float32(2 / pi)


@inline_jit
def _sign(value):
    return _ONE if value > _ZERO else -_ONE


@inline_jit
def _own_normal(kind, a, b, c, u, v, w):
    """Of a primitive of size a, b, c, in its own frame and of any length, at one of its points. (Numbers only: handing
    over an array costs more than all this.)"""
    if kind == BOX:
        fu, fv, fw = abs(u) - a, abs(v) - b, abs(w) - c  # the face that it is nearest to
        if fu >= fv and fu >= fw:
            return _sign(u), _ZERO, _ZERO
        if fv >= fw:
            return _ZERO, _sign(v), _ZERO
        return _ZERO, _ZERO, _sign(w)
    if kind == CYLINDER:
        if abs(w) - b > np.sqrt(u * u + v * v) - a:
            return _ZERO, _ZERO, _sign(w)
        return u, v, _ZERO
    if kind == ELLIPSOID:
        return u / (a * a), v / (b * b), w / (c * c)
    if kind == PLANE:
        return _ZERO, _ZERO, _ONE
    return u, v, w - max(min(w, b), -b)


@inline_jit
def _around(x, y):
    """Share of a turn from the x axis, 0 to 1."""
    turn = np.arctan2(y, x) * _TURN
    return turn if turn >= _ZERO else turn + _ONE


@inline_jit
def _laid_on(kind, a, b, c, u, v, w, nu, nv, nw):
    """Texture coordinates of a primitive of size a, b, c, 0 to 1, as MuJoCo has them."""
    if kind == BOX:
        if nw != _ZERO:
            return (u / a + _ONE) * _HALF, (_ONE - _sign(nw) * v / b) * _HALF
        if nu != _ZERO:
            return (_ONE + _sign(nu) * v / b) * _HALF, (_ONE - w / c) * _HALF
        return (_ONE - _sign(nv) * u / a) * _HALF, (_ONE - w / c) * _HALF
    if kind == CYLINDER:
        if nw != _ZERO:
            return (_ONE + u / a) * _HALF, (_ONE + v / a) * _HALF
        return _around(u, v), (_ONE - w / b) * _HALF
    if kind == CAPSULE:
        over = (abs(w) - b) / a
        if over > _ZERO:
            share = np.arcsin(min(over, _ONE)) * _QUARTER
            return _around(u, v), (_ONE - share if w > _ZERO else share)
        return _around(u, v), (_ONE - w / max(b, _TINY)) * _HALF
    u, v, w = u / a, v / (b if kind == ELLIPSOID else a), w / (c if kind == ELLIPSOID else a)
    up = w / max(np.sqrt(u * u + v * v + w * w), _TINY)
    return _around(u, v), _HALF - np.arcsin(max(min(up, _ONE), -_ONE)) * _QUARTER * _HALF


@inline_jit
def _cube(x, y, z, side):
    """Where a direction meets a cube map, whose faces +x -x +y -y +z -z lie one below the other."""
    ax, ay, az = abs(x), abs(y), abs(z)
    if ax >= ay and ax >= az:
        face, s, t, m = (0 if x > _ZERO else 1), (-z if x > _ZERO else z), -y, ax
    elif ay >= az:
        face, s, t, m = (2 if y > _ZERO else 3), x, (z if y > _ZERO else -z), ay
    else:
        face, s, t, m = (4 if z > _ZERO else 5), (x if z > _ZERO else -x), -y, az
    m = max(m, _TINY)
    s, t = (s / m + _ONE) * _HALF, (t / m + _ONE) * _HALF
    t = max(min(t, _ONE - _HALF / side), _HALF / side)  # no colours of the next face
    return s, (np.float32(face) + t) / np.float32(6)


@inline_jit
def _sample(images, cells, texels, at, count, us, vs, reds, greens, blues):
    """Multiplies colours by those, 0 to 1, of the images `at` at us, vs in [0, 1], unless `at` is -1. Linear between
    texels, constant beyond the outermost centres."""
    for j in range(count):
        image = at[j]
        if image < 0:
            continue
        start, width, height = images[image, 0], images[image, 1], images[image, 2]
        fx, fy = us[j] * np.float32(width) + _HALF, vs[j] * np.float32(height) + _HALF
        x, y = min(max(int(fx), 0), width), min(max(int(fy), 0), height)
        colour = cells[start + y * (width + 1) + x]
        if colour >= 0:  # all four around it have it
            red, green = np.float32(colour >> 16), np.float32((colour >> 8) & 255)
            blue = np.float32(colour & 255)
        else:
            fx, fy = fx - np.float32(x), fy - np.float32(y)
            x0, x1, y0, y1 = max(x - 1, 0), min(x, width - 1), max(y - 1, 0), min(y, height - 1)
            a, b = start + y0 * width + x0, start + y0 * width + x1
            c, d = start + y1 * width + x0, start + y1 * width + x1
            p, q, r, s = (_ONE - fx) * (_ONE - fy), fx * (_ONE - fy), (_ONE - fx) * fy, fx * fy
            red = p * texels[a, 0] + q * texels[b, 0] + r * texels[c, 0] + s * texels[d, 0]
            green = p * texels[a, 1] + q * texels[b, 1] + r * texels[c, 1] + s * texels[d, 1]
            blue = p * texels[a, 2] + q * texels[b, 2] + r * texels[c, 2] + s * texels[d, 2]
        reds[j], greens[j], blues[j] = reds[j] * red / _FULL, greens[j] * green / _FULL, blues[j] * blue / _FULL


@inline_jit
def _look_at(
    xs, ys, start, width, kinds, material, texture, style, maps, images, tables, p, z, ids, tri, done, row, at, places
):
    """The next pixels from `start` on that are to be done here: fills their columns of `row` up to 10, from 24 on, and
    which texture, `at`, and which pixel, `places`. Returns how many, whether there are highlights, and where it
    stopped. (One call for many pixels: handing over arrays takes its time.)"""
    solid, normals_at, normals, uvs_at, uvs = tables
    count, glossy, place, last = 0, False, start, ys.size * width
    i, j = start // width, start % width - 1
    while place < last and count < MANY:
        place += 1
        j += 1
        if j == width:
            i, j = i + 1, 0
        g = ids[i, j]
        if g < 0 or done[g]:
            continue
        t, kind, shape, f = z[i, j], kinds[g], solid[g], tri[i, j]
        qx, qy, qz = t * xs[j] - p[g, 0], t * ys[i] - p[g, 1], -t - p[g, 2]
        u = qx * p[g, 3] + qy * p[g, 4] + qz * p[g, 5]
        v = qx * p[g, 6] + qy * p[g, 7] + qz * p[g, 8]
        w = qx * p[g, 9] + qy * p[g, 10] + qz * p[g, 11]
        if shape >= 0:
            k = normals_at[shape, 0] + normals_at[shape, 1] * f
            nu, nv, nw = normals[k], normals[k + 1], normals[k + 2]
            if normals_at[shape, 1] > 3:
                nu += normals[k + 3] * u + normals[k + 6] * v + normals[k + 9] * w
                nv += normals[k + 4] * u + normals[k + 7] * v + normals[k + 10] * w
                nw += normals[k + 5] * u + normals[k + 8] * v + normals[k + 11] * w
        else:
            nu, nv, nw = _own_normal(kind, p[g, 12], p[g, 13], p[g, 14], u, v, w)
        for k in range(3):
            row[k, count] = p[g, 3 + k] * nu + p[g, 6 + k] * nv + p[g, 9 + k] * nw
            row[3 + k, count], row[6 + k, count] = material[g, k], material[g, 3 + k]
        row[24, count], row[25, count], row[26, count] = xs[j], ys[i], t
        glossy |= (material[g, 4] > _ZERO) & (material[g, 5] > _ZERO)
        at[count], places[count] = texture[g], place - 1
        if texture[g] >= 0:
            if style[g] == CUBE:
                side = np.float32(images[texture[g], 1])
                a, b = _cube(u * maps[g, 0], v * maps[g, 1], w * maps[g, 2], side)
            else:
                a, b = u, v
                if style[g] == COORDINATES:
                    k = uvs_at[shape] + 8 * f
                    a = uvs[k] + uvs[k + 1] * u + uvs[k + 2] * v + uvs[k + 3] * w
                    b = uvs[k + 4] + uvs[k + 5] * u + uvs[k + 6] * v + uvs[k + 7] * w
                elif style[g] == BY_KIND:
                    a, b = _laid_on(kind, p[g, 12], p[g, 13], p[g, 14], u, v, w, nu, nv, nw)
                a, b = maps[g, 0] * a + maps[g, 1], maps[g, 2] * b + maps[g, 3]
                a, b = a - np.floor(a), b - np.floor(b)
            row[9, count], row[10, count] = a, b
        count += 1
    return count, glossy, place


@inline_jit
def _look_up(xs, ys, start, width, sky, side, cmat, ids, row, at, places):
    """The same of the sky: white, and places in its picture. MuJoCo turns it so that the cube's y is up."""
    count, place, last = 0, start, ys.size * width
    i, j = start // width, start % width - 1
    m0, m1, m2 = np.float32(cmat[0]), np.float32(cmat[1]), np.float32(cmat[2])
    m3, m4, m5 = np.float32(cmat[3]), np.float32(cmat[4]), np.float32(cmat[5])
    m6, m7, m8 = np.float32(cmat[6]), np.float32(cmat[7]), np.float32(cmat[8])
    while place < last and count < MANY:
        place += 1
        j += 1
        if j == width:
            i, j = i + 1, 0
        if ids[i, j] >= 0:
            continue
        x, y = xs[j], ys[i]
        row[9, count], row[10, count] = _cube(m0 * x + m1 * y - m2, m6 * x + m7 * y - m8, -(m3 * x + m4 * y - m5), side)
        row[3, count], row[4, count], row[5, count] = _ONE, _ONE, _ONE
        at[count], places[count] = sky, place - 1
        count += 1
    return count, place


@inline_jit
def _power(base, exponent, one, two):
    """base = base ** exponent, of numbers from 0 to 1, to 1e-5: by way of their bits and polynomials. `one` and `two`:
    room. (No loop writes what it reads in another guise: it could not become vector instructions.)"""
    bits, ones, twos = base.view(np.int32), one.view(np.int32), two.view(np.int32)
    for j in range(base.size):
        base[j] = max(base[j], np.float32(1e-30))
    for j in range(base.size):
        e = (bits[j] - np.int32(0x3F3504F3)) >> np.int32(23)
        ones[j] = bits[j] - (e << np.int32(23))  # mantissa from sqrt(1/2) to sqrt(2)
        twos[j] = e
    for j in range(base.size):
        m = one[j] - _ONE
        s = m / (np.float32(2) + m)
        q = s * s
        log2 = s * (
            np.float32(2.885390082) + q * (np.float32(0.961796694) + q * (np.float32(0.577078016)
            + q * np.float32(0.4342)))
        )  # fmt: skip
        base[j] = max((log2 + np.float32(twos[j])) * exponent[j], np.float32(-120))
    for j in range(base.size):
        lower = np.floor(base[j])
        x = base[j] - lower
        one[j] = _ONE + x * (
            np.float32(0.69314718) + x * (np.float32(0.24022651) + x * (np.float32(0.05550411)
            + x * (np.float32(0.00961813) + x * (np.float32(0.00133336) + x * np.float32(0.000154035)))))
        )  # fmt: skip
        twos[j] = (np.int32(lower) + np.int32(127)) << np.int32(23)
    for j in range(base.size):
        base[j] = one[j] * two[j]


@inline_jit
def _shine(count, kinds, lights, light_rows, ambient, row, glossy):
    """From normals and colours of some pixels to what arrives at the camera, 0 to 1, in place of their colours."""
    nx, ny, nz, own = row[0, :count], row[1, :count], row[2, :count], row[6, :count]
    shine, exponent = row[7, :count], row[8, :count]
    lx, ly, lz, weight, facing = row[9, :count], row[10, :count], row[11, :count], row[12, :count], row[13, :count]
    view, power, one, two = row[14, :count], row[15, :count], row[16, :count], row[23, :count]
    red, green, blue = row[17, :count], row[18, :count], row[19, :count]
    glare_r, glare_g, glare_b = row[20, :count], row[21, :count], row[22, :count]
    xs, ys, near = row[24, :count], row[25, :count], row[26, :count]
    for j in range(xs.size):
        scale = _ONE / max(np.sqrt(nx[j] * nx[j] + ny[j] * ny[j] + nz[j] * nz[j]), _TINY)
        nx[j], ny[j], nz[j] = nx[j] * scale, ny[j] * scale, nz[j] * scale
        red[j], green[j], blue[j] = own[j] + ambient[0], own[j] + ambient[1], own[j] + ambient[2]
        glare_r[j], glare_g[j], glare_b[j] = _ZERO, _ZERO, _ZERO
        view[j] = _ONE / np.sqrt(xs[j] * xs[j] + ys[j] * ys[j] + _ONE)
    for k in range(kinds.size):
        x0, y0, z0 = lights[k, 0], lights[k, 1], lights[k, 2]
        if kinds[k] == DIRECTIONAL:
            for j in range(xs.size):
                lx[j], ly[j], lz[j], weight[j] = x0, y0, z0, _ONE
        else:
            c0, c1, c2 = light_rows[k, 6], light_rows[k, 7], light_rows[k, 8]
            for j in range(xs.size):
                dx, dy, dz = x0 - near[j] * xs[j], y0 - near[j] * ys[j], z0 + near[j]
                far = max(np.sqrt(dx * dx + dy * dy + dz * dz), _TINY)
                lx[j], ly[j], lz[j] = dx / far, dy / far, dz / far
                weight[j] = _ONE / max(c0 + far * (c1 + far * c2), _TINY)
            if kinds[k] == SPOT:
                s0, s1, s2, cutoff = lights[k, 3], lights[k, 4], lights[k, 5], light_rows[k, 9]
                for j in range(xs.size):
                    cosine = -(lx[j] * s0 + ly[j] * s1 + lz[j] * s2)
                    weight[j] = weight[j] if cosine >= cutoff else _ZERO
                    power[j], facing[j] = max(cosine, _ZERO), light_rows[k, 10]
                if light_rows[k, 10] > _ZERO:
                    _power(power, facing, one, two)
                    for j in range(xs.size):
                        weight[j] = weight[j] * power[j]
        d0, d1, d2 = light_rows[k, 0], light_rows[k, 1], light_rows[k, 2]
        for j in range(xs.size):
            facing[j] = max(nx[j] * lx[j] + ny[j] * ly[j] + nz[j] * lz[j], _ZERO)
            diffuse = facing[j] * weight[j]
            red[j], green[j], blue[j] = red[j] + d0 * diffuse, green[j] + d1 * diffuse, blue[j] + d2 * diffuse
        s0, s1, s2 = light_rows[k, 3], light_rows[k, 4], light_rows[k, 5]
        if glossy and (s0 > _ZERO or s1 > _ZERO or s2 > _ZERO):
            for j in range(xs.size):
                hx, hy, hz = lx[j] - xs[j] * view[j], ly[j] - ys[j] * view[j], lz[j] + view[j]  # half-way to the camera
                cosine = nx[j] * hx + ny[j] * hy + nz[j] * hz
                power[j] = min(cosine / max(np.sqrt(hx * hx + hy * hy + hz * hz), _TINY), _ONE)
            _power(power, exponent, one, two)
            for j in range(xs.size):
                dull = (facing[j] <= _ZERO) | (shine[j] <= _ZERO) | (exponent[j] <= _ZERO)
                glare = _ZERO if dull else shine[j] * power[j] * weight[j]
                glare_r[j], glare_g[j], glare_b[j] = (
                    glare_r[j] + s0 * glare, glare_g[j] + s1 * glare, glare_b[j] + s2 * glare,
                )  # fmt: skip
    for c in range(3):
        own, lit, glare = row[3 + c, :count], row[17 + c, :count], row[20 + c, :count]
        for j in range(xs.size):
            own[j] = min(max(own[j] * lit[j] + glare[j], _ZERO), _ONE)


@inline_jit
def _put(count, row, places, width, out):
    """Colours to where they belong, (3, H, W)."""
    for k in range(count):
        i, j = places[k] // width, places[k] % width
        for c in range(3):
            out[c, i, j] = np.uint8(row[3 + c, k] * _FULL)


@jit
def shade_surfaces(geometry, look, solid, shapes, poses, begin, end, z, ids, tri, pose, lights, rgb):
    """Worlds begin to end, n of them: from z, ids and tri (n, H, Wp), pose (n, G, 15) and lights (n, L, 6) to those
    pixels of rgb (N, 3, H, W) that `shade` did not do. solid (G,): the shape of each geom, or -1."""
    width, last = geometry.width, geometry.width * geometry.ys.shape[1]
    row, at, places = np.ones((ROWS, MANY), np.float32), np.empty(MANY, np.int64), np.empty(MANY, np.int64)
    us, vs, reds, greens, blues = row[9], row[10], row[3], row[4], row[5]
    tables = (solid, shapes.normals_at, shapes.normals, shapes.uvs_at, shapes.uvs)
    kinds, texture, style, sky = geometry.kind, look.texture, look.style, look.sky_image
    images, cells, texels, side = look.images, look.cells, look.texels, np.float32(look.images[max(sky, 0), 1])
    for w in range(end - begin):
        n = begin + w
        r, cmat = n % geometry.xs.shape[0], poses.cam_xmat[n, geometry.camera]
        xs, ys, near, whose, which, p = geometry.xs[r], geometry.ys[r], z[w], ids[w], tri[w], pose[w]
        material, maps, done, out = look.material[r], look.mapping[r], look.quick[r], rgb[n]
        place = last if sky < 0 else 0
        while place < last:
            count, place = _look_up(xs, ys, place, width, sky, side, cmat, whose, row, at, places)
            _sample(images, cells, texels, at, count, us, vs, reds, greens, blues)
            _put(count, row, places, width, out)
        place = 0
        while place < last:
            count, glossy, place = _look_at(
                xs, ys, place, width, kinds, material, texture, style, maps, images, tables, p, near, whose, which,
                done, row, at, places,
            )  # fmt: skip
            _sample(images, cells, texels, at, count, us, vs, reds, greens, blues)
            _shine(count, look.light_kind, lights[w], look.light_rows[r], look.ambient[r], row, glossy)
            _put(count, row, places, width, out)
