"""What every renderer promises (render/api.py), on both of them; and that they agree."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from conftest import subprocess_env
from pretended_gpu import OnGpu, pretended_gpu, to_host
from torch import Tensor

from sdpg.build import compile_scene, make_env
from sdpg.errors import SdpgError
from sdpg.render.api import Image, Renderer, View
from sdpg.render.choose import Kind, choose, make_renderer
from sdpg.render.views import ray_length
from sdpg.tasks.base import BUILT_IN, make_task

KINDS: tuple[Kind, ...] = ("raster", "warp")
FLOOR, ROBOT = (0,), (1,)  # geom groups in `suite`

SKY = '<texture name="sky" type="skybox" builtin="flat" width="8" height="48" rgb1=".2 .4 .6" rgb2=".2 .4 .6"/>'
FRONT = '<camera name="front" pos="0 -3 0" xyaxes="1 0 0 0 0 1" fovy="45"/>'
SUN = '<light type="directional" dir=".3 .5 -1" diffuse=".6 .5 .4" specular=".3 .3 .3" ambient=".1 .1 .1"/>'


def scene(world: str, assets: str = SKY, head: str = "", camera: str = FRONT, light: str = SUN) -> mujoco.MjModel:
    """The extent is always the same: Warp compiles zfar, which is a multiple of it, into its code."""
    head = f"<statistic extent='1'/>{head}<asset>{assets}</asset>"
    return mujoco.MjModel.from_xml_string(f"<mujoco>{head}<worldbody>{camera}{light}{world}</worldbody></mujoco>")


def still(model: mujoco.MjModel, num: int = 1) -> Tensor:
    return torch.from_numpy(np.repeat(model.qpos0[None], num, axis=0))


def picture(model: mujoco.MjModel, kind: Kind, view: View, qpos: Tensor | None = None) -> Image:
    qpos = still(model) if qpos is None else qpos
    return make_renderer(model, len(qpos), [view], 1, kind).render(qpos)[view.camera]


def rgb_of(image: Image) -> Tensor:
    assert image.rgb is not None
    return image.rgb


def depth_of(image: Image) -> Tensor:
    assert image.depth is not None
    return image.depth


@cache
def suite(name: str) -> mujoco.MjModel:
    """A task's scene, its robot in a geom group of its own."""
    model = compile_scene(make_task(name))
    model.geom_group[model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE] = ROBOT[0]
    return model


def states(name: str, num: int, seed: int = 0) -> Tensor:
    """(num, nq) of different ages under random actions, as a policy comes across them."""
    env = make_env(name, 20, 0, seed, 1)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(math.ceil(num / 20)):
        for _ in range(9):
            env.restart(env.step(2 * torch.rand(20, 1, env.task.action_size, generator=generator) - 1))
        found.append(env.physics().qpos[:, 0].clone())
    return torch.cat(found)[:num]


# --- the two agree ----------------------------------------------------------------------------------------------------


def seen_robot(model: mujoco.MjModel, kind: Kind, camera: str, qpos: Tensor) -> tuple[Image, Tensor]:
    """The whole picture, and where the robot is the nearest thing: (N, H, W) bool."""
    image = picture(model, kind, View(camera, depth=True), qpos)
    robot = depth_of(picture(model, kind, View(camera, rgb=False, depth=True, groups=ROBOT), qpos))
    return image, torch.isfinite(robot) & (robot <= depth_of(image) * (1 + 1e-5))


def agree(name: str, num: int) -> None:
    model, camera, qpos = suite(name), make_task(name).camera, states(name, num)
    (a, mask_a), (b, mask_b) = (seen_robot(model, kind, camera, qpos) for kind in KINDS)
    both, either = (mask_a & mask_b).sum((1, 2)), (mask_a | mask_b).sum((1, 2))  # (N,)
    assert (either > 30).float().mean() > 0.9  # there is a robot to be seen
    assert both.sum() / either.sum() >= 0.97
    assert (both >= 0.97 * either).all()  # in every picture
    colour = (rgb_of(a).int() - rgb_of(b).int()).abs().float().mean((1, 2, 3))  # (N,)
    assert colour.max() <= 4
    same = (mask_a == mask_b) & torch.isfinite(depth_of(a)) & torch.isfinite(depth_of(b))
    off = ((depth_of(a) - depth_of(b)).abs() / depth_of(b))[same]
    # All but a few: where the edge of one limb before another is a pixel apart.
    assert (off <= 0.01).float().mean() > 0.9999
    assert (torch.isfinite(depth_of(a)) == torch.isfinite(depth_of(b))).float().mean() > 0.99


@pytest.mark.parametrize("name", BUILT_IN)
def test_renderers_agree_on_the_suite(name: str) -> None:
    agree(name, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_renderers_agree_on_many_states(name: str) -> None:
    agree(name, 200)


SHAPES = {
    "sphere": 'type="sphere" size=".6"',
    "capsule": 'type="capsule" size=".3 .5" euler="30 40 50"',
    "capsule along the view": 'type="capsule" size=".3 .5" euler="90 0 0"',
    "ellipsoid": 'type="ellipsoid" size=".3 .5 .8" euler="30 40 50"',
    "cylinder": 'type="cylinder" size=".4 .6" euler="30 40 50"',
    "cylinder upright": 'type="cylinder" size=".4 .6" pos=".1 0 -.2"',
    "cylinder along the view": 'type="cylinder" size=".4 .6" euler="90 0 0"',
    "box": 'type="box" size=".3 .4 .5" euler="30 40 50"',
    "box square on": 'type="box" size=".3 .4 .5" pos=".2 0 .1"',
    "plane": 'type="plane" size=".5 1 .1" euler="50 20 0"',
    "endless plane": 'type="plane" size="0 0 .1" pos="0 0 -.5"',
    "half-endless plane": 'type="plane" size=".5 0 .1" pos=".013 0 -.5"',
    "behind the camera": 'type="box" size=".3 .4 .5" pos="0 -5 0"',
    "around the camera": 'type="sphere" size="1" pos="0 -3 0"',
    "beside the camera": 'type="capsule" size=".2 3" euler="90 0 0" pos=".25 0 0"',
    "partly outside": 'type="cylinder" size=".4 .6" euler="30 40 50" pos="1.2 0 .9"',
    "too far away": 'type="box" size="9 1 9" pos="0 80 0"',
}
GLOSSY = '<material name="glossy" rgba=".5 .3 .7 1" specular=".8" shininess=".3" emission=".2"/>'


@pytest.mark.parametrize("shape", SHAPES)
def test_every_primitive_alone(shape: str) -> None:
    """Also colours: no light is left out. Specular light too, which a geom without material has by default."""
    model = scene(f'<geom {SHAPES[shape]} material="glossy"/>', SKY + GLOSSY)
    compare(model)


def compare(model: mujoco.MjModel, view: View | None = None, qpos: Tensor | None = None) -> None:
    """Nearly every pixel is the same."""
    view = view or View("front", 60, 50, depth=True)
    a, b = (picture(model, kind, view, qpos) for kind in KINDS)
    assert choose(model, [view])[0] == "raster"
    known = torch.isfinite(depth_of(b))
    edges = (torch.isfinite(depth_of(a)) != known).float().mean()
    assert edges < 0.002
    known &= torch.isfinite(depth_of(a))
    if known.any():
        off = ((depth_of(a) - depth_of(b)).abs() / depth_of(b))[known]
        assert (off < 1e-3).float().mean() > 0.995
    different = ((rgb_of(a).int() - rgb_of(b).int()).abs() > 2).any(dim=1).float().mean()
    assert different < 0.005


def test_several_things_hide_each_other() -> None:
    world = "".join(
        f'<geom {shape} rgba="{i / 20} {1 - i / 20} .5 1"/>'
        for i, shape in enumerate(SHAPES.values())
        if "0 -3 0" not in shape
    )
    compare(scene(world))


@pytest.mark.parametrize(
    "light",
    [
        "",
        '<light type="point" pos="1 -2 1" diffuse=".8 .7 .6" attenuation=".5 .3 .1"/>',
        '<light type="spot" pos="0 -2 2" dir="0 1 -1" cutoff="30" exponent="5" diffuse=".8 .8 .8"/>',
        SUN + '<light type="directional" dir="-1 0 -1" diffuse=".2 .3 .4" specular="0 0 0"/>',
    ],
    ids=["no light", "point", "spot", "two"],
)
@pytest.mark.parametrize("headlight", [True, False])
def test_lights(light: str, headlight: bool) -> None:
    head = "" if headlight else "<visual><headlight active='0'/></visual>"
    world = '<geom type="sphere" size=".5"/><geom type="plane" size="0 0 1" pos="0 0 -.5" rgba=".4 .8 .4 1"/>'
    compare(scene(world, SKY, head, light=light))


CHECKER = '<texture name="checker" type="2d" builtin="checker" width="32" height="32" rgb1=".1 .2 .3" rgb2=".9 .8 .7"/>'


@pytest.mark.parametrize("uniform", ["true", "false"])
@pytest.mark.parametrize("size", ["0 0 1", "2 3 1", "2 0 1"])
def test_texture_of_a_plane(uniform: str, size: str) -> None:
    floor = f'<material name="floor" texture="checker" texrepeat="2 3" texuniform="{uniform}" rgba="1 .9 .8 1"/>'
    world = f'<geom type="plane" size="{size}" pos=".3 .2 -.7" euler="0 0 20" material="floor"/>'
    compare(scene(world, SKY + CHECKER + floor), View("front", 90, 70, depth=True))


def test_tiles_of_the_suite_are_one_metre() -> None:
    """Straight down from 2 m, a picture 4 m wide: colours change every quarter of its width."""
    for name in BUILT_IN:
        spec = make_task(name).scene()
        spec.worldbody.add_camera(name="down", pos=[2, 0, 2], fovy=90)
        model = spec.compile()
        model.geom_group[model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE] = ROBOT[0]
        row = rgb_of(picture(model, "raster", View("down", 80, 80, groups=FLOOR)))[0, 0, 30].int()
        changes = torch.nonzero(row.diff().abs() > 20).flatten() + 1
        assert changes.tolist() == [20, 40, 60], name


@pytest.mark.parametrize(
    "sky",
    [
        "",
        '<texture type="skybox" builtin="gradient" width="32" height="192" rgb1=".2 .4 .9" rgb2=".9 .8 .7"/>',
    ],
    ids=["none", "gradient"],
)
@pytest.mark.parametrize("axes", ["1 0 0 0 0 1", "0 1 0 -1 0 1", "1 1 0 -1 1 .5"])
def test_sky(sky: str, axes: str) -> None:
    camera = f'<camera name="front" pos="0 -3 0" xyaxes="{axes}" fovy="100"/>'
    compare(scene('<geom size=".2"/>', sky, camera=camera))


def test_intrinsics_of_a_real_camera() -> None:
    camera = (
        '<camera name="front" pos="0 -3 0" xyaxes="1 0 0 0 0 1" resolution="60 50" sensorsize=".006 .004" '
        'focal=".005 .006" principal=".0005 -.0003"/>'
    )
    compare(scene('<geom type="box" size=".3 .4 .5" euler="30 40 50"/>', camera=camera))


def test_cameras_and_lights_that_move() -> None:
    """Tracking and fixed cameras on bodies, lights on bodies, mocap bodies."""
    world = """
      <body name="a" pos="0 0 .5"><freejoint/><geom type="box" size=".2 .3 .4"/>
        <camera name="front" mode="track" pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>
        <camera name="onboard" pos=".5 0 0" xyaxes="0 -1 0 0 0 1" fovy="70"/>
        <light type="directional" dir="0 0 -1"/>
      </body>
      <body name="m" mocap="true" pos="1 0 0"><geom type="sphere" size=".3" rgba="0 1 0 1"/></body>
      <geom type="plane" size="0 0 1" pos="0 0 -1"/>"""
    model = scene(world, camera="")
    qpos = still(model, 6)
    qpos += torch.randn(qpos.shape, generator=torch.Generator().manual_seed(0)) * 0.5
    for camera in ("front", "onboard"):
        compare(model, View(camera, 50, 50, depth=True), qpos)
    moved = torch.tensor([[[0.5, 0.0, 0.3]]]).expand(6, 1, 3)
    for kind in KINDS:
        renderer = make_renderer(model, 6, [View("front")], 1, kind)
        here = rgb_of(renderer.render(qpos)["front"])
        there = rgb_of(renderer.render(qpos, mocap_pos=moved)["front"])
        assert (here != there).any(dim=1).sum() > 100
        assert torch.equal(here, rgb_of(renderer.render(qpos)["front"]))  # the model's place again


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
    expected = make_renderer(model, 5, views, 2, "warp").render(qpos, mocap)
    to_torch, streams = wp.to_torch, []
    monkeypatch.setattr(wp, "device_from_torch", lambda device: wp.get_device("cpu"))
    monkeypatch.setattr(wp, "to_torch", lambda array: OnGpu(to_torch(array)))
    monkeypatch.setattr(wp, "stream_from_torch", streams.append)  # None: no other stream is taken
    with pretended_gpu() as gpu:
        renderer = make_renderer(model, 5, views, 2, device=gpu.device)
        assert renderer.kind == "warp" and renderer.device == gpu.device and streams == [gpu.device]
        here = qpos.to(gpu.device), mocap.to(gpu.device)
        assert not gpu.waits
        images = renderer.render(*here)
        assert not gpu.waits and streams == [gpu.device] * 2
        for camera, image in expected.items():
            assert rgb_of(images[camera]).device == gpu.device
            assert torch.equal(to_host(rgb_of(images[camera])), rgb_of(image))
        assert depth_of(images["front"]).device == gpu.device
        assert torch.equal(to_host(depth_of(images["front"])), depth_of(expected["front"]))
        again = renderer.render(qpos, mocap)["front"]  # states of the CPU are moved
        assert torch.equal(to_host(rgb_of(again)), rgb_of(expected["front"]))


def test_pictures_are_on_the_renderers_device(kind: Kind) -> None:
    """3."""
    image = hopper(kind, 2).render(still(suite("hopper"), 2))["track"]
    assert hopper(kind, 1).device == rgb_of(image).device == depth_of(image).device == torch.device("cpu")


# --- which one, and what can't be drawn -------------------------------------------------------------------------------

MESH = '<mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>'


def test_a_scene_that_raster_cannot_draw_goes_to_warp_by_itself() -> None:
    mesh = scene('<geom name="hull" type="mesh" mesh="wedge"/><geom size=".1" group="1"/>', SKY + MESH)
    view = View("front", depth=True)
    assert choose(mesh, [view]) == ("warp", "geom 'hull' is a mesh")
    renderer = make_renderer(mesh, 1, [view])
    assert renderer.kind == "warp"
    assert torch.isfinite(depth_of(renderer.render(still(mesh))["front"])).sum() > 100
    with pytest.raises(SdpgError, match="geom 'hull' is a mesh; take the renderer 'warp'"):
        make_renderer(mesh, 1, [view], kind="raster")
    # What is not seen does not count.
    assert choose(mesh, [View("front", groups=(1,))])[0] == "raster"
    material = '<material name="checked" texture="checker"/>'
    box = scene('<geom name="crate" type="box" size=".1 .1 .1" material="checked"/>', SKY + CHECKER + material)
    assert choose(box, [view])[0] == "warp" and "crate" in choose(box, [view])[1]
    field = '<hfield name="hills" nrow="2" ncol="2" size="1 1 .1 .1"/>'
    assert choose(scene('<geom name="ground" type="hfield" hfield="hills"/>', field), [view])[1].endswith("a hfield")
    flat = scene('<geom size=".1"/>', camera='<camera name="front" projection="orthographic"/>')
    assert choose(flat, [view]) == ("warp", "camera 'front' is orthographic")


@pytest.mark.parametrize("name", BUILT_IN)
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
from sdpg.render.compiled import jit

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
