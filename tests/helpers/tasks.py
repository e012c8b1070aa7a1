"""Tasks that several tests share."""

from __future__ import annotations

import mujoco
import torch
from torch import Tensor

from sdpg.rng import RowRng
from sdpg.sim.toy import ToyTask
from sdpg.tasks.base import Task
from sdpg.types import Ended, Memory, Physics, Start, Terms

SUITE = ("cartpole", "hopper", "walker", "ant", "humanoid")  # robots of our own

BLOCK = """
<mujoco><worldbody><geom type="plane" size="9 9 .1"/><body pos="0 0 .1"><freejoint/>
<geom type="box" size=".1 .1 .1" mass="1"/></body></worldbody>
<actuator><motor site="s" gear="1 0 0 0 0 0"/></actuator></mujoco>
""".replace('mass="1"/>', 'mass="1"/><site name="s"/>')


class Block(Task):
    """A block on a floor, pushed along x; it must stay within 1 m. Remembers a goal, its last action and a gust."""

    action_size, state_size, episode_steps, timestep = 1, 3, 50, 0.005
    params = ("geom_friction",)

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(BLOCK)

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        qpos = torch.tensor([0.0, 0.0, 0.1, 1.0, 0.0, 0.0, 0.0]).repeat(n, 1)
        qpos[:, 0] = rng.uniform(-0.2, 0.2, 1)[:, 0]
        friction = torch.tensor([1.0, 0.005, 0.0001]).repeat(n, 2, 1) * rng.uniform(0.2, 1.0, 1)[:, :, None]
        memory = {"goal": rng.uniform(-1, 1, 2), "previous": torch.zeros(n, 1), "gust": torch.zeros(n)}
        return Start(qpos, torch.zeros(n, 6), memory, {"geom_friction": friction.double()})

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return 20.0 * action + memory["gust"][..., None]

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {"position": -x.qpos[..., 0].abs(), "rate": -(action - memory["previous"]).square().sum(-1)}

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return x.qpos[..., 0].abs() > 1.0

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        gust = rng.normal(1)  # (N, 1): along the row
        return {"goal": memory["goal"], "previous": action.clone(), "gust": gust.expand(action.shape[:2]).contiguous()}

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        parts = (x.qpos[..., :1], x.qvel[..., :1], memory["previous"])
        return {"state": torch.cat(parts, -1), "proprio": x.qvel[..., :1].clone()}


class Fragile(ToyTask):
    """A branch whose control is large gives NaN as its reward."""

    def reward(self, x: Physics, memory: dict[str, Tensor], action: Tensor) -> dict[str, Tensor]:
        reward = super().reward(x, memory, action)["state"]
        return {"state": torch.where(action.abs().amax(-1) > 0.9, torch.nan, reward)}
