"""`sdpg tasks NAME`: what a task is, told by its declarations and by one step of one world of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import torch

from sdpg.build import cameras_of, compile_scene, one_world
from sdpg.declarations import check_sources
from sdpg.env import MAX_VALUE
from sdpg.nn.declared import state_layout
from sdpg.tasks.base import Task, TaskCfg
from sdpg.tasks.registry import about
from sdpg.types import Camera, Encoder, Pipeline, Sensor


def describe(task: Task) -> dict[str, Any]:
    """Facts for people and programs; a scene whose robot can't be had is an SdpgError."""
    model, kind = compile_scene(task), type(task)
    env = one_world(task, model, 0, 0, MAX_VALUE)
    observed = task.observe(env.physics(), env.memory)
    cameras: dict[str, Camera] = {}
    for obs in task.inputs:
        cameras |= cameras_of(task, obs)
        check_sources(task, obs, observed)
    used = dict.fromkeys(name for sources in task.inputs.values() for name in sources)
    step = env.step(torch.zeros(1, 1, task.action_size))
    return {
        "about": about(sys.modules[kind.__module__].__doc__, kind.__doc__),
        **_robot(task),
        "action": f"{task.action_size} numbers in [-1, 1]" + _after(": ", task.action_meaning),
        "control_step": f"{1e3 * task.step_seconds:g} ms, {task.substeps} physics steps of "
        f"{1e3 * model.opt.timestep:g} ms",
        "episode": f"{task.episode_steps} steps, {task.episode_steps * task.step_seconds:g} s",
        "ends": task.ends or "as terminated() says",
        "observations": {obs: " + ".join(sources) for obs, sources in task.inputs.items()},
        "sources": {
            name: _image(cameras[name], task.encoders.get(name))
            if name in cameras
            else _vector(observed[name].shape[-1], task.encoders.get(name))
            for name in used
        },
        "critic": {
            name: _vector(size, encoder, passed_through=True)
            for name, (size, encoder) in state_layout(task, task.state_size).items()
        },
        "reward_terms": ", ".join(step.terms),
        "success": ", ".join(env.measures()) or "the return alone",
        "randomised": _randomised(task),
        **({"options": _options(task.cfg)} if dataclasses.fields(task.cfg) else {}),
    }


def _robot(task: Task) -> dict[str, str]:
    if task.robot is None:
        return {"robot": "a scene of its own", "licence": task.licence}
    from sdpg.tasks.menagerie import licence

    return {"robot": f"{task.robot} of MuJoCo Menagerie", "licence": f"{licence(task.robot)} (the robot's model)"}


def _vector(size: int, encoder: Encoder | None, passed_through: bool = False) -> str:
    """`passed_through`: where the task says nothing; else as the algorithm's options say."""
    encoder = encoder or Encoder()
    widths = () if encoder.widths is None and passed_through else encoder.widths
    how = "encoded as the options say" if widths is None else f"MLP {_numbers(widths)}" if widths else "passed through"
    return f"{size} numbers, {'normalised' if encoder.normalized else 'not normalised'}, {how}"


def _image(camera: Camera, encoder: Encoder | None) -> str:
    height, width = camera.size
    depth = {"metres": "depth in metres", "centred": "depth from -0.5 to 0.5", "bytes": "depth as bytes"}
    parts = [
        f"camera '{camera.name}'",
        f"{width} x {height} {depth[camera.pipeline.depth] if camera.depth else 'colours'}",
        "one frame" if camera.stack == 1 else f"{camera.stack} frames",
        f"{encoder.features} features" if encoder is not None and encoder.features else "features as the options say",
    ]
    if (camera.height, camera.width) != camera.size:
        parts.append(f"rendered at {camera.width} x {camera.height}")
    parts += _differences("pipeline", camera.pipeline, Pipeline())
    parts += _differences("sensor", camera.sensor, Sensor()) if camera.sensor is not None else []
    return ", ".join(parts)


def _differences(what: str, given: Any, usual: Any) -> list[str]:
    """The fields that are not as usual."""
    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    changed = [f"{name} {_numbers(v)}" for name, v in fields.items() if v != getattr(usual, name)]
    return [f"{what}: {'; '.join(changed)}"] if changed else []


def _randomised(task: Task) -> dict[str, str] | str:
    """A Randomise's ranges, or what the task says instead."""
    given = task.randomised
    if given is None:
        return f"model fields {', '.join(task.params)}" if task.params else "starts alone"
    if dataclasses.is_dataclass(given):
        given = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
    assert isinstance(given, Mapping)
    return {name: _numbers(v) for name, v in given.items() if v is not None and v != () and v != ""}


def _options(cfg: TaskCfg) -> dict[str, str]:
    return {f"--task.{f.name.replace('_', '-')}": str(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}


def _numbers(value: Any) -> str:
    if not isinstance(value, tuple | list):
        return str(value)
    if len(value) > 6:
        return f"{len(value)} numbers up to {max(value):g}"
    return "-".join(map(str, value)) if all(isinstance(v, int) for v in value) else " to ".join(map(str, value))


def _after(between: str, text: str) -> str:
    return between + text if text else ""
