"""The stand-in's depth camera against the images that the task trains with."""

from __future__ import annotations

import numpy as np
import pytest

from sdpg.build import make_env
from sdpg.camera import Sensor
from sdpg.render.sensor import LOST
from sdpg.render.stack import processed
from sdpg.robot.camera import DepthCamera, SharedPose
from sdpg.robot.world import Place, World, make_world
from sdpg.tasks.go2_terrain import Go2Terrain


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(Place("stairs_up", 1))


def test_same_image_as_the_policy_trains_with() -> None:
    """Bit for bit, after the pipeline that a robot applies, too."""
    env = make_env(Go2Terrain(), 4, threads=1, obs="depth", seed=3)
    obs, qpos = env.observe(), env.physics().qpos[:, 0].double().numpy()
    camera = DepthCamera(make_world(Place("stairs_up", 1)))
    pipeline = camera.camera.pipeline
    for row in range(4):
        image = camera.image(qpos[row])
        assert image.shape == (1, 60, 106) and image.dtype == np.float32
        assert (processed(image, pipeline, True) == obs.sources["depth"][row].numpy()).all()


def test_the_sensor_model_spoils_it(world: World) -> None:
    pose = world.model.qpos0.copy()
    pose[:3] = world.origin + (0.0, 0.0, 0.3)
    clear = DepthCamera(world).image(pose)
    spoilt = Sensor(latency=(60.0, 60.0), noise=0.02, holes=0.1)
    camera, same = DepthCamera(world, spoilt, seed=1), DepthCamera(world, spoilt, seed=1)
    assert camera.latency == pytest.approx(0.06) and DepthCamera(world).latency == 0.0
    image = camera.image(pose)
    assert (image == same.image(pose)).all() and (image != camera.image(pose)).any()
    assert 0.05 < (image == LOST).mean() < 0.2
    seen = (image != LOST) & np.isfinite(clear)
    assert 0.01 < np.std(image[seen] / clear[seen]) < 0.03


def test_poses_are_read_whole() -> None:
    pose = SharedPose(19)
    assert pose.read() is None
    pose.write(1.5, np.arange(19.0))
    when, qpos = pose.read() or (0.0, np.zeros(0))
    assert when == 1.5 and (qpos == np.arange(19.0)).all()
    numbers = np.frombuffer(pose._numbers)
    numbers[0] += 1.0  # as if its writer were in the middle
    assert pose.read() is None
