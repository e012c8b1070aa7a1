"""Planar walker over hurdles: run along +x, guided by a camera or a height scan.

The paper's WalkerHurtle: rewards and terminations from the paper, the rest from its authors' released code. Deviations:
1. Hurdles are 0.2 to 0.5 m high, rising by 5 cm every two; the code's, 0.2 to 1.5 m. What can be cleared was searched
   for, from a run-up of 4 m/s: 0.5 m can, 0.7 m was not.
2. The upper limit of the height rises by a hurdle's own height within 1 m of it; the code's is the same everywhere.
3. The camera turns with the torso, as the paper says; the code's keeps the world's directions (--task.camera world).
4. Tiles are 5.2 m long instead of 5.0 m, so that no hurdle is cut at a tile's edge, and hurdles are 1.7 m wide instead
   of 1.2 to 1.8 m.
5. Flat ground goes on before and behind the track; the code's robots fall off its edge.
6. Scanned heights are those of the ground's triangles at the present position; the code takes the least of three nodes,
   and a branch keeps a stale scan until its first step.
7. Two physics substeps of 5 ms per control step instead of one of 10 ms.
8. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

import mujoco
import torch
from torch import Tensor

from sdpg.tasks import Memory, Physics, Terms
from sdpg.tasks.hurdles import HurdleTask
from sdpg.tasks.terrain import TerrainCfg
from sdpg.tasks.walker import MAX_HEIGHT, MAX_PITCH, MIN_HEIGHT, Walker

REWARD_SCALE = 10.0  # of all of the walker's terms
SCAN = (-2.0, 5.0, 36)  # metres before the torso: first, last, how many


class WalkerHurdle(HurdleTask, Walker):
    """Action: hip, knee, ankle (100, 50, 20 N m), right leg first. Proprioception (17): the walker's state. Scan (36):
    heights of the ground from 2 m behind to 5 m ahead."""

    action_size = 6
    ends = "it is too low, too high above the ground or a hurdle, or tilts too far"
    state_size = 53
    state_parts = {"proprio": 17, "scan": 36}
    hurdles = TerrainCfg(
        levels=5,
        length=5.2,
        width=2.0,
        cell=0.05,
        border=0.5,
        hurdle=(0.2, 0.4),
        hurdle_spread=(0.1, 0.1),
        hurdle_spacing=(2.4, 2.45),
        hurdle_thickness=0.15,
    )

    def scene(self) -> mujoco.MjSpec:
        spec = Walker.scene(self)
        self.track.add_to(spec)
        self.add_camera(spec.body("torso"))
        return spec

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {name: REWARD_SCALE * term for name, term in Walker.reward(self, x, memory, action).items()}

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        forward, height, pitch = x.qpos[..., :3].unbind(-1)
        too_high = height > MAX_HEIGHT + self.track.ceiling(forward)
        return (height < MIN_HEIGHT) | too_high | (pitch.abs() > MAX_PITCH)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        first, last, count = SCAN
        ahead = x.qpos[..., :1] + torch.linspace(first, last, count, device=x.qpos.device)  # (N, K, 36)
        scan = self.track.height_at(torch.stack((ahead, torch.zeros_like(ahead)), dim=-1))
        return self.sources(Walker.observe(self, x, memory)["state"], scan)
