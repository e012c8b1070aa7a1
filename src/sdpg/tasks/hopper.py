"""Planar one-legged hopper: run along +x.

Numbers from the paper (reward and termination tables of the MuJoCo suite), the rest from its authors' released code.
Deviations:
1. The paper calls the upper clip of the height term "a small tolerance"; the code uses 3 m, and published returns are
   comparable only with that.
2. Two physics substeps of 5 ms per control step instead of one of 10 ms.
3. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sdpg.tasks import Memory, Physics, Terms
from sdpg.tasks.terms import PlanarRobot, effort, height_reward, wrap_angle

# Heights are of the torso, relative to its spawn height of 1.25 m.
TARGET_HEIGHT = -0.30
HEIGHT_TOLERANCE = 3.0  # paper: small
MAX_PITCH = math.pi / 6  # where the pitch term reaches 0
EFFORT_WEIGHT = 0.1
MIN_HEIGHT, MAX_HEIGHT = -0.45, 15.0
MAX_SPEED = 100.0  # of any coordinate


class Hopper(PlanarRobot):
    """Action: thigh, leg, foot, 200 N m each. State: height, pitch, 3 joints, then their velocities with x in front."""

    asset = "hopper.xml"
    action_size = 3
    state_size = 11
    action_meaning = "torques of thigh, leg and foot, up to 200 N m"
    ends = "it is too low or too high, or moves far too fast"

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        pitch = wrap_angle(x.qpos[..., 2])
        return {
            "forward": x.qvel[..., 0].clone(),
            "height": height_reward(x.qpos[..., 1], TARGET_HEIGHT, HEIGHT_TOLERANCE),
            "pitch": 1.0 - (pitch / MAX_PITCH).square(),
            "effort": -EFFORT_WEIGHT * effort(action),
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        height = x.qpos[..., 1]
        return (height < MIN_HEIGHT) | (height > MAX_HEIGHT) | (x.qvel.abs() > MAX_SPEED).any(-1)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return {"state": torch.cat((x.qpos[..., 1:], x.qvel), dim=-1)}
