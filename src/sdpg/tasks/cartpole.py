"""Cart and pole: catch the tilted pole, then hold it upright at the middle of the rail. The quick start; ours.

Rewards are at most 1 a step, so that no policy can return more than 300 an episode: a good linear controller returns
299, random actions 28. An episode ends when the pole has tilted too far or the cart has left the rail.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sdpg.tasks import Camera, Ended, Memory, Physics, RowRng, Start, Terms
from sdpg.tasks.terms import Robot, effort

RAIL = 1.2  # metres to either side
MAX_TILT = 1.0  # radians
START_TILT = 0.35  # the pole falls at once: only a quick push under it saves it
START_SHIFT = 0.3
UPRIGHT_WEIGHT, CENTRE_WEIGHT, CALM_WEIGHT = 0.6, 0.3, 0.1  # sum: 1


class Cartpole(Robot):
    """Action: force on the cart, 20 N. State: cart position, pole angle, and their velocities."""

    asset = "cartpole.xml"
    action_size = 1
    state_size = 4
    action_meaning = "force on the cart, up to 20 N"
    ends = "the pole has fallen or the cart is at the end of the rail"
    timestep = 0.01
    substeps = 2  # 50 Hz
    episode_steps = 300
    camera = "side"
    cameras = {"pixels": Camera("side")}

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        shift = rng.uniform(-START_SHIFT, START_SHIFT, 1)
        tilt = rng.uniform(-START_TILT, START_TILT, 1)
        qpos = torch.cat((shift, tilt), dim=-1)
        return Start(qpos, torch.zeros_like(qpos))

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        shift, tilt = x.qpos.unbind(-1)
        return {
            "upright": UPRIGHT_WEIGHT * (1.0 - (tilt / MAX_TILT).square()).clamp(min=0.0),
            "centre": CENTRE_WEIGHT * (1.0 - (shift / RAIL).square()).clamp(min=0.0),
            "calm": CALM_WEIGHT * (1.0 - effort(action)).clamp(min=0.0),
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        shift, tilt = x.qpos.unbind(-1)
        return (shift.abs() > RAIL) | (tilt.abs() > MAX_TILT)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return {"state": torch.cat((x.qpos, x.qvel), dim=-1)}
