"""The same policy inside the simulator that it was trained in: the other column of closed_loop.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdpg.build import make_env
from sdpg.rng import RowRng
from sdpg.robot.report import STRIDE
from sdpg.robot.world import Place, World, make_world
from sdpg.tasks import go2
from sdpg.tasks.go2_terrain import FRAME, FRAMES, START_HEIGHT, Go2Terrain, Go2TerrainCfg
from sdpg.tasks.terms import yaw_of
from sdpg.types import Ended, Memory, Physics, Start
from sdpg_runtime.contract import Folder
from sdpg_runtime.policy import Policy


class Told(Go2Terrain):
    """The task on the stand-in's ground and from its start, with commands from a table; nothing else is random."""

    def __init__(self, world: World, commands: Tensor):
        super().__init__(Go2TerrainCfg(randomised=False, pushes=False, curriculum=False))
        self.__dict__["ground"] = world.task.ground
        self._world, self._commands = world, commands  # (T, 3)

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        start = super().start(rng, n, ended)
        half = torch.tensor(self._world.heading / 2)
        qpos = start.qpos.clone()
        qpos[:, :3] = torch.tensor(self._world.origin, dtype=qpos.dtype)
        qpos[:, 2] += START_HEIGHT
        qpos[:, 3:7] = torch.stack((half.cos(), 0 * half, 0 * half, half.sin()))
        qpos[:, 7:] = go2.robot_order(torch.tensor(go2.STANCE))
        command, action = self._commands[0].expand(n, 3), torch.zeros(n, 12)
        frame = self._frame(qpos, start.qvel, command, action)
        memory = {"command": command, "history": frame[:, None].expand(n, FRAMES, FRAME), "origin": qpos[:, :2]}
        return replace(start, qpos=qpos, memory=dict(start.memory) | memory)

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        after = super().advance(x, memory, action, rng)
        step = after["steps"].long().clamp(max=len(self._commands) - 1)  # (N, K)
        command = self._commands[step]
        frame = self._frame(x.qpos, x.qvel, command, action)
        history = torch.cat((memory["history"][..., 1:, :], frame[..., None, :]), dim=-2)
        return after | {"command": command, "history": history}


@torch.no_grad()
def walk(folder: Folder, place: Place, commands: np.ndarray) -> dict[str, Any]:
    """`commands` (T, 3), one for each control step; it ends with them, or with a fall."""
    torch.set_num_threads(1)
    told = Told(make_world(place), torch.from_numpy(commands).float())
    names = [source.name for source in folder.contract.sources]
    obs = next(kind for kind, sources in told.inputs.items() if set(sources) == set(names))
    env, policy = make_env(told, 1, seed=place.seed, threads=1, obs=obs), Policy(folder)
    rows, fell = [], False
    for command in commands:
        seen = env.observe().sources
        action = torch.from_numpy(policy.act({name: seen[name].numpy() for name in names}))
        step = env.step(action[None, None])
        x = env.physics()
        rows.append(_row(x.qpos[0, 0], x.qvel[0, 0], command))
        if fell := bool(step.terminated[0, 0]):
            break
    return measured(np.array(rows)) | {"fell": fell, "seconds": len(rows) * told.step_seconds}


def _row(qpos: Tensor, qvel: Tensor, command: np.ndarray) -> list[float]:
    """x, y, forward, left, turn, and the three that were asked for."""
    yaw = yaw_of(qpos[3:7])
    (x, y), (cos, sin) = qvel[:2], (yaw.cos(), yaw.sin())
    return [*map(float, (*qpos[:2], cos * x + sin * y, cos * y - sin * x, qvel[5])), *map(float, command)]


def measured(rows: np.ndarray) -> dict[str, float]:
    """Of rows like those, 50 a second: the path's length without its swaying, and how far off the commands it was."""
    points = np.concatenate((rows[::STRIDE, :2], rows[-1:, :2]))
    off = rows[:, 2:5] - rows[:, 5:8]
    return {
        "distance": float(np.linalg.norm(np.diff(points, axis=0), axis=1).sum()),
        "velocity_error": float(np.linalg.norm(off[:, :2], axis=1).mean()),
        "turn_error": float(np.abs(off[:, 2]).mean()),
    }
