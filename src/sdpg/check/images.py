"""Do images show what rows have of their own? Every row is drawn once more, in a scene that has its values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import mujoco
import torch
from torch import Tensor

from sdpg.build import cameras_of, compile_scene, make_frame_stacks
from sdpg.check.situations import ROWS, EnvFactory
from sdpg.render.own import varied
from sdpg.render.stack import FrameStacks
from sdpg.tasks.base import Task
from sdpg.types import MOCAP, Camera

EDGES = 0.005  # of an image's pixels may differ between two ways to compute the same poses


def not_shown(task: Task, env_factory: EnvFactory) -> str | None:
    """A sentence, unless the images of every row are those of a scene with its values, so that rows look different
    where they differ in something that is to be seen, and alike where they don't."""
    model = compile_scene(task)
    fields = varied(model, task.params)
    for obs in task.inputs if fields else ():
        if not (cameras := cameras_of(task, obs)):
            continue
        env = env_factory(task, ROWS, 0, seed=0, obs=obs)
        own, qpos = env.looks(fields), env.physics().qpos[:, 0]
        cameras = {name: replace(camera, sensor=None) for name, camera in cameras.items()}  # which changes every image
        assert env.frame_stacks is not None
        shown = _seen(FrameStacks(env.frame_stacks.renderer, cameras), qpos, own)
        for row in range(ROWS):
            mine = {name: values[row : row + 1] for name, values in own.items()}
            scenes = [(model, {}), _scene_of_row(model, mine)]  # as it is, and with the row's values
            all_gather, wanted = (
                _frames(scene, cameras, qpos[row : row + 1], mocap) for scene, mocap in scenes
            )  # name -> (1, C, H, W) each
            for name in cameras:
                got = shown[name][row : row + 1]
                wrong, due = ((x != wanted[name]).float().mean().item() for x in (got, all_gather[name]))
                if wrong > EDGES or 2 * wrong > due:
                    return (
                        f"'{name}' does not show a row's own {' and '.join(fields)}: {100 * wrong:.2g} % of it are not "
                        "as in a scene with these values."
                    )
    return None


def _scene_of_row(model: mujoco.MjModel, own: Mapping[str, Tensor]) -> tuple[mujoco.MjModel, dict[str, Tensor]]:
    """A model with the values (1, ...) of one row; and where its mocap bodies are."""
    mine = copy.copy(model)
    for name, values in own.items():
        if name not in MOCAP:
            getattr(mine, name)[:] = values[0].numpy()
    mujoco.mj_setConst(mine, mujoco.MjData(mine))
    return mine, {name: own[name] for name in MOCAP if name in own}


def _frames(
    model: mujoco.MjModel, cameras: Mapping[str, Camera], qpos: Tensor, mocap: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return _seen(make_frame_stacks(model, cameras, 1, 1), qpos, mocap)


def _seen(frame_stacks: FrameStacks, qpos: Tensor, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    frame_stacks.look(qpos, torch.ones(len(qpos), dtype=torch.bool), own=own)
    return frame_stacks.frames()
