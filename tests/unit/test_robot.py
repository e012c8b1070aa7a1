"""The stand-in Go2 without a wire and without a clock."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest
import torch
from helpers.stand_in import ONE, STANCE, ZERO, hold, rise, stand

from sdpg.errors import SdpgError
from sdpg.robot.stand_in import NO_LOAD, Motors, Noise, StandIn, damped, limits, servo
from sdpg.robot.wire import state_record
from sdpg.robot.world import KINDS, TIMESTEP, Place, World, make_world
from sdpg.tasks import go2
from sdpg.tasks.go2_terrain import GROUND, Go2Terrain
from sdpg_runtime.dds import layout
from sdpg_runtime.link import Command


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(Place("stairs_up", 2))


def _height(robot: StandIn, world: World) -> float:
    return float(robot.data.qpos[2] - world.origin[2])


def test_the_ground_is_trainings(world: World) -> None:
    assert (world.task.ground.heights == Go2Terrain().ground.heights).all()
    column = GROUND.kinds.index("stairs_up")
    assert world.origin[:2].tolist() == [2.5 * GROUND.length, (column + 0.5 - 5.0) * GROUND.width]


@pytest.mark.parametrize("kind", KINDS)
def test_courses_have_the_same_level_everywhere(kind: str) -> None:
    task = make_world(Place(kind, 4, course=True)).task
    if kind == "plain":
        assert not task.ground.heights.any()
    else:
        assert set(task.ground.cfg.kinds) == {kind}
        assert GROUND.at(GROUND.riser, 4) == task.ground.cfg.at(task.ground.cfg.riser, 0) != GROUND.riser[0]


@pytest.mark.parametrize("place", [Place("moon"), Place("rough", 10), Place("rough", -1), Place(seed=-1)])
def test_places_that_do_not_exist(place: Place) -> None:
    with pytest.raises(SdpgError):
        make_world(place)


def test_same_body_as_in_training(world: World) -> None:
    """But for the actuators: torques, with training's limits."""
    theirs, mine = Go2Terrain().model, world.model
    for name in ("body_mass", "dof_damping", "dof_armature", "dof_frictionloss", "jnt_range", "geom_friction"):
        assert (getattr(theirs, name) == getattr(mine, name)).all(), name
    assert (theirs.actuator_forcerange == mine.actuator_forcerange).all()
    assert (mine.actuator_biastype == mujoco.mjtBias.mjBIAS_NONE).all() and (mine.actuator_gainprm[:, 0] == 1.0).all()
    assert mine.opt.timestep == TIMESTEP


def test_lies_until_it_is_commanded_then_stands_then_sinks(world: World) -> None:
    robot = StandIn(world)
    assert _height(robot, world) < 0.12
    hold(robot, 1.0, damped())
    assert _height(robot, world) < 0.12
    rise(robot)
    assert 0.25 < _height(robot, world) < 0.40
    assert abs(robot.position - STANCE).max() < 0.2
    before = _height(robot, world)
    hold(robot, 0.1, damped())
    assert before - _height(robot, world) < 0.05  # free, it would fall as much in 0.1 s
    hold(robot, 3.0, damped())
    assert _height(robot, world) < 0.12 and abs(robot.data.qvel).max() < 0.5


def test_faces_where_it_is_told_to() -> None:
    robot = StandIn(make_world(Place(heading=90.0)))
    assert np.allclose(abs(robot.data.qpos[3:7]), (math.cos(math.pi / 4), 0.0, 0.0, math.sin(math.pi / 4)), atol=0.02)


def test_servos_look_in_every_step_not_once_a_command(world: World) -> None:
    robot, command = StandIn(world), stand()
    applied = []
    for _ in range(10):
        position, velocity = robot.position.copy(), robot.velocity.copy()
        robot.step(command)
        wanted = 60.0 * (STANCE - position) - 2.0 * velocity
        limit = world.model.actuator_forcerange[:, 1]
        assert np.allclose(robot.data.ctrl, np.clip(wanted, -limit, limit))
        applied.append(robot.data.ctrl.copy())
    assert len({tuple(torque) for torque in applied}) == 10


def test_servo_formula_and_targets_that_mean_none() -> None:
    command = Command(1.0 * ONE, 2.0 * ONE, 3.0 * ONE, 10.0 * ONE, 5.0 * ONE)
    assert (servo(command, 0.5 * ONE, 1.0 * ONE) == 3.0 + 10.0 * 0.5 + 5.0 * 1.0).all()
    stop = Command(2.146e9 * ONE, 16000.0 * ONE, ZERO, 10.0 * ONE, 5.0 * ONE)
    assert (servo(stop, ONE, ONE) == 0.0).all()


def test_torque_falls_with_speed_but_not_when_braking() -> None:
    most = 20.0 * ONE
    assert (limits(most, ONE, 0.4 * NO_LOAD) == most).all()
    assert np.allclose(limits(most, ONE, 0.75 * NO_LOAD), 0.5 * most)
    assert (limits(most, ONE, NO_LOAD) == 0.0).all()
    assert (limits(most, -ONE, NO_LOAD) == most).all()


def test_torque_speed_is_applied(world: World) -> None:
    robot = StandIn(world, Motors(torque_speed=True))
    robot.data.qvel[6:] = 40.0
    robot.step(Command(ZERO, ZERO, 10.0 * ONE, ZERO, ZERO))
    assert (robot.data.ctrl == 0.0).all()


def test_sensors_tell_what_is(world: World) -> None:
    robot = StandIn(world)
    rise(robot)
    reading = robot.reading()
    assert (reading.position == robot.position).all() and (reading.velocity == robot.velocity).all()
    assert (reading.quaternion == robot.data.qpos[3:7]).all() and (reading.gyroscope == robot.data.qvel[3:6]).all()
    assert abs(reading.accelerometer - (0.0, 0.0, 9.81)).max() < 0.5
    joints = go2.robot_order(torch.from_numpy(robot.data.qpos[7:].copy()))
    assert (reading.position == joints.numpy()).all()


def test_noise_is_as_large_as_told_and_from_the_seed(world: World) -> None:
    one, same = (StandIn(world, noise=Noise(0.1, 0.01), seed=3) for _ in range(2))
    readings = [one.reading() for _ in range(500)]
    again = same.reading()
    assert (again.position == readings[0].position).all() and (again.gyroscope == readings[0].gyroscope).all()
    for name, wanted in {"gyroscope": 0.1, "accelerometer": 1.0, "position": 0.01, "velocity": 0.5}.items():
        found = np.std([getattr(reading, name) for reading in readings], axis=0)
        assert np.allclose(found, wanted, rtol=0.2), name
    assert np.allclose([np.linalg.norm(reading.quaternion) for reading in readings], 1.0)


def test_state_record(world: World) -> None:
    robot = StandIn(world)
    robot.data.time = 1.234
    robot.data.qpos[3:7] = (math.cos(0.25), 0.0, 0.0, math.sin(0.25))
    record = state_record(robot.reading())
    assert record["crc"] == layout.crc_of(record) and tuple(record["head"]) == layout.HEAD
    assert record["tick"] == 1234
    assert np.allclose(record["imu_state"]["rpy"], (0.0, 0.0, 0.5), atol=1e-6)
    assert np.allclose(record["motor_state"]["q"][:12], robot.position) and not record["motor_state"]["q"][12:].any()
