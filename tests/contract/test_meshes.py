"""Meshes, height fields and textures: what the rasteriser draws of them, against the ray tracer and by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from threading import Thread

import mujoco
import numpy as np
import pytest
import torch
from helpers.images import CHECKER, KINDS, SKY, SUN, depth_of, picture, require_alike, rgb_of, scene, still
from helpers.robot_scenes import FACES, SCENES, robot_scene

from sdpg.bench.render import agreement
from sdpg.render import mesh_cache, progress
from sdpg.render.api import View
from sdpg.render.choose import choose, make_renderer
from sdpg.render.levels import shapes_of
from sdpg.render.meshes import mesh_triangles

# --- robots -----------------------------------------------------------------------------------------------------------


def agree(name: str, num: int, seed: int) -> None:
    robot = robot_scene(name)
    assert choose(robot.model, robot.views)[0] == "raster"
    for found in agreement(robot.model, robot.views, robot.states(num, seed)).values():
        assert found["iou"] is None or found["iou"] >= 0.96
        assert found["worst_iou"] is None or found["worst_iou"] >= 0.95
        assert found["worst_colour"] is None or found["worst_colour"] <= 5
        assert found["depth_median"] is not None and found["depth_median"] <= 0.01
        assert found["depth_p95"] is not None and found["depth_p95"] <= 0.03
        assert found["hits_alike"] is not None and found["hits_alike"] >= 0.99


@pytest.mark.parametrize("name", SCENES)
def test_renderers_agree_on_robots(name: str) -> None:
    agree(name, 8, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENES)
def test_renderers_agree_on_many_states_of_robots(name: str) -> None:
    agree(name, 200, 1)


@pytest.mark.parametrize("name", ["allegro-cube", "g1-hurdles"])
def test_what_is_promised_of_pictures_holds_for_robots(name: str) -> None:
    """1. A function of its own row. 2. Threads do not matter. 7. What is no state is drawn as the reference pose."""
    robot = robot_scene(name)
    views, camera, qpos = [replace(robot.views[0], depth=True)], robot.views[0].camera, robot.states(9, 3)
    renderer = make_renderer(robot.model, 9, views)
    first = renderer.render(qpos)[camera]
    kept = rgb_of(first).clone(), depth_of(first).clone()
    turned = renderer.render(qpos.flip(0))[camera]
    assert torch.equal(rgb_of(turned).flip(0), kept[0]) and torch.equal(depth_of(turned).flip(0), kept[1])
    assert torch.equal(rgb_of(first), kept[0])
    other = make_renderer(robot.model, 9, views, threads=3).render(qpos)[camera]
    assert torch.equal(rgb_of(other), kept[0]) and torch.equal(depth_of(other), kept[1])
    qpos[2], qpos[5, 0] = math.nan, math.inf
    broken = rgb_of(renderer.render(qpos)[camera])
    rest = rgb_of(renderer.render(still(robot.model, 9))[camera])[0]
    assert torch.equal(broken[2], rest) and torch.equal(broken[5], rest)
    good = [row for row in range(9) if row not in (2, 5)]
    assert torch.equal(broken[good], kept[0][good])


def test_faces_of_the_hands_cube_are_told_apart() -> None:
    """Each of the six faces turned to the camera: its colour is the one that most of the cube's pixels have."""
    robot = robot_scene("allegro-cube")
    model, view = robot.model, robot.views[0]
    at = int(model.jnt_qposadr[model.body("cube").jntadr[0]])
    qpos = still(model, 6)
    qpos[:, at : at + 3] = torch.tensor([0.28, -0.07, 0.33])  # before the hand
    towards = model.cam_pos[model.camera("hand").id] - qpos[0, at : at + 3].numpy()
    for face in range(6):
        axis = np.zeros(3)
        axis[face // 2] = 1 - 2 * (face % 2)
        quat = np.zeros(4)
        mujoco.mju_quatZ2Vec(quat, towards / np.linalg.norm(towards))
        back = np.zeros(4)
        mujoco.mju_quatZ2Vec(back, axis)
        mujoco.mju_negQuat(back, back)
        turn = np.zeros(4)
        mujoco.mju_mulQuat(turn, quat, back)
        qpos[face, at + 3 : at + 7] = torch.from_numpy(turn)
    image = rgb_of(picture(model, "raster", view, qpos)).double()
    data = mujoco.MjData(model)
    data.qpos[:] = qpos[0].numpy()
    mujoco.mj_forward(model, data)
    eye = data.cam_xmat[0].reshape(3, 3).T @ (data.body("cube").xpos - data.cam_xpos[0])
    scale = 42 / math.tan(math.radians(40))
    i, j = round(41.5 - scale * eye[1] / -eye[2]), round(41.5 + scale * eye[0] / -eye[2])
    for face, colour in enumerate(FACES):
        seen = image[face, :, i, j].numpy()
        best = [seen @ other / np.linalg.norm(seen) / np.linalg.norm(other) for other in np.array(FACES)]
        assert int(np.argmax(best)) == face, (face, colour, seen)


# --- shapes by themselves ---------------------------------------------------------------------------------------------


def ball(rings: int = 24, radius: float = 0.5) -> str:
    """A mesh of about 2 * rings^2 triangles, as MJCF."""
    angles = np.linspace(0, np.pi, rings + 1)[1:-1]
    turns = np.linspace(0, 2 * np.pi, rings, endpoint=False)
    ring = np.stack([np.outer(np.sin(angles), np.cos(turns)), np.outer(np.sin(angles), np.sin(turns))], axis=-1)
    points = np.concatenate([ring, np.broadcast_to(np.cos(angles)[:, None, None], (*ring.shape[:2], 1))], axis=-1)
    points = np.concatenate([points.reshape(-1, 3), [[0, 0, 1], [0, 0, -1]]]) * radius
    top, last, faces = len(points) - 2, (rings - 2) * rings, []
    for k in range(rings):
        n = (k + 1) % rings
        faces += [(top, k, n), (top + 1, last + n, last + k)]
        for r in range(rings - 2):
            a, b, c, d = r * rings + k, r * rings + n, (r + 1) * rings + k, (r + 1) * rings + n
            faces += [(a, c, d), (a, d, b)]
    vertex, face = (" ".join(map(str, np.ravel(values))) for values in (points.round(6), faces))
    return f'<mesh name="ball" vertex="{vertex}" face="{face}"/>'


WEDGE = '<mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>'
HILLS = '<hfield name="hills" nrow="5" ncol="4" size="2 1.5 .4 .1" elevation="{}"/>'.format(
    " ".join(f"{x:.3f}" for x in np.random.default_rng(0).uniform(0, 1, 20))
)
LEVEL = '<hfield name="level" nrow="7" ncol="6" size="2 1.5 .4 .1"/>'
CHECKED = CHECKER + '<material name="checked" texture="checker" texrepeat="2 3" texuniform="{}" specular=".4"/>'


@pytest.mark.parametrize("uniform", ["false", "true"])
def test_textures_on_all_kinds_of_shapes(uniform: str) -> None:
    kinds = {
        "sphere": ".35", "capsule": ".2 .25", "cylinder": ".25 .3", "ellipsoid": ".2 .3 .4", "box": ".2 .3 .35",
    }  # fmt: skip
    world = "".join(
        f'<geom type="{kind}" size="{size}" material="checked" pos="{k % 3 - 1} 0 {k // 3 - 0.4}" euler="30 40 20"/>'
        for k, (kind, size) in enumerate(kinds.items())
    )
    world += '<geom type="mesh" mesh="wedge" material="checked" pos="1 0 .6" euler="20 200 0"/>'
    world += '<geom type="hfield" hfield="hills" material="checked" pos="0 1 -1.2"/>'
    model = scene(
        world, SKY + CHECKED.format(uniform) + WEDGE + HILLS, light=SUN + '<light type="point" pos="1 -2 1"/>'
    )
    require_alike(model, View("front", 120, 100, depth=True))


@pytest.mark.parametrize("place", ["0 -3 -.2", "0 -3 .3", ".3 -2.9 0", "0 -2.6 .05"])
def test_triangles_that_reach_behind_the_camera(place: str) -> None:
    """The camera stands on, over or in a mesh and over a field: faces are cut by its plane, and backs are not seen."""
    world = f'<geom type="mesh" mesh="wedge" pos="{place}" euler="10 20 130"/>'
    world += '<geom type="hfield" hfield="hills" pos="0 -2.5 -.6"/><geom type="mesh" mesh="ball" pos="0 -3 0"/>'
    require_alike(scene(world, SKY + WEDGE + HILLS + ball()), View("front", 80, 60, depth=True))


def test_a_cube_map_has_a_picture_for_each_face() -> None:
    """As MuJoCo's own renderer has it: right, left, up, down, front, back of the texture are +x -x +y -y +z -z. (The
    ray tracer lays all six on every face.)"""
    spec = mujoco.MjSpec()
    colours = np.uint8([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [255, 0, 255], [0, 255, 255]])
    texture = spec.add_texture(name="six", type=mujoco.mjtTexture.mjTEXTURE_CUBE, nchannel=3, width=4, height=24)
    texture.data = np.repeat(np.repeat(colours, 16, axis=0).reshape(24, 4, 3), 1, axis=0).tobytes()
    names = [""] * int(mujoco.mjtTextureRole.mjNTEXROLE)
    names[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = "six"
    spec.add_material(name="six", textures=names, specular=0, emission=1)
    spec.visual.headlight.active = 0
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.2, 0.4, 0.6], material="six")
    for face in range(6):
        axis = np.zeros(3)
        axis[face // 2] = 1 - 2 * (face % 2)
        quat = np.zeros(4)
        mujoco.mju_quatZ2Vec(quat, axis)
        spec.worldbody.add_camera(name=str(face), pos=2 * axis, quat=quat, fovy=40)
    model = spec.compile()
    images = make_renderer(model, 1, [View(str(face), 21, 21) for face in range(6)], kind="raster").render(still(model))
    for face, colour in enumerate(colours):
        image = rgb_of(images[str(face)])[0]
        hit = (image > 0).any(dim=0)
        assert 10 < hit.sum() < 441 and image[:, 10, 10].tolist() == colour.tolist()
        assert (image[:, hit] == torch.tensor(colour.tolist())[:, None]).all()  # all of the face, however long


def test_height_fields_by_hand() -> None:
    """A field without any heights is a plain, whatever its number of cells; a step is where it should be."""
    down = '<camera name="front" pos="0 0 2" fovy="45"/>'
    model = scene('<geom type="hfield" hfield="level" pos="0 0 .5"/>', SKY + LEVEL, camera=down)
    assert shapes_of(model, np.array([0]))[0].ends[-1] == 2  # two triangles: all cells lie in one plane
    image = picture(model, "raster", View("front", 20, 20, depth=True))
    torch.testing.assert_close(depth_of(image), torch.full((1, 20, 20), 1.5))
    model.hfield_data[:] = np.repeat([[0, 0, 0, 1, 1, 1]], 7, axis=0).ravel()  # along x: up between -.4 and .4
    depth = depth_of(picture(model, "raster", View("front", 20, 20, depth=True)))[0]
    torch.testing.assert_close(depth[:, :3], torch.full((20, 3), 1.5))  # 0.62 m from the middle to the edge
    assert depth[0, -1] == pytest.approx(1.1)
    require_alike(model, View("front", 40, 40, depth=True))


DEGENERATE = {
    "no area": "0 0 0  1 0 0  0 1 0  0 0 1  2 0 0|0 2 1  0 1 3  1 2 3  0 3 2  0 1 4  1 1 1",
    "inside out": "0 0 0  1 0 0  0 1 0  0 0 1|0 1 2  0 3 1  1 3 2  0 2 3",
    "open": "0 0 0  1 0 0  0 1 0  0 0 1|0 2 1",
    "large": "0 0 0  9e2 0 0  0 9e2 0  0 0 9e2|0 2 1  0 1 3  1 2 3  0 3 2",
    "huge": "0 0 0  9e5 0 0  0 9e5 0  0 0 9e5|0 2 1  0 1 3  1 2 3  0 3 2",
    "tiny": "0 0 0  1e-4 0 0  0 1e-4 0  0 0 1e-4|0 2 1  0 1 3  1 2 3  0 3 2",
    "flat": "0 0 0  1 0 0  0 1 0  1 1 0|0 1 2  1 3 2",
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_meshes(kind: str) -> None:
    """No crash, nothing that is no number, and what the ray tracer sees, if MuJoCo takes the mesh at all. (Of a
    thousand kilometres float32 knows a few centimetres, to both of them.)"""
    vertex, face = DEGENERATE[kind].split("|")
    mesh = f'<mesh name="odd" vertex="{vertex}" face="{face}" inertia="shell"/>'
    try:
        model = scene('<geom type="mesh" mesh="odd" euler="20 30 40"/><geom size=".1" pos="1 0 0"/>', SKY + mesh)
    except ValueError:
        pytest.skip("MuJoCo refuses it")
    view = View("front", 30, 30, depth=True)
    depth = depth_of(picture(model, "raster", view))
    assert not torch.isnan(depth).any() and (depth > 0).all()
    if kind != "huge":
        require_alike(model, view)


def test_pictures_of_one_pixel_and_cameras_anywhere() -> None:
    """Inside things, on their surface, on a corner: sane numbers."""
    rng = np.random.default_rng(0)
    model = scene(
        '<geom type="mesh" mesh="ball"/><geom type="hfield" hfield="hills" pos="0 0 -.6"/>', SKY + ball() + HILLS
    )
    places = [[0, 0, 0], [0, 0, 0.5], [0.5, 0, 0], [0, 0, -0.6], *rng.uniform(-1, 1, (20, 3)).tolist()]
    own = {"cam_pos": torch.tensor(places)[:, None].double()}
    for size in (1, 13):
        renderer = make_renderer(model, len(places), [View("front", size, size, depth=True)], params=["cam_pos"])
        image = renderer.render(still(model, len(places)), own)["front"]
        assert not torch.isnan(depth_of(image)).any() and (depth_of(image) > 0).all()
    assert torch.isfinite(depth_of(image)).any()


OWN = ("geom_pos", "geom_quat", "geom_rgba", "mat_rgba", "mat_texrepeat", "cam_fovy", "light_diffuse", "geom_size")


@pytest.mark.parametrize("field", OWN)
def test_rows_of_meshes_have_looks_of_their_own(field: str) -> None:
    """8. "A picture is that of a model with its row's values." """
    world = (
        '<geom type="mesh" mesh="wedge" material="checked" pos="-.5 0 0"/><geom type="mesh" mesh="ball" pos=".4 0 0"/>'
    )
    world += '<geom type="box" size=".3 .2 .1" material="checked" pos="0 0 .8"/>'
    world += '<geom type="hfield" hfield="hills" pos="0 1 -1"/>'
    model = scene(world, SKY + CHECKED.format("false") + WEDGE + HILLS + ball())
    view, models = View("front", 40, 40, depth=True), []
    for row in range(3):
        changed = copy.copy(model)
        values = getattr(changed, field)
        rate = 0.1 if values.shape[-1:] == (3,) or field == "geom_quat" else 0.0
        values[:] = values * (1 - 0.2 * row) + rate * row * np.arange(values.shape[-1]) / 3
        if field == "geom_quat":
            values /= np.linalg.norm(values, axis=1, keepdims=True)
        changed.geom_sameframe[:] = 0  # where a geom is has been changed by hand
        models.append(changed)
    own = {field: torch.from_numpy(np.stack([getattr(m, field) for m in models])).double()}
    renderer = make_renderer(model, 3, [view], kind="raster", params=[field])
    together = rgb_of(renderer.render(still(model, 3), own)["front"])
    for row, changed in enumerate(models):
        alone = rgb_of(picture(changed, "raster", view))[0]
        assert (together[row] != alone).float().mean() < 0.005
    assert all((together[a] != together[b]).sum() > 20 for a, b in ((0, 1), (1, 2)))


# --- levels of detail -------------------------------------------------------------------------------------------------


def one_ball() -> mujoco.MjModel:
    return scene('<geom type="mesh" mesh="ball"/>', SKY + ball(40))


def test_levels_have_fewer_triangles_and_stay_close() -> None:
    model = one_ball()
    shapes, _ = shapes_of(model, np.array([0]))
    first, end = shapes.shape[0]
    assert end - first >= 4
    assert (np.diff(shapes.errors[first:end]) > 0).all() and shapes.errors[first] == 0
    counts = []
    for k in range(first, end):
        leaves = [int(shapes.leaf[n]) for n in range(*shapes.levels[k]) if shapes.leaf[n] >= 0]
        begin, last = int(shapes.ends[leaves[0]]), int(shapes.ends[leaves[-1] + 1])
        counts.append(last - begin)
        corners = np.arange(3 * begin, 3 * last)
        radius = np.sqrt(shapes.xs[corners] ** 2 + shapes.ys[corners] ** 2 + shapes.zs[corners] ** 2)
        assert np.quantile(np.abs(radius - 0.5), 0.95) <= shapes.errors[k] + 2e-3  # the ball itself is no sphere
    assert (np.diff(counts) < 0).all()


def test_far_things_are_drawn_from_coarser_levels_and_look_the_same() -> None:
    near, far = one_ball(), one_ball()
    far.cam_pos[0] = [0, -30, 0]
    drawn = {}
    for name, model in (("near", near), ("far", far)):
        renderer = make_renderer(model, 1, [View("front", 60, 60, depth=True)], kind="raster")
        renderer.render(still(model))
        drawn[name] = renderer.drawn("front")  # type: ignore[attr-defined]
    assert drawn["far"].levels[0] > drawn["near"].levels[0]
    assert drawn["far"].triangles[0] < drawn["near"].triangles[0]
    for model in (near, far):
        a, b = (picture(model, kind, View("front", 200, 200, depth=True)) for kind in KINDS)
        hit = torch.isfinite(depth_of(b))
        assert hit.sum() > 30 and (torch.isfinite(depth_of(a)) != hit).sum() <= 0.04 * hit.sum()
        assert (rgb_of(a).int() - rgb_of(b).int()).abs().float().mean() < 1
        hit &= torch.isfinite(depth_of(a))
        assert ((depth_of(a) - depth_of(b)).abs() < 0.01 * depth_of(b))[hit].float().mean() > 0.99


def test_levels_are_kept_and_a_broken_file_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(progress, "_listeners", [lambda *facts: told.append(facts)])
    monkeypatch.setattr(mesh_cache, "folder", lambda: tmp_path / "meshes")
    model = one_ball()
    made, _ = shapes_of(model, np.array([0]))
    assert told == [("levels of detail of meshes", 0, 1), ("levels of detail of meshes", 1, 1)]
    (path,) = (tmp_path / "meshes").iterdir()
    assert path == mesh_cache.path_of(mesh_triangles(model, 0, uvs=False))
    again, _ = shapes_of(model, np.array([0]))
    assert len(told) == 2 and all(np.array_equal(a, b) for a, b in zip(made, again, strict=True))
    good = path.read_bytes()
    levels = mesh_cache.load(path)
    assert levels is not None
    out_of_range = [levels[0]._replace(leaf=levels[0].leaf + np.int32(1000)), *levels[1:]]
    mesh_cache.save(tmp_path / "wrong.npz", out_of_range)
    np.savez(tmp_path / "pickled.npz", errors=np.array([print, {}], dtype=object))
    strange = [(tmp_path / name).read_bytes() for name in ("wrong.npz", "pickled.npz")]
    for content in (b"", b"nonsense", good[: len(good) // 2], *strange):
        path.write_bytes(content)
        assert mesh_cache.load(path) is None
    shapes, _ = shapes_of(model, np.array([0]))
    assert all(np.array_equal(a, b) for a, b in zip(made, shapes, strict=True)) and mesh_cache.load(path) is not None
    # Many at a time: whoever reads finds a whole file or none.
    path.unlink()
    writers = [Thread(target=mesh_cache.save, args=(path, levels)) for _ in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert not path.exists() or mesh_cache.load(path) is not None
    for writer in writers:
        writer.join()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    # Where nothing can be kept, all works as well.
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(mesh_cache, "folder", lambda: tmp_path / "file")
    assert all(np.array_equal(a, b) for a, b in zip(made, shapes_of(model, np.array([0]))[0], strict=True))
