"""The one place that puts a task, an engine and an environment together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.algos.api import ImageShape, Shapes
from sdpg.declarations import check_inputs, check_numbers, check_params, check_sources
from sdpg.engines import make_sim
from sdpg.env import MAX_VALUE, BranchedEnv
from sdpg.errors import SdpgError
from sdpg.machine import default_threads
from sdpg.nn.declared import state_layout
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.render.stack import FrameStacks
from sdpg.tasks.base import Task, make_task
from sdpg.types import Camera, Encoder


def compile_scene(task: Task) -> mujoco.MjModel:
    check_numbers(task)
    spec = task.scene()
    if not isinstance(spec, mujoco.MjSpec):
        raise SdpgError(f"scene() returned {type(spec).__name__}; return a mujoco.MjSpec")
    if task.timestep is not None:
        spec.option.timestep = task.timestep
    try:
        model = spec.compile()
    except Exception as error:  # the compiler's own exception types vary
        problem = " ".join(str(error).split())
        raise SdpgError(f"the scene does not compile: {problem}{_files(task, spec, problem)}") from error
    check_params(task, model)
    return model


def _files(task: Task, spec: mujoco.MjSpec, problem: str) -> str:
    """Where to look: the compiler names a broken mesh, not its file, and no file's folder."""
    named = re.search("Element name '([^']+)'", problem)
    mesh = spec.mesh(named[1]) if named else None
    told = f"; this is {mesh.file}" if mesh is not None and mesh.file else ""
    if task.robot is not None:
        from sdpg.tasks.menagerie import folder

        told += f"; the robot's files are in {folder(task.robot)}"
    return told


def model_bytes(model: mujoco.MjModel) -> bytes:
    """The compiled model, every bit of it, in MuJoCo's binary format."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def make_env(
    task: Task | str,
    num_nominal: int,
    num_auxiliary: int = 0,
    seed: int = 0,
    threads: int = 0,
    obs: str = "state",
    max_value: float = MAX_VALUE,
    first_row: int = 0,
    sim: str = "cpu",
    device: str = "cpu",
    deterministic: bool = False,
) -> BranchedEnv:
    """N = num_nominal rows of K = 1 + num_auxiliary branches, counted from `first_row`; threads = 0 takes every core.
    `sim` and `device` as `choose_engine` tells them.

    Cameras are there if the observation kind `obs` needs them; only the N nominal worlds are rendered.
    """
    if num_nominal < 1:
        raise SdpgError(f"num-nominal is {num_nominal}; give at least 1")
    if num_auxiliary < 0:
        raise SdpgError(f"num-auxiliary is {num_auxiliary}; give at least 0 (1 to train with sdpg)")
    task = make_task(task) if isinstance(task, str) else task
    worlds = num_nominal * (1 + num_auxiliary)
    cameras = cameras_of(task, obs)
    model, threads = compile_scene(task), threads or default_threads()
    simulator = make_sim(model, worlds, threads, task.reads, sim, device, deterministic)
    frame_stacks = (
        make_frame_stacks(model, cameras, num_nominal, threads, simulator.device, task.params, task.step_seconds)
        if cameras
        else None
    )
    env = BranchedEnv(task, simulator, num_nominal, seed, first_row, frame_stacks, max_value)
    check_sources(task, obs, task.observe(env.physics(), env.memory))
    return env


def one_world(
    task: Task, model: mujoco.MjModel, seed: int, row: int, max_value: float, sim: str = "cpu"
) -> BranchedEnv:
    """The nominal world of one row, on a model that need not be the task's scene of today."""
    simulator = make_sim(model, 1, 1, task.reads, sim)
    return BranchedEnv(task, simulator, 1, seed, first_row=row, max_value=max_value)


def cameras_of(task: Task, obs: str) -> dict[str, Camera]:
    """Those that the observation kind `obs` needs, by source."""
    check_inputs(task, obs)
    return {name: task.cameras[name] for name in task.inputs[obs] if name in task.cameras}


def image_shape(camera: Camera, encoder: Encoder | None = None) -> ImageShape:
    """Of a camera as a source, its frames stacked."""
    features = encoder.features if encoder else None
    return ImageShape(camera.stack * camera.channels, *camera.size, camera.floats, features, camera.channels)


def observed_once(task: Task, model: mujoco.MjModel) -> dict[str, Tensor]:
    """What observe() gives of a first world: source -> (1, 1, ...)."""
    env = one_world(task, model, 0, 0, MAX_VALUE)
    return task.observe(env.physics(), env.memory)


def shapes_of(
    task: Task,
    obs: str,
    num_nominal: int,
    branches: int,
    model: mujoco.MjModel | None = None,
    cameras: Mapping[str, Camera] | None = None,
) -> Shapes:
    """The sizes of a run with observations of the kind `obs`, whose cameras may be others than the task's."""
    cameras = cameras_of(task, obs) if cameras is None else cameras
    names, sizes = [name for name in task.inputs[obs] if name not in cameras], {"state": task.state_size}
    if not sizes.keys() >= set(names):
        observed = observed_once(task, compile_scene(task) if model is None else model)
        check_sources(task, obs, observed)
        sizes = {name: observed[name].shape[-1] for name in names}
    parts = state_layout(task, task.state_size).values() if task.state_parts or task.state_encoders else ()
    return Shapes(
        num_nominal,
        branches,
        task.state_size,
        task.action_size,
        images=tuple(image_shape(camera, task.encoders.get(name)) for name, camera in cameras.items()),
        vectors=tuple(sizes[name] for name in names),
        vector_widths=tuple(task.encoders.get(name, Encoder()).widths for name in names),
        state_mlps=tuple((size, *(encoder.widths or ())) for size, encoder in parts),
    )


def views_of(cameras: Mapping[str, Camera]) -> list[View]:
    """What a renderer is asked for: a view of each camera, which may be two sources, its colours and its depth."""
    views: dict[str, View] = {}
    for camera in cameras.values():
        view = View(camera.name, camera.width, camera.height, not camera.depth, camera.depth, camera.groups)
        other = views.setdefault(camera.name, view)
        both = replace(view, rgb=view.rgb or other.rgb, depth=view.depth or other.depth)
        if both != replace(other, rgb=both.rgb, depth=both.depth):
            raise SdpgError(f"the sources of camera '{camera.name}' differ in size or geom groups; make them alike")
        views[camera.name] = both
    return list(views.values())


def make_frame_stacks(
    model: mujoco.MjModel,
    cameras: Mapping[str, Camera],
    num: int,
    threads: int,
    device: torch.device | str = "cpu",
    params: Sequence[str] = (),
    step_seconds: float = 0.0,
) -> FrameStacks:
    """A renderer for the cameras, chosen by the scene and the device, of rows that differ in `params`; and its frame
    stacks. `step_seconds` of a control step, for cameras whose images come late or seldom."""
    renderer = make_renderer(model, num, views_of(cameras), threads, device=device, params=params)
    return FrameStacks(renderer, cameras, step_seconds)
