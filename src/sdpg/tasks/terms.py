"""Shared by tasks: reward shapes, angles and quaternions (w, x, y, z), and the two kinds of robot base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import mujoco
import torch
from torch import Tensor

from sdpg.rng import RowRng
from sdpg.tasks.base import Task
from sdpg.types import Ended, Memory, Physics, Start

ASSETS = Path(__file__).parent / "assets"

# The starts of the benchmark suite.
START_NOISE = 0.05  # metres or radians, uniform, on every coordinate
START_TILT = math.radians(7.5)  # about a random axis, free-floating bases only
JOINT_VELOCITY_SCALE = 0.1  # in the state of free-floating robots


def height_reward(height: Tensor, target: float, tolerance: float, gain: float = 1.0) -> Tensor:
    """R_h of the paper: -200 D^2 below `target`, gain * D above, D = clip(height - target, -1, tolerance)."""
    d = (height - target).clamp(-1.0, tolerance)
    return torch.where(d < 0.0, -200.0 * d * d, gain * d)


def effort(action: Tensor) -> Tensor:
    """||a||^2: (..., A) -> (...)."""
    return action.square().sum(-1)


def moved_targets(targets: Tensor, action: Tensor, step: float, low: Sequence[float], high: Sequence[float]) -> Tensor:
    """Targets of position actuators (..., A) after an action that moves each by up to `step`, within their limits."""
    limits = (torch.tensor(limit, device=action.device) for limit in (low, high))
    return (targets + step * action.clamp(-1.0, 1.0)).clamp(*limits)


def wrap_angle(angle: Tensor) -> Tensor:
    """To [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi


def angle_of(x: Tensor, y: Tensor) -> Tensor:
    """Of a direction, counter-clockwise from x: atan2(y, x), which torch rounds differently at the end of a tensor, so
    that branches would not be equal. Here it is by half the angle, whose tangent has two forms."""
    length = (x * x + y * y).sqrt()
    return 2.0 * torch.where(x >= 0.0, y / (length + x).clamp(min=1e-30), (length - x) / y).atan()


def rotate(quat: Tensor, vector: Tensor) -> Tensor:
    """Body frame -> world frame: (..., 4), (..., 3) -> (..., 3)."""
    w, u = quat[..., :1], quat[..., 1:]
    twice = 2.0 * torch.linalg.cross(u, vector.expand_as(u))
    return vector + w * twice + torch.linalg.cross(u, twice)


def down_direction(quat: Tensor) -> Tensor:
    """Where down is in the body's frame: R^T (0, 0, -1). (..., 4) -> (..., 3)"""
    w, x, y, z = quat.unbind(-1)
    return torch.stack((2.0 * (w * y - x * z), -2.0 * (y * z + w * x), -up_projection(quat)), dim=-1)


def up_projection(quat: Tensor) -> Tensor:
    """(R e_z) . e_z: 1 upright, 0 lying, -1 upside down, whatever the yaw. (..., 4) -> (...)"""
    _, x, y, _ = quat.unbind(-1)
    return 1.0 - 2.0 * (x * x + y * y)


def forward_projection(quat: Tensor) -> Tensor:
    """(R e_x) . e_x: 1 facing world +x. (..., 4) -> (...)"""
    _, _, y, z = quat.unbind(-1)
    return 1.0 - 2.0 * (y * y + z * z)


def axes_of(quat: Tensor) -> Tensor:
    """The body's axes in the world, as columns: (..., 4) -> (..., 3, 3)."""
    w, x, y, z = (quat / quat.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = (
        (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)),
        (2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)),
        (2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def yaw_of(quat: Tensor) -> Tensor:
    """Where the body's x axis points, seen from above: 0 is world +x, counter-clockwise. (..., 4) -> (...)"""
    w, x, y, z = quat.unbind(-1)
    return angle_of(1.0 - 2.0 * (y * y + z * z), 2.0 * (w * z + x * y))


def random_tilt(rng: RowRng, max_angle: float) -> Tensor:
    """(n, 4) rotation by U[-max_angle, max_angle] about a random axis (a point of a cube, normalised)."""
    axis = torch.nn.functional.normalize(rng.uniform(-0.5, 0.5, 3), dim=-1)
    half = rng.uniform(-max_angle, max_angle, 1) / 2.0
    return torch.cat((half.cos(), half.sin() * axis), dim=-1)


class Robot(Task):
    """A robot of our own MJCF whose motors take the action as it is: their gear is the torque at 1."""

    asset: ClassVar[str]  # file name in assets/
    licence = "MIT, as sdpg"

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_file(str(ASSETS / self.asset))

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0)


class PlanarRobot(Robot):
    """Coordinates: x, height above the spawn pose, pitch, joints. It starts near the spawn pose, at rest."""

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        qpos = rng.uniform(-START_NOISE, START_NOISE, 3 + self.action_size)
        return Start(qpos, torch.zeros_like(qpos))


class FloatingRobot(Robot):
    """Free joint, then the joints. Starts upright within START_TILT, at rest; remembers the previous action.

    State (13 + 3 A): height 1, quaternion 4, linear velocity (world) 3, angular velocity (body) 3, joint positions A,
    0.1 * joint velocities A, up projection 1, forward projection 1, previous action A.
    """

    start_height: ClassVar[float]
    start_joints: ClassVar[tuple[float, ...]]  # A

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        pose = torch.tensor((0.0, 0.0, self.start_height, *self.start_joints), device=rng.rows.device)
        pose = pose + rng.uniform(-START_NOISE, START_NOISE, len(pose))  # (n, 3 + A)
        qpos = torch.cat((pose[:, :3], random_tilt(rng, START_TILT), pose[:, 3:]), dim=-1)
        return Start(qpos, torch.zeros_like(qpos[:, 1:]), memory={"action": torch.zeros_like(pose[:, 3:])})

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        return {"action": action.clamp(-1.0, 1.0)}

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        quat = x.qpos[..., 3:7]
        state = torch.cat(
            (
                x.qpos[..., 2:7],
                x.qvel[..., :6],
                x.qpos[..., 7:],
                JOINT_VELOCITY_SCALE * x.qvel[..., 6:],
                up_projection(quat)[..., None],
                forward_projection(quat)[..., None],
                memory["action"],
            ),
            dim=-1,
        )
        return {"state": state}
