"""What moves in pictures of robots, by the rasteriser and by MuJoCo's own renderer, where there is a GL library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from helpers.robot_scenes import SCENES, robot_scene

from sdpg.render.api import View
from sdpg.render.choose import make_renderer

NUM = 6
THINGS = 2  # the geom group of what moves

# Which geom is seen where: (states, H, W), -1 for none. In a process of its own: GL libraries may end it.
CHILD = """
import sys
import mujoco, numpy as np
folder, camera, width, height = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = mujoco.MjModel.from_binary_path(folder + "/model.mjb")
data, found = mujoco.MjData(model), []
renderer = mujoco.Renderer(model, height, width)
renderer.enable_segmentation_rendering()
options = mujoco.MjvOption()
options.geomgroup[:] = np.load(folder + "/groups.npy")
options.sitegroup[:] = 0
for qpos in np.load(folder + "/qpos.npy"):
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    renderer.update_scene(data, camera, options)
    seen = renderer.render()  # (H, W, 2): object, its type
    found.append(np.where(seen[..., 1] == mujoco.mjtObj.mjOBJ_GEOM, seen[..., 0], -1))
np.save(folder + "/seen.npy", np.stack(found))
"""


def _by_opengl(folder: Path, model: mujoco.MjModel, view: View, qpos: torch.Tensor) -> np.ndarray:
    mujoco.mj_saveModel(model, str(folder / "model.mjb"))
    np.save(folder / "qpos.npy", qpos.double().numpy())
    np.save(folder / "groups.npy", np.isin(np.arange(6), view.groups).astype(np.uint8))
    command = [sys.executable, "-c", CHILD, str(folder), view.camera, str(view.width), str(view.height)]
    for backend in [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else ["egl", "osmesa"]:
        done = subprocess.run(command, env=os.environ | {"MUJOCO_GL": backend}, capture_output=True, check=False)
        if done.returncode == 0:
            return np.load(folder / "seen.npy")
    pytest.skip("no usable GL library")


def _by_raster(model: mujoco.MjModel, view: View, qpos: torch.Tensor, moving: np.ndarray) -> torch.Tensor:
    """(states, H, W) bool: where the nearest thing is one that moves."""
    parted = model.__copy__()
    parted.geom_group[:] = np.where(np.isin(model.geom_group, view.groups), np.where(moving, THINGS, 0), 5)

    def depth(groups: tuple[int, ...]) -> torch.Tensor:
        one = View(view.camera, view.width, view.height, False, True, groups)
        found = make_renderer(parted, len(qpos), [one], 1, "raster").render(qpos)[view.camera].depth
        assert found is not None
        return found

    front = depth((THINGS,))
    return torch.isfinite(front) & (front <= depth((0, THINGS)) * (1 + 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["franka-cube", "aloha", "allegro-cube", "shadow-cube"])  # whose robots are in view
def test_what_moves_is_where_mujocos_renderer_has_it(name: str, tmp_path: Path) -> None:
    assert name in SCENES
    robot = robot_scene(name)
    qpos = robot.states(NUM, 3)
    moving = robot.model.body_weldid[robot.model.geom_bodyid] != 0
    for view in robot.views:
        seen = _by_opengl(tmp_path, robot.model, view, qpos)
        theirs = torch.from_numpy((seen >= 0) & moving[seen.clip(0)])
        mine = _by_raster(robot.model, view, qpos, moving)
        assert theirs.any()
        assert (mine & theirs).sum() / (mine | theirs).sum() >= 0.96
