"""A robot of one's own: an arm of two joints, from arm.xml, brings its tip to a goal that every episode draws anew."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import torch
from torch import Tensor

from sdpg.tasks import Camera, Ended, Memory, Physics, RowRng, Start, Task, Terms

NEAR = 0.1  # metres: at this distance the reward has fallen to a half
MAX_SPEED = 25.0  # rad/s: a real arm's drives would have tripped
EFFORT_WEIGHT = 0.02


class Arm(Task):
    """Action: torques of shoulder and elbow. State: both angles as directions, speeds, tip, goal less tip. A step
    is rewarded by at most 1."""

    action_size = 2
    state_size = 10
    timestep = 0.005
    substeps = 4  # control at 50 Hz
    episode_steps = 150
    reads = ("sensordata",)  # what x[...] has beside positions and velocities
    camera = "top"
    cameras = {"pixels": Camera("top")}
    inputs = {"state": ("state",), "pixels": ("pixels", "goal")}  # no image shows the goal: it is told

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_file(str(Path(__file__).with_name("arm.xml")))

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        qpos = rng.uniform(-math.pi / 2, math.pi / 2, 2)  # (n, 2)
        # A goal is memory: drawn once a row, copied with the world when it branches.
        angle, radius = rng.uniform(-math.pi, math.pi, 1), rng.uniform(0.2, 0.55, 1)  # (n, 1) each
        goal = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=-1)  # (n, 2)
        return Start(qpos, torch.zeros_like(qpos), memory={"goal": goal})

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0)

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        distance = (memory["goal"] - self._tip(x)).norm(dim=-1)  # (N, K)
        return {
            "near": 1.0 / (1.0 + (distance / NEAR).square()),
            "effort": -EFFORT_WEIGHT * action.square().sum(-1),
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return (x.qvel.abs() > MAX_SPEED).any(-1)  # (N, K)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        tip, goal = self._tip(x), memory["goal"]
        state = torch.cat((x.qpos.sin(), x.qpos.cos(), 0.1 * x.qvel, tip, goal - tip), dim=-1)  # (N, K, 10)
        return {"state": state, "goal": goal}

    def _tip(self, x: Physics) -> Tensor:
        return x["sensordata"][..., :2]  # (N, K, 2): the only sensor's x and y
