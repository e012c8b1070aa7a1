"""Planar two-legged walker: run along +x.

Numbers from the paper (reward and termination tables of the MuJoCo suite), the rest from its authors' released code.
Deviations:
1. Two physics substeps of 5 ms per control step instead of one of 10 ms.
2. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sdpg.tasks import Memory, Physics, Terms
from sdpg.tasks.terms import PlanarRobot, effort

EFFORT_WEIGHT = 0.01
HEALTH = 0.1
MIN_HEIGHT, MAX_HEIGHT = -0.5, 0.7  # of the torso, relative to its spawn height of 1.3 m
MAX_PITCH = 1.0


class Walker(PlanarRobot):
    """Action: hip, knee, ankle (100, 50, 20 N m), right leg first. State: pitch, height, 6 joints; x, pitch and height
    velocities, 6 joint velocities."""

    asset = "walker.xml"
    action_size = 6
    state_size = 17
    action_meaning = "torques of hip, knee and ankle, right leg first, up to 100, 50 and 20 N m"
    ends = "it is too low or too high, or tilts too far"

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        forward = x.qvel[..., 0].clone()
        return {
            "forward": forward,
            "effort": -EFFORT_WEIGHT * effort(action),
            "health": torch.full_like(forward, HEALTH),
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        height, pitch = x.qpos[..., 1], x.qpos[..., 2]
        return (height < MIN_HEIGHT) | (height > MAX_HEIGHT) | (pitch.abs() > MAX_PITCH)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        pos, vel = x.qpos, x.qvel  # x, height, pitch, joints
        parts = (pos[..., 2:3], pos[..., 1:2], pos[..., 3:], vel[..., 0:1], vel[..., 2:3], vel[..., 1:2], vel[..., 3:])
        return {"state": torch.cat(parts, dim=-1)}
