"""What every renderer promises (render/api.py), on both of them."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from helpers.images import CHECKER, FRONT, KINDS, SKY, SUN, depth_of, picture, rgb_of, scene, states, still, suite
from helpers.pretended_gpu import OnGpu, pretended_gpu, to_host
from helpers.runs import subprocess_env
from helpers.tasks import SUITE
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import Image, Renderer, View
from sdpg.render.choose import Kind, choose, make_renderer
from sdpg.render.own import varied
from sdpg.render.views import ray_length
from sdpg.tasks.base import make_task
from sdpg.types import MOCAP

# --- each by itself ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def hopper(kind: Kind, num: int, threads: int = 1, **options: object) -> Renderer:
    return make_renderer(suite("hopper"), num, [View("track", depth=True, **options)], threads, kind)  # type: ignore[arg-type]


def equal(a: Image, b: Image) -> bool:
    return torch.equal(rgb_of(a), rgb_of(b)) and torch.equal(depth_of(a), depth_of(b))


def test_a_picture_is_a_function_of_its_own_row(kind: Kind) -> None:
    """1. Twice the same; other rows do not matter; two states give two pictures. 3. What was returned stays as is."""
    qpos, renderer = states("hopper", 9), hopper(kind, 9)
    first = renderer.render(qpos)["track"]
    kept = Image(rgb_of(first).clone(), depth_of(first).clone())
    assert rgb_of(first).shape == (9, 3, 84, 84) and rgb_of(first).dtype == torch.uint8
    assert depth_of(first).shape == (9, 84, 84) and depth_of(first).dtype == torch.float32
    other = renderer.render(qpos.flip(0))["track"]
    assert equal(Image(rgb_of(other).flip(0), depth_of(other).flip(0)), kept)
    assert equal(first, kept)
    assert equal(renderer.render(qpos)["track"], kept)
    alone = hopper(kind, 1).render(qpos[4:5])["track"]
    assert torch.equal(rgb_of(alone)[0], rgb_of(kept)[4])
    assert len({picture.numpy().tobytes() for picture in rgb_of(kept)}) == 9


def test_nothing_depends_on_the_number_of_threads(kind: Kind) -> None:
    """2."""
    qpos = states("hopper", 11)
    one, three = (hopper(kind, 11, threads).render(qpos)["track"] for threads in (1, 3))
    assert equal(one, three)


def test_depth_and_rays_by_hand(kind: Kind) -> None:
    """4, 5. A ball of radius 0.5 whose centre is 3 m before the camera is 2.5 m away in the middle of the picture. A
    wall 1 m before the camera has depth 1 m everywhere, and 1 m / cos(angle) along the ray."""
    ball = scene('<geom size=".5"/>')
    assert depth_of(picture(ball, kind, View("front", 5, 5, depth=True)))[0, 2, 2] == pytest.approx(2.5, rel=1e-5)
    # fovy 90 and 4 rows: the plane at depth 1 reaches from -1 to 1, the centres of the pixels are at +-0.25 and +-0.75.
    camera = '<camera name="front" xyaxes="1 0 0 0 0 1" fovy="90"/>'
    wall = scene('<geom type="box" size="9 .5 9" pos="0 1.5 0"/>', camera=camera)
    view = View("front", 4, 4, depth=True)
    torch.testing.assert_close(depth_of(picture(wall, kind, view))[0], torch.ones(4, 4))
    length = ray_length(wall, view)
    assert length[0, 0].item() == pytest.approx(math.sqrt(1 + 0.75**2 + 0.75**2))
    assert length[1, 3].item() == pytest.approx(math.sqrt(1 + 0.25**2 + 0.75**2))
    # A post in the upper right corner: row 0 is the top, the last column the right.
    post = scene('<geom type="box" size=".1 .1 .1" pos=".75 1 .75"/>', camera=camera)
    hit = torch.isfinite(depth_of(picture(post, kind, view))[0])
    assert hit.nonzero().tolist() == [[0, 3]]
    # Twice as wide as high: fovy is of the height.
    hit = torch.isfinite(depth_of(picture(post, kind, View("front", 8, 4, depth=True)))[0])
    assert hit.nonzero().tolist() == [[0, 5]]


def test_colour_by_hand(kind: Kind) -> None:
    """6. Light from straight above, 0.8, and 0.2 ambient on a floor (0.5, 0.25, 1): all of it; no sky box: black."""
    head = '<visual><headlight ambient=".2 .2 .2" diffuse="0 0 0" specular="0 0 0"/></visual>'
    light = '<light type="directional" dir="0 0 -1" diffuse=".8 .8 .8" specular="0 0 0"/>'
    down = '<camera name="front" pos="0 0 3" fovy="45"/>'
    model = scene('<geom type="plane" size=".5 .5 1" rgba=".5 .25 1 1"/>', "", head, down, light)
    image = picture(model, kind, View("front", 41, 41, depth=True))
    middle = rgb_of(image)[0, :, 20, 20].int()
    assert (middle - torch.tensor([127, 63, 255])).abs().max() <= 1
    assert depth_of(image)[0, 20, 20] == pytest.approx(3.0)
    assert rgb_of(image)[0, :, 0, 0].tolist() == [0, 0, 0]
    assert depth_of(image)[0, 0, 0] == math.inf


def test_invisible_and_far_things(kind: Kind) -> None:
    """4, 6. Alpha 0 hides, anything more does not; nothing is seen beyond zfar."""
    head = '<visual><map zfar="4"/></visual>'
    for rgba, pos, visible in (
        ("1 0 0 .01", "0 0 0", True), ("1 0 0 0", "0 0 0", False), ("1 0 0 1", "0 2 0", False)
    ):  # fmt: skip
        far = '<geom size=".1" pos=".4 0 0"/>'
        model = scene(f'<geom size=".3" rgba="{rgba}" pos="{pos}"/>{far}', head=head)
        depth = depth_of(picture(model, kind, View("front", 9, 9, depth=True)))
        assert bool(torch.isfinite(depth[0, 4, 4])) == visible


def test_geom_groups(kind: Kind) -> None:
    model = scene('<geom size=".3" pos="-.5 0 0" group="1"/><geom size=".3" pos=".5 0 0" group="4"/>')
    seen = {}
    for groups in ((1,), (4,), (0, 1, 4), (0, 1, 2)):
        seen[groups] = torch.isfinite(depth_of(picture(model, kind, View("front", 40, 40, depth=True, groups=groups))))
    left, right = seen[(1,)], seen[(4,)]
    assert left[..., :20].any() and not left[..., 20:].any()
    assert right[..., 20:].any() and not right[..., :20].any()
    assert torch.equal(seen[(0, 1, 4)], left | right)
    assert torch.equal(seen[(0, 1, 2)], left)


def test_several_cameras_of_different_sizes(kind: Kind) -> None:
    cameras = "".join(f'<camera name="{n}" pos="0 -{2 + i} 0" xyaxes="1 0 0 0 0 1"/>' for i, n in enumerate("abc"))
    model = scene('<geom size=".3" pos="-.4 0 0" group="1"/><geom size=".3" pos=".4 0 0"/>', camera=cameras)
    views = [View("a", 20, 30), View("b", 33, 17, rgb=False, depth=True), View("c", 8, 9, depth=True, groups=(1,))]
    images = make_renderer(model, 3, views, 2, kind).render(still(model, 3))
    for view in views:
        image, alone = images[view.camera], picture(model, kind, view)
        assert (image.rgb is not None, image.depth is not None) == (view.rgb, view.depth)
        if image.rgb is not None:
            assert image.rgb.shape == (3, 3, view.height, view.width)
            assert torch.equal(image.rgb, rgb_of(alone).expand_as(image.rgb))
        if image.depth is not None:
            assert image.depth.shape == (3, view.height, view.width)
            assert torch.equal(image.depth, depth_of(alone).expand_as(image.depth))


def test_what_is_no_state_spoils_nothing(kind: Kind) -> None:
    """7."""
    renderer, qpos = hopper(kind, 4), states("hopper", 4)
    good = renderer.render(qpos)["track"]
    broken = qpos.clone()
    broken[0, 1], broken[2, 0], broken[3] = math.nan, math.inf, 1e30
    image = renderer.render(broken)["track"]
    rest = renderer.render(still(suite("hopper"), 4))["track"]
    assert torch.equal(rgb_of(image)[1], rgb_of(good)[1])
    for row in (0, 2, 3):
        assert torch.equal(rgb_of(image)[row], rgb_of(rest)[row])
    assert equal(renderer.render(qpos)["track"], good)


def test_the_model_is_copied(kind: Kind) -> None:
    model = scene('<geom size=".5" rgba="1 0 0 1"/>')
    renderer = make_renderer(model, 1, [View("front")], 1, kind)
    before = rgb_of(renderer.render(still(model))["front"])
    flags = int(model.opt.disableflags)
    model.geom_pos[0] = [1, 0, 0]
    model.geom_rgba[0] = [0, 0, 1, 1]
    assert torch.equal(rgb_of(renderer.render(still(model))["front"]), before)
    assert model.opt.disableflags == flags


def test_far_from_the_origin_nothing_shakes(kind: Kind) -> None:
    """Robots run: at x = 200 m (a whole number of tiles) the picture is the same as at 0."""
    qpos = still(suite("hopper"), 2)
    qpos[1, 0] += 200.0
    image = hopper(kind, 2).render(qpos)["track"]
    different = (rgb_of(image)[0].int() - rgb_of(image)[1].int()).abs().amax(0) > 8
    assert different.float().mean() < 0.01


def test_pictures_of_a_gpu_do_not_pass_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """3. On the pretended device, Warp's launches on its CPU device: the same bytes, nobody waits, and Warp is put on
    torch's stream whenever it works."""
    import warp as wp

    world = (
        '<body><freejoint/><geom size=".3"/></body><body mocap="true" pos=".5 0 0"><geom size=".2" group="1"/></body>'
    )
    model = scene(world, camera=FRONT + FRONT.replace("front", "near").replace("-3", "-2"))
    views = [View("front", 20, 30, depth=True), View("near", 9, 8, groups=(1,))]
    qpos, mocap = still(model, 5).float(), torch.rand(5, 1, 3, generator=torch.Generator().manual_seed(0))
    qpos[:, 0] += torch.arange(5) / 10
    qpos[3, 1] = torch.nan
    own = {"mocap_pos": mocap, "geom_rgba": torch.rand(5, 2, 4, generator=torch.Generator().manual_seed(1))}
    expected = make_renderer(model, 5, views, 2, "warp", params=["geom_rgba"]).render(qpos, own)
    to_torch, streams = wp.to_torch, []
    monkeypatch.setattr(wp, "device_from_torch", lambda device: wp.get_device("cpu"))
    monkeypatch.setattr(wp, "to_torch", lambda array: OnGpu(to_torch(array)))
    monkeypatch.setattr(wp, "stream_from_torch", streams.append)  # None: no other stream is taken
    with pretended_gpu() as gpu:
        renderer = make_renderer(model, 5, views, 2, device=gpu.device, params=["geom_rgba"])
        assert renderer.kind == "warp" and renderer.device == gpu.device and streams == [gpu.device]
        here = qpos.to(gpu.device), {name: values.to(gpu.device) for name, values in own.items()}
        assert not gpu.waits
        images = renderer.render(*here)
        assert not gpu.waits and streams == [gpu.device] * 2
        for camera, image in expected.items():
            assert rgb_of(images[camera]).device == gpu.device
            assert torch.equal(to_host(rgb_of(images[camera])), rgb_of(image))
        assert depth_of(images["front"]).device == gpu.device
        assert torch.equal(to_host(depth_of(images["front"])), depth_of(expected["front"]))
        again = renderer.render(qpos, own)["front"]  # states of the CPU are moved
        assert torch.equal(to_host(rgb_of(again)), rgb_of(expected["front"]))


def test_pictures_are_on_the_renderers_device(kind: Kind) -> None:
    """3."""
    image = hopper(kind, 2).render(still(suite("hopper"), 2))["track"]
    assert hopper(kind, 1).device == rgb_of(image).device == depth_of(image).device == torch.device("cpu")


# --- what rows have of their own --------------------------------------------------------------------------------------

ROOM = scene(
    """<geom type="plane" size="2 2 1" pos="0 0 -.6" material="floor"/>
    <geom name="target" type="box" size=".1 .1 .1" pos=".6 0 -.3" material="dull"/>
    <body name="post" pos="-.7 0 0"><geom type="capsule" size=".1 .3"/></body>
    <body name="arm"><joint axis="0 1 0"/><geom type="ellipsoid" size=".1 .2 .4"/>
      <camera name="follow" mode="track" pos="0 -2 .3" xyaxes="1 0 0 0 0 1"/></body>
    <body name="goal" mocap="true" pos="0 0 .8"><geom type="box" size=".15 .1 .1" rgba="1 0 0 1"/></body>
    <body name="ghost"><geom size=".3" pos="0 .5 .4" rgba="1 1 1 0"/></body>""",
    SKY
    + CHECKER
    + '<material name="floor" texture="checker" texrepeat="3 3"/><material name="dull" rgba=".3 .9 .3 1"/>',
    light='<light type="point" pos="1 -2 1" attenuation="1 .1 0"/>' + SUN,
)
# By how much rows 0, 1 and 2 differ in a field: something is to be seen of each.
OWN: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    **{name: lambda x, i: x + [0.2 * i, 0, 0.1 * i] for name in ("body_pos", "geom_pos", "cam_pos", "light_pos")},
    **{
        name: lambda x, i: x + [0, 0.1 * i, 0.3 * i, 0.0]
        for name in ("body_quat", "geom_quat", "cam_quat", "mocap_quat")
    },
    **{name: lambda x, i: x * (1 - 0.3 * i) for name in ("geom_size", "cam_fovy", "mat_texrepeat", "light_diffuse")},
    **{name: lambda x, i: x * (1 - 0.3 * i) for name in ("light_specular", "mat_specular", "mat_shininess")},
    **{name: lambda x, i: x + 0.1 * i for name in ("mat_emission", "light_ambient", "light_attenuation", "qpos0")},
    "geom_rgba": lambda x, i: np.clip(x * [1, 1 - 0.3 * i, 1, 1] + [0, 0, 0, 0.5 * i], 0, 1),
    "mat_rgba": lambda x, i: x * [1, 1 - 0.3 * i, 1, 1],
    "light_dir": lambda x, i: x + [0.3 * i, 0, 0],
    "light_active": lambda x, i: x & (np.arange(2) >= i),
    "jnt_pos": lambda x, i: x + [0, 0, 0.3 * i],
    "jnt_axis": lambda x, i: x + [0.5 * i, 0, 0],
    "mocap_pos": lambda x, i: x + [0.3 * i, 0, 0],
}
TURNED = torch.tensor([[0.5]]).double()


def rows_of(field: str) -> dict[str, Tensor]:
    """(3, ...): what rows 0, 1 and 2 have of a field, and of the constants that depend on it."""
    models, goal = [with_values(field, i) for i in range(3)], ROOM.body("goal").id
    found = {name: [getattr(model, name) for model in models] for name in varied(ROOM, [field]) if name not in MOCAP}
    found |= {name: [getattr(model, name.replace("mocap", "body"))[goal][None] for model in models] for name in MOCAP}
    return {name: torch.from_numpy(np.stack(values)) for name, values in found.items()}


def with_values(field: str, i: int) -> mujoco.MjModel:
    """The room as row i has it."""
    model = copy.copy(ROOM)
    if field in MOCAP:  # where the model has the body
        place = getattr(model, field.replace("mocap", "body"))[ROOM.body("goal").id]
        place[:] = OWN[field](place.copy(), i)
    else:
        getattr(model, field)[:] = OWN[field](getattr(model, field).copy(), i)
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


@pytest.mark.parametrize("field", OWN)
def test_a_picture_is_that_of_a_model_with_its_rows_values(kind: Kind, field: str) -> None:
    """8. "A picture is that of a model with its row's values": rows that differ look different, equal ones alike."""
    views = [View("front", 40, 40, depth=True), View("follow", 30, 30)]
    own = rows_of(field)
    renderer = make_renderer(ROOM, 3, views, 1, kind, params=[field])
    assert set(own) == set(renderer.varied)
    images = renderer.render(TURNED.repeat(3, 1), own)
    order = [2, 0, 0]
    again = renderer.render(TURNED.repeat(3, 1), {name: values[order] for name, values in own.items()})
    alone = make_renderer(with_values(field, 1), 1, views, 1, kind).render(TURNED)
    for camera, image in images.items():
        assert (rgb_of(image)[1] != rgb_of(alone[camera])[0]).float().mean() < 0.005
        assert torch.equal(rgb_of(image)[order], rgb_of(again[camera]))  # 1. with values: a function of its own row
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert any((rgb_of(image)[i] != rgb_of(image)[j]).sum() > 20 for image in images.values())


def test_rows_with_values_do_not_depend_on_threads(kind: Kind) -> None:
    """2, 8."""
    own = rows_of("geom_rgba") | rows_of("cam_fovy")
    one, two = (
        make_renderer(ROOM, 3, [View("front", depth=True)], threads, kind, params=["geom_rgba", "cam_fovy"]).render(
            TURNED.repeat(3, 1), own
        )["front"]
        for threads in (1, 2)
    )
    assert equal(one, two)


def test_a_value_that_is_no_number_is_the_models(kind: Kind) -> None:
    """8. "A value that is no number is the model's." """
    renderer = make_renderer(ROOM, 3, [View("front", depth=True)], 1, kind, params=["geom_pos", "geom_rgba"])
    own = rows_of("geom_pos") | rows_of("geom_rgba")
    good = renderer.render(TURNED.repeat(3, 1), own)["front"]
    broken = {name: values.clone() for name, values in own.items()}
    broken["geom_pos"][1], broken["geom_rgba"][1], broken["mocap_pos"][1] = torch.nan, 1e20, -torch.inf
    image = renderer.render(TURNED.repeat(3, 1), broken)["front"]
    assert torch.equal(rgb_of(image)[[0, 2]], rgb_of(good)[[0, 2]])
    assert torch.equal(rgb_of(image)[1], rgb_of(renderer.render(TURNED.repeat(3, 1))["front"])[1])


def test_what_cannot_differ_is_refused_by_name(kind: Kind) -> None:
    """8. "Refused when the renderer is made, in a line that names the field; what isn't seen does no harm." """
    for field in ("geom_type", "geom_matid", "mat_texid", "light_type", "cam_sensorsize", "hfield_data"):
        with pytest.raises(SdpgError, match=f"'{field}' can't be drawn differently in each row"):
            make_renderer(ROOM, 1, [View("front")], 1, kind, params=["geom_rgba", field])
    renderer = make_renderer(ROOM, 1, [View("front")], 1, kind, params=["dof_damping", "geom_friction", "geom_rgba"])
    assert set(renderer.varied) == {"geom_rgba", *MOCAP}
    with pytest.raises(ValueError, match="not made for rows that differ in geom_size"):
        renderer.render(TURNED, {"geom_size": torch.zeros(1, ROOM.ngeom, 3)})


# --- which one, and what can't be drawn -------------------------------------------------------------------------------

FLEX = """<flexcomp name="cloth" type="grid" count="4 4 1" spacing=".2 .2 .2" dim="2" radius=".01" mass="1">
  <contact selfcollide="none"/></flexcomp>"""


def test_a_scene_that_raster_cannot_draw_goes_to_warp_by_itself() -> None:
    view = View("front", depth=True)
    flat = scene('<geom size=".1"/>', camera='<camera name="front" projection="orthographic"/>')
    assert choose(flat, [view]) == ("warp", "camera 'front' is orthographic")
    with pytest.raises(SdpgError, match="camera 'front' is orthographic; take the renderer 'warp'"):
        make_renderer(flat, 1, [view], kind="raster")
    soft = scene(FLEX + '<geom size=".2" pos="0 0 .5"/>')
    assert choose(soft, [view]) == ("warp", "the scene has flexible bodies")
    renderer = make_renderer(soft, 1, [view])
    assert renderer.kind == "warp" and torch.isfinite(depth_of(renderer.render(still(soft))["front"])).any()
    # Everything else can be drawn.
    mesh = scene('<geom type="mesh" mesh="wedge"/>', SKY + '<mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>')
    assert choose(mesh, [view]) == ("raster", "all of the scene can be rasterised")


@pytest.mark.parametrize("name", SUITE)
def test_the_suite_is_drawn_by_raster_and_on_a_gpu_by_warp(name: str) -> None:
    view = View(make_task(name).camera)
    assert choose(suite(name), [view])[0] == "raster"
    assert choose(suite(name), [view], "cuda") == ("warp", "the rasteriser draws on CPU cores only")
    with pytest.raises(SdpgError, match="draws on CPU cores only; take the renderer 'warp'"):
        make_renderer(suite(name), 1, [view], kind="raster", device="cuda:1")


def test_bad_wishes_in_plain_words() -> None:
    model = scene('<geom size=".3"/>')
    for views, words in (
        ([View("rear")], "no camera 'rear'; it has: front"),
        ([View("front", 0, 5)], "0x5"),
        ([View("front", rgb=False)], "rgb, depth or both"),
        ([View("front"), View("front", 20, 20)], "one view"),
        ([View("front", groups=(5,))], r"nothing in the geom groups \(5,\) is visible"),
        ([], "at least one view"),
    ):
        with pytest.raises(SdpgError, match=words):
            make_renderer(model, 1, views)
    with pytest.raises(SdpgError, match="0 images"):
        make_renderer(model, 0, [View("front")])
    with pytest.raises(SdpgError, match="0 threads"):
        make_renderer(model, 1, [View("front")], 0)
    for kind in KINDS:
        with pytest.raises(ValueError, match="made for"):
            make_renderer(model, 2, [View("front")], 1, kind).render(still(model, 1))
    with pytest.raises(SdpgError, match="unknown renderer"):
        make_renderer(model, 1, [View("front")], kind="gl")  # type: ignore[arg-type]


CACHED = """
from sdpg.compiled import jit

@jit
def double(x):
    return x + x

assert double(2) == 4
"""


@pytest.mark.parametrize("user_cache", [True, False])
def test_compiled_code_needs_no_writable_package(tmp_path: Path, user_cache: bool) -> None:
    """Where `__pycache__` can't be written the user's cache directory is taken; where that can't either, none."""
    (tmp_path / "module.py").write_text(CACHED)
    (tmp_path / "__pycache__").write_text("in the way")
    home = tmp_path / "home"
    if user_cache:
        home.mkdir()
    else:
        home.write_text("in the way")
    env = subprocess_env() | {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("NUMBA_CACHE_DIR", None)
    subprocess.run([sys.executable, "module.py"], cwd=tmp_path, env=env, check=True, timeout=120)
    assert bool(list(home.rglob("*.nbi"))) == user_cache
