"""For tests of robot arms: models that may be missing, states made by hand, joint positions for a pose."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import mujoco
import numpy as np
import pytest
import torch

from sdpg.build import compile_scene
from sdpg.errors import SdpgError
from sdpg.names import Names
from sdpg.tasks.base import Task, make_task
from sdpg.tasks.menagerie import folder
from sdpg.types import Physics


def need_model(robot: str) -> None:
    """Skips what follows where a model of MuJoCo Menagerie can't be had; in CI that is a failure."""
    _need(lambda: folder(robot))


def need_scene(task: str) -> None:
    """The same, for a task by its name."""
    _need(lambda: make_task(task).scene())


def _need(ask: Callable[[], object]) -> None:
    try:
        ask()
    except SdpgError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error), allow_module_level=True)


@functools.cache
def model_of(kind: type[Task]) -> mujoco.MjModel:
    """Compiled once: meshes take their time."""
    return compile_scene(kind())


def physics_of(task: Task, qpos: torch.Tensor, qvel: torch.Tensor | None = None) -> Physics:
    """Of one world in a state (nq,), (nv,) made by hand: at rest, unless velocities are given."""
    model = model_of(type(task))
    data = mujoco.MjData(model)
    data.qpos[:] = qpos.numpy()
    if qvel is not None:
        data.qvel[:] = qvel.numpy()
    mujoco.mj_forward(model, data)

    def world(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32))[None, None]  # (1, 1, ...)

    derived = {name: world(getattr(data, name)) for name in task.reads}
    return Physics(world(data.qpos), world(data.qvel), derived, Names(model))


def terms_of(task: Task, x: Physics, memory: dict[str, torch.Tensor], action: float = 0.0) -> dict[str, float]:
    terms = task.reward(x, memory, torch.full((1, 1, task.action_size), action))
    return {name: value.item() for name, value in terms.items()}


def joints_for(
    model: mujoco.MjModel,
    qpos: np.ndarray,
    body: str,
    offset: Sequence[float],
    position: np.ndarray,
    axes: np.ndarray,
    joints: Sequence[str],
    steps: int = 100,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the joints, beginning with those of `qpos` (nq,), in which the point `offset` of a body is at
    `position` and its axes are the columns of `axes`, by damped least squares; and the targets of their actuators,
    which have to lead to carry the arm's weight."""
    data, where = mujoco.MjData(model), model.body(body).id
    data.qpos[:] = qpos
    dofs = [model.joint(name).dofadr[0] for name in joints]
    places = [model.joint(name).qposadr[0] for name in joints]
    low, high = np.array([model.joint(name).range for name in joints]).T
    error = np.full(6, np.inf)
    for _ in range(steps):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        now = data.xmat[where].reshape(3, 3)
        point = data.xpos[where] + now @ offset
        error = np.r_[position - point, 0.5 * np.cross(now, axes, axis=0).sum(1)]
        jacobian = np.zeros((6, model.nv))
        mujoco.mj_jac(model, data, jacobian[:3], jacobian[3:], point, where)
        j = jacobian[:, dofs]
        move = j.T @ np.linalg.solve(j @ j.T + 1e-4 * np.eye(6), error)
        data.qpos[places] = np.clip(data.qpos[places] + np.clip(move, -0.2, 0.2), low, high)
    assert np.abs(error).max() < 2e-3, f"{body} can't get there: {error}"
    mujoco.mj_forward(model, data)
    actuators = [next(i for i in range(model.nu) if _drives(model, i, name)) for name in joints]
    return data.qpos[places].copy(), data.qpos[places] + data.qfrc_bias[dofs] / model.actuator_gainprm[actuators, 0]


def _drives(model: mujoco.MjModel, actuator: int, joint: str) -> bool:
    kind, target = model.actuator_trntype[actuator], model.actuator_trnid[actuator, 0]
    return kind == mujoco.mjtTrn.mjTRN_JOINT and target == model.joint(joint).id
