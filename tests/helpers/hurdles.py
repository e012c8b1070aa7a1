"""For tests of the hurdle tasks: the ground as MuJoCo has it, cameras, and states made by hand."""

from __future__ import annotations

import functools

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.build import compile_scene
from sdpg.tasks.hurdles import EGO, HURDLE_COLOUR, HURDLES, HurdleCfg, HurdleTask
from sdpg.types import Physics


@functools.cache
def model_of(kind: type[HurdleTask]) -> mujoco.MjModel:
    """Compiled once: meshes take their time."""
    return compile_scene(kind())


def world(model: mujoco.MjModel, qpos: dict[int, float], qvel: dict[int, float] | None = None) -> mujoco.MjData:
    """The model's own pose but for coordinates given by index."""
    data = mujoco.MjData(model)
    for values, given in ((data.qpos, qpos), (data.qvel, qvel or {})):
        for index, value in given.items():
            values[index] = value
    mujoco.mj_forward(model, data)
    return data


def physics(data: mujoco.MjData) -> Physics:
    """Of one world."""
    qpos, qvel = (torch.tensor(values, dtype=torch.float32)[None, None] for values in (data.qpos, data.qvel))
    return Physics(qpos, qvel)


def terms(task: HurdleTask, data: mujoco.MjData, action: float = 0.0) -> dict[str, float]:
    found = task.reward(physics(data), {}, torch.full((1, 1, task.action_size), action))
    return {name: value.item() for name, value in found.items()}


def ended(task: HurdleTask, data: mujoco.MjData) -> bool:
    return bool(task.terminated(physics(data), {}).item())


def ground_below(data: mujoco.MjData, xy: Tensor) -> Tensor:
    """(P, 2) -> (P,): where rays from 5 m first meet the floor or a hurdle. The robot must be above them."""
    geom = np.zeros(1, np.int32)
    rays = [mujoco.mj_ray(data.model, data, [x, y, 5.0], [0.0, 0.0, -1.0], None, 1, -1, geom) for x, y in xy.tolist()]
    return 5.0 - torch.tensor(rays)


def looks(data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
    """Where the robot's camera is, and the direction in which it looks: (3,), (3,)."""
    camera = data.cam(EGO)
    return camera.xpos.copy(), -camera.xmat.reshape(3, 3)[:, 2]


def world_camera(kind: type[HurdleTask]) -> HurdleTask:
    return kind(HurdleCfg(camera="world"))


def red_cells(task: HurdleTask) -> np.ndarray:
    """(cells along y, cells along x) bool, from low y: what the field's texture paints red."""
    model = model_of(type(task))
    assert (
        model.mat_texid[model.geom(HURDLES).matid[0], mujoco.mjtTextureRole.mjTEXROLE_RGB] == model.texture(HURDLES).id
    )
    texture = model.texture(HURDLES)
    high, wide, start = int(texture.height[0]), int(texture.width[0]), int(texture.adr[0])
    pixels = model.tex_data[start : start + 3 * high * wide].reshape(high, wide, 3)
    return (pixels == HURDLE_COLOUR).all(-1)[::-1]
