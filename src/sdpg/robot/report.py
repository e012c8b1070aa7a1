"""What became of a stand-in: how far it walked, whether it fell, what the wire did."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdpg.robot.inbox import DRIVEN, MODES
from sdpg.robot.loop import EVERY, Log, Pace
from sdpg.robot.world import TIMESTEP, World
from sdpg.tasks import go2
from sdpg.tasks.terms import yaw_of
from sdpg.types import Physics

COLUMNS = ("time", "x", "y", "z", "qw", "qx", "qy", "qz", "forward", "left", "up", "turn", "mode")
STOOD = 25  # driven rows on its legs after which it can fall
STRIDE = 25  # rows between the points that a path is measured along: swaying is no walking


def walk(world: World, log: Log, pace: Pace) -> dict[str, Any]:
    """Facts, and the trajectory of the base; velocities are in the heading's frame, as commands are."""
    rows = log.rows()
    places = torch.from_numpy(rows["qpos"][:, :2].copy())
    points = torch.cat((places[::STRIDE], places[-1:])).double()
    return {
        "seconds": pace.steps * TIMESTEP,
        "real_time_factor": pace.steps * TIMESTEP / pace.seconds if pace.seconds > 0.0 else None,
        "late_steps_share": pace.late / max(pace.steps, 1),
        "seconds_given_up": pace.given_up,
        "distance": float((points[1:] - points[:-1]).norm(dim=-1).sum()),
        "displacement": float((points[-1] - points[0]).norm()),
        "falls": falls(world, rows),
        "mode_seconds": {name: int((rows["mode"] == i).sum()) * EVERY * TIMESTEP for i, name in enumerate(MODES)},
    }


def falls(world: World, rows: np.ndarray) -> list[dict[str, Any]]:
    """By the task's own rule, of a robot that was made to stand for half a second before. `mode` is the motors' when it
    happened: one that is told to lie down is damped, and has not fallen."""
    (qpos, qvel), mode, when = _states(rows), rows["mode"].tolist(), rows["time"].tolist()
    physics = Physics(qpos[:, None], qvel[:, None])
    down = world.task.terminated(physics, {})[:, 0]
    touches = (world.task.ground.distance(go2.in_world(qpos, go2.trunk(qpos))) < go2.TRUNK_RADIUS).any(-1)
    left = world.task.ground.left(qpos[:, :2])
    found, stood = [], 0
    for i, is_down in enumerate(down.tolist()):
        if is_down and stood >= STOOD:
            why = "left the map" if left[i] else "trunk" if touches[i] else "tilt"
            found.append({"time": when[i], "why": why, "mode": MODES[mode[i]]})
        stood = 0 if is_down else stood + (mode[i] == DRIVEN)
    return found


def fell(facts: dict[str, Any]) -> int:
    """How often while somebody drove it."""
    return sum(each["mode"] == MODES[DRIVEN] for each in facts["falls"])


def trajectory(log: Log) -> dict[str, Any]:
    logged = log.rows()
    qpos, qvel = _states(logged)
    yaw = yaw_of(qpos[:, 3:7])
    cos, sin, (x, y, up) = yaw.cos(), yaw.sin(), qvel[:, :3].unbind(-1)
    moves = torch.stack((cos * x + sin * y, cos * y - sin * x, up, qvel[:, 5]), dim=-1)
    rows = torch.cat((qpos[:, :7], moves), dim=-1).tolist()
    return {
        "columns": list(COLUMNS),
        "units": "s of CLOCK_MONOTONIC, m, quaternion, m/s in the heading's frame, rad/s, mode",
        "modes": list(MODES),
        "rows": [
            [when, *(round(value, 6) for value in row), mode]
            for when, row, mode in zip(logged["time"].tolist(), rows, logged["mode"].tolist(), strict=True)
        ],
    }


def _states(rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """(T, 19), (T, 18)"""
    return torch.from_numpy(rows["qpos"].copy()), torch.from_numpy(rows["qvel"].copy())
