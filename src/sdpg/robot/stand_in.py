"""A Go2 in MuJoCo that stands in for a real one: motors with their own servos, an IMU, encoders. Knows no wire and no
clock.

What it does not have: backlash and friction of real gears beyond the model's, heat, a battery, foot sensors, an IMU
away from the base's origin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco
import numpy as np

from sdpg.robot.world import World
from sdpg_runtime.dds.layout import JOINTS
from sdpg_runtime.link import Command, RobotState
from sdpg_runtime.machine import Gains
from sdpg_runtime.robot import GO2

Array = np.ndarray

LYING = np.array(GO2.crouch)  # radians: legs folded beneath the trunk
DROP, SETTLE = 0.12, 3.0  # metres above the ground from which it is put down; seconds it has for that
DAMPING = Gains().damping  # N m per radian a second, of motors that nobody commands: as the runtime damps
NO_LOAD = np.tile((30.1, 30.1, 15.7), 4)  # radians a second at which a motor has no torque left
KNEE = 0.5  # the share of that speed up to which it has all of it
NO_POSITION, NO_VELOCITY = 1e9, 16000.0  # targets from here on mean: none, as the robot's protocol has it


@dataclass(frozen=True)
class Motors:
    torque_speed: bool = False  # whether torque falls with speed


@dataclass(frozen=True)
class Noise:
    """Standard deviations; the other numbers of a sensor are as noisy as the task's noise has them to each other."""

    imu: float = 0.0  # radians a second of the gyroscope; orientation, in radians: a fifth;
    # the accelerometer, in metres a second squared: ten times
    encoder: float = 0.0  # radians of positions; velocities, in radians a second: fifty times


IDEAL, EXACT = Motors(), Noise()


def damped() -> Command:
    """What motors do by themselves: they brake. Never nothing at all, which would drop the robot."""
    nothing = np.zeros(JOINTS)
    return Command(nothing, nothing, nothing, nothing, np.full(JOINTS, DAMPING))


class StandIn:
    """Lies on the ground until it is commanded. Joints are in the robot's order."""

    def __init__(self, world: World, motors: Motors = IDEAL, noise: Noise = EXACT, seed: int = 0):
        self.model, self.data = world.model, mujoco.MjData(world.model)
        self.motors, self.noise = motors, noise
        joints = self.model.actuator_trnid[:, 0]
        self._q, self._dq = self.model.jnt_qposadr[joints], self.model.jnt_dofadr[joints]  # (12,) where they are
        self._limit = self.model.actuator_forcerange[:, 1].copy()
        self._rng = np.random.default_rng(seed)
        self._lie_down(world.origin, world.heading)

    def _lie_down(self, origin: Array, heading: float) -> None:
        self.data.qpos[:3] = origin + (0.0, 0.0, DROP)
        self.data.qpos[3:7] = (math.cos(heading / 2), 0.0, 0.0, math.sin(heading / 2))
        self.data.qpos[self._q] = LYING
        for _ in range(round(SETTLE / self.model.opt.timestep)):
            self.step(damped())
        self.data.time = 0.0

    @property
    def position(self) -> Array:
        return self.data.qpos[self._q]

    @property
    def velocity(self) -> Array:
        return self.data.qvel[self._dq]

    def step(self, command: Command) -> None:
        """One step of physics. The servos look at their encoders in every one of them, however old the command is."""
        speed = self.velocity
        torque = servo(command, self.position, speed)
        limit = self._limit if not self.motors.torque_speed else limits(self._limit, torque, speed)
        self.data.ctrl[:] = np.clip(torque, -limit, limit)
        mujoco.mj_step(self.model, self.data)

    def reading(self) -> RobotState:
        """What its sensors say; `time` is that of physics."""
        data, imu, encoder = self.data, self.noise.imu, self.noise.encoder
        quat = data.qpos[3:7].copy()
        if imu:
            quat = _turned(quat, 0.2 * imu * self._rng.standard_normal(3))
        return RobotState(
            time=data.time,
            tick=round(1000.0 * data.time),
            quaternion=quat,
            gyroscope=data.qvel[3:6] + imu * self._rng.standard_normal(3),
            accelerometer=_felt(data) + 10.0 * imu * self._rng.standard_normal(3),
            position=self.position + encoder * self._rng.standard_normal(JOINTS),
            velocity=self.velocity + 50.0 * encoder * self._rng.standard_normal(JOINTS),
            torque=data.actuator_force.copy(),
        )


def servo(command: Command, position: Array, velocity: Array) -> Array:
    """(12,) torques that a command asks for: with no target there is no stiffness, or no damping."""
    stiffness = np.where(abs(command.position) < NO_POSITION, command.stiffness, 0.0)
    damping = np.where(abs(command.velocity) < NO_VELOCITY, command.damping, 0.0)
    return command.torque + stiffness * (command.position - position) + damping * (command.velocity - velocity)


def limits(most: Array, torque: Array, velocity: Array) -> Array:
    """(12,) what motors can give at this speed: all of it up to the knee, then less, nothing at their top speed.
    Against the motion they brake with all they have."""
    share = np.clip((NO_LOAD - abs(velocity)) / ((1.0 - KNEE) * NO_LOAD), 0.0, 1.0)
    return np.where(torque * velocity > 0.0, share * most, most)


def _felt(data: mujoco.MjData) -> Array:
    """(3,) acceleration in the base's frame: at rest, 9.81 upwards."""
    felt, inverse = np.zeros(3), np.zeros(4)
    mujoco.mju_negQuat(inverse, data.qpos[3:7])
    mujoco.mju_rotVecQuat(felt, data.qacc[:3] - data.model.opt.gravity, inverse)
    return felt


def _turned(quat: Array, by: Array) -> Array:
    turned = quat.copy()
    mujoco.mju_quatIntegrate(turned, by, 1.0)
    return turned
