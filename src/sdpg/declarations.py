"""What a task declares, looked at where an environment is built: `sdpg check` and `sdpg train` say the same of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.tasks.base import Task
from sdpg.types import Camera, Encoder, Sensor


def check_numbers(task: Task) -> None:
    for name in ("action_size", "state_size", "substeps", "episode_steps"):
        value = getattr(task, name, None)
        if not isinstance(value, int) or value < 1:
            raise SdpgError(f"{name} is {value}; it must be a positive whole number")
    step = task.timestep
    if step is not None and not (isinstance(step, int | float) and 0.0 < step < math.inf):
        raise SdpgError(f"timestep is {step}; give positive seconds, or None for the scene's own")
    for name in ("reads", "params"):
        _check_names(name, getattr(task, name))


def check_params(task: Task, model: mujoco.MjModel) -> None:
    for name in task.params:
        if not isinstance(getattr(model, name, None), np.ndarray):
            raise SdpgError(f"params names '{name}', which is not a field of MjModel")


def check_inputs(task: Task, obs: str) -> None:
    """The sources of an observation kind, as far as they can be known before there is a world; and their cameras."""
    if obs not in task.inputs:
        raise SdpgError(f"{type(task).__name__} has no observations '{obs}'; it has {', '.join(task.inputs)}")
    sources = task.inputs[obs]
    _check_names(f"inputs['{obs}']", sources)
    if not sources:
        raise SdpgError(f"inputs['{obs}'] is empty; name at least one source")
    for source in sources:
        if source in task.cameras:
            check_camera(source, task.cameras[source])
    _check_encoders(task)


def _check_encoders(task: Task) -> None:
    """How sources and parts of the state are taken in."""
    sources = dict.fromkeys(source for kind in task.inputs.values() for source in kind)
    for name, encoder in task.encoders.items():
        what = f"encoders['{name}']"
        if name not in sources:
            raise SdpgError(f"{what} is of no source that inputs name; they name {', '.join(sources)}")
        _check_encoder(what, encoder, image=name in task.cameras)
    for name, size in task.state_parts.items():
        if not isinstance(size, int) or size < 1:
            raise SdpgError(f"state_parts['{name}'] is {size}; it must be a positive whole number")
    total = sum(task.state_parts.values())
    if task.state_parts and total != task.state_size:
        raise SdpgError(f"state_parts add up to {total}, and state_size is {task.state_size}; make them equal")
    parts = task.state_parts or {"state": task.state_size}
    for name, encoder in task.state_encoders.items():
        if name not in parts:
            raise SdpgError(f"state_encoders['{name}'] is of no part of the state; its parts are {', '.join(parts)}")
        _check_encoder(f"state_encoders['{name}']", encoder, image=False)


def _check_encoder(what: str, encoder: Encoder, image: bool) -> None:
    if not isinstance(encoder, Encoder):
        raise SdpgError(f"{what} is {type(encoder).__name__}; give an Encoder")
    if image and encoder.widths is not None:
        raise SdpgError(f"{what} has widths, and is of a camera; give features")
    if not image and encoder.features is not None:
        raise SdpgError(f"{what} has features, and is of a vector; give widths, whose last one they are")
    for number in (*(encoder.widths or ()), 1 if encoder.features is None else encoder.features):
        if not isinstance(number, int) or number < 1:
            raise SdpgError(f"{what} has a width or features of {number}; they must be positive whole numbers")


def check_camera(source: str, camera: Camera) -> None:
    if not isinstance(camera, Camera):
        raise SdpgError(f"cameras['{source}'] is {type(camera).__name__}; give a Camera")
    for name in ("width", "height", "stack"):
        value = getattr(camera, name)
        if not isinstance(value, int) or value < 1:
            raise SdpgError(f"cameras['{source}']: {name} is {value}; it must be a positive whole number")
    if not 0.0 < camera.far < math.inf:
        raise SdpgError(f"cameras['{source}']: far is {camera.far}; give positive metres")
    for rule, holds in _camera_rules(camera).items():
        if not holds:
            raise SdpgError(f"cameras['{source}']: {rule}")


def _camera_rules(camera: Camera) -> dict[str, bool]:
    """Of the pipeline and the sensor model: a sentence -> whether it holds."""
    pipeline, sensor = camera.pipeline, camera.sensor or Sensor()
    kept = replace(pipeline, width=None, height=None).size(camera.height, camera.width)
    limit, sides = pipeline.limit, [side for side in (pipeline.width, pipeline.height) if side is not None]
    ranges = {"latency": sensor.latency, "brightness": sensor.brightness}
    shares = {name: getattr(sensor, name) for name in ("edge", "holes", "colour", "noise", "jump")}
    counts = {"shift": (sensor.shift, 0), "hole_size": (sensor.hole_size, 1)}
    return {
        f"crop {pipeline.crop} leaves nothing of {camera.width} x {camera.height} pixels": min(kept) >= 1
        and min(pipeline.crop) >= 0,
        f"the pipeline's width and height must be positive, not {sides}": all(side >= 1 for side in sides),
        f"limit must be a nearer and a farther distance, not {limit}": limit is None or 0.0 <= limit[0] < limit[1],
        "limit is of depth; leave it out for colours": camera.depth or limit is None,
        f"depth told as '{pipeline.depth}' needs a depth camera and a limit": pipeline.depth == "metres"
        or (camera.depth and limit is not None),
        "depth that is resized needs a limit: infinity has no mean": not camera.depth
        or limit is not None
        or kept == camera.size,
        **{f"{name} must be from 0 up, not {v}": 0.0 <= v[0] <= v[1] < math.inf for name, v in ranges.items()},
        **{f"{name} must be from 0 to 1, not {v}": 0.0 <= v <= 1.0 for name, v in shares.items()},
        **{f"{name} must be at least {least}, not {v}": v >= least for name, (v, least) in counts.items()},
        f"rate must be positive, not {sensor.rate}": sensor.rate is None or 0.0 < sensor.rate < math.inf,
    }


def check_sources(task: Task, obs: str, observed: Mapping[str, Tensor]) -> None:
    """What a policy is to read must be a camera, or a vector in `observed`, what observe() returned."""
    if not isinstance(observed, Mapping) or "state" not in observed:
        raise SdpgError("observe() must return a dict with 'state': the critic learns from it")
    for source in task.inputs[obs]:
        if source in task.cameras:
            if source in observed:
                raise SdpgError(f"'{source}' is a camera and a source of observe(); rename one")
            continue
        if source not in observed:
            known = ", ".join((*observed, *task.cameras))
            raise SdpgError(
                f"inputs['{obs}'] names '{source}', which is neither a camera nor in observe(); known: {known}"
            )
        shape = tuple(observed[source].shape)
        if len(shape) != 3 or observed[source].dtype != torch.float32:
            raise SdpgError(
                f"inputs['{obs}'] names '{source}', which observe() gave as {observed[source].dtype} {shape}; "
                "a policy reads float32 vectors (N, K, size)"
            )


def _check_names(what: str, names: object) -> None:
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise SdpgError(f"{what} is {names!r}; give a tuple of names, such as ('one',)")
