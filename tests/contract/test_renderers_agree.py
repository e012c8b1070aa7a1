"""The two renderers see the same."""

from __future__ import annotations

import mujoco
import pytest
import torch
from helpers.images import (
    CHECKER,
    FLOOR,
    KINDS,
    ROBOT,
    SKY,
    SUN,
    depth_of,
    picture,
    require_alike,
    rgb_of,
    scene,
    states,
    still,
    suite,
)
from helpers.tasks import SUITE
from torch import Tensor

from sdpg.render.api import Image, View
from sdpg.render.choose import Kind, make_renderer
from sdpg.tasks.base import make_task


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


@pytest.mark.parametrize("name", SUITE)
def test_renderers_agree_on_the_suite(name: str) -> None:
    agree(name, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITE)
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
    require_alike(model)


def test_several_things_hide_each_other() -> None:
    world = "".join(
        f'<geom {shape} rgba="{i / 20} {1 - i / 20} .5 1"/>'
        for i, shape in enumerate(SHAPES.values())
        if "0 -3 0" not in shape
    )
    require_alike(scene(world))


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
    require_alike(scene(world, SKY, head, light=light))


@pytest.mark.parametrize("uniform", ["true", "false"])
@pytest.mark.parametrize("size", ["0 0 1", "2 3 1", "2 0 1"])
def test_texture_of_a_plane(uniform: str, size: str) -> None:
    floor = f'<material name="floor" texture="checker" texrepeat="2 3" texuniform="{uniform}" rgba="1 .9 .8 1"/>'
    world = f'<geom type="plane" size="{size}" pos=".3 .2 -.7" euler="0 0 20" material="floor"/>'
    require_alike(scene(world, SKY + CHECKER + floor), View("front", 90, 70, depth=True))


def test_tiles_of_the_suite_are_one_metre() -> None:
    """Straight down from 2 m, a picture 4 m wide: colours change every quarter of its width."""
    for name in SUITE:
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
    require_alike(scene('<geom size=".2"/>', sky, camera=camera))


def test_intrinsics_of_a_real_camera() -> None:
    camera = (
        '<camera name="front" pos="0 -3 0" xyaxes="1 0 0 0 0 1" resolution="60 50" sensorsize=".006 .004" '
        'focal=".005 .006" principal=".0005 -.0003"/>'
    )
    require_alike(scene('<geom type="box" size=".3 .4 .5" euler="30 40 50"/>', camera=camera))


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
        require_alike(model, View(camera, 50, 50, depth=True), qpos)
    moved = {"mocap_pos": torch.tensor([[[0.5, 0.0, 0.3]]]).expand(6, 1, 3)}
    for kind in KINDS:
        renderer = make_renderer(model, 6, [View("front")], 1, kind)
        here = rgb_of(renderer.render(qpos)["front"])
        there = rgb_of(renderer.render(qpos, moved)["front"])
        assert (here != there).any(dim=1).sum() > 100
        assert torch.equal(here, rgb_of(renderer.render(qpos)["front"]))  # the model's place again
