"""A task with everything that a task may have: options, a curriculum, measures, and looks of its own in every row.

A point is driven along a line to a target. Who comes near enough moves on to targets farther away; who does not, back.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import torch
from torch import Tensor

from sdpg.tasks import Camera, Ended, Memory, Physics, RowRng, Start, Task, TaskCfg, Terms

SCENE = """
<mujoco>
  <option timestep="0.02"/>
  <visual><map zfar="10"/></visual>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1"/>
    <camera name="top" pos="0 0 3"/>
    <geom name="floor" type="plane" size="3 3 .1" rgba=".3 .3 .3 1"/>
    <body name="point" pos="0 0 .1">
      <joint name="x" type="slide" axis="1 0 0" damping="4"/><geom size=".1" contype="0"/>
    </body>
    <body name="target" mocap="true"><geom name="target" size=".15" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator><motor joint="x" gear="40"/></actuator>
</mujoco>
"""
LEVELS = 5


@dataclass(frozen=True)
class Options(TaskCfg):
    near: float = 0.2
    """Metres from the target that count as success."""
    colours: bool = True
    """Draw the colour of the floor anew in every episode."""

    def rules(self) -> dict[str, bool]:
        return {f"task.near must be positive, not {self.near}": self.near > 0}


class Targets(Task):
    Cfg = Options
    cfg: Options
    action_size, state_size = 1, 4
    episode_steps = 12
    params = ("geom_rgba",)
    camera = "top"
    cameras = {"pixels": Camera("top", 40, 40, stack=1)}

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(SCENE)

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        level = torch.zeros(n)
        if ended is not None:
            reached = ended.memory["distance"] < self.cfg.near
            level = (ended.memory["level"] + torch.where(reached, 1.0, -1.0)).clamp(0.0, LEVELS - 1.0)
        side = torch.where(rng.uniform(-1.0, 1.0) > 0, 1.0, -1.0)  # (n,)
        target = side * (0.1 + 0.2 * level)
        rgba = self.look(rng, n)
        poses = torch.stack((target, torch.zeros(n), torch.full((n,), 0.1)), dim=-1)[:, None]  # (n, 1, 3)
        memory = {"level": level, "target": target, "distance": target.abs()}
        return Start(torch.zeros(n, 1), torch.zeros(n, 1), memory, {"geom_rgba": rgba}, mocap_pos=poses)

    def look(self, rng: RowRng, n: int) -> Tensor:
        """(n, geoms, 4): the floor's colour is the row's own."""
        rgba = torch.tensor([[0.3, 0.3, 0.3, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]).repeat(n, 1, 1)
        drawn = rng.uniform(0.1, 0.9, 3)
        if self.cfg.colours:
            rgba[:, 0, :3] = drawn
        return rgba

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return action

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        return memory | {"distance": (x.qpos[..., 0] - memory["target"]).abs()}

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {"near": -(x.qpos[..., 0] - memory["target"]).abs(), "effort": -0.01 * action.square().sum(-1)}

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return x.qpos[..., 0].abs() > 2.5

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        numbers = (x.qpos[..., 0], x.qvel[..., 0], memory["target"], memory["level"])
        return {"state": torch.stack(numbers, dim=-1)}

    def measure(self, x: Physics, memory: Memory) -> Terms:
        return {"success": (memory["distance"] < self.cfg.near).float(), "level": memory["level"]}
