"""contract.json: all that one who runs a policy has to know of it, in full precision.

What it sees, number by number and camera by camera; what its actions mean to which joints; how fast; of which model,
run and versions. A task that declares no layout of a vector has one unnamed term there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from sdpg.build import views_of
from sdpg.deploy.graph import ACTION, NEXT, Inputs
from sdpg.errors import SdpgError
from sdpg.render.views import frustum
from sdpg.tasks.base import Task
from sdpg.types import ActionLayout, Camera, ObservedTerm, VectorLayout

FORMAT, VERSION = "sdpg-contract", 1


def make_contract(task: Task, model: mujoco.MjModel, inputs: Inputs, begin: Mapping[str, Tensor]) -> dict[str, Any]:
    """Of the policy with these inputs, whose memory at the start of an episode is `begin`: name -> (1, ...)."""
    cameras = {name: task.cameras[name] for name in inputs.sources if name in task.cameras}
    sources = []
    for name, example in inputs.sources.items():
        facts: dict[str, Any] = {"name": name, "dtype": _dtype(example), "shape": list(example.shape[1:])}
        if name in cameras:
            facts["camera"] = _camera(model, cameras[name], cameras)
        else:
            facts["layout"] = _vector(name, task.layouts.get(name), example.shape[-1])
        sources.append(facts)
    carry = [
        {"name": name, "input": inputs.carry_input(name), "output": NEXT + name, "dtype": _dtype(value)}
        | {"shape": list(value.shape[1:]), "begin": value[0].tolist()}
        for name, value in begin.items()
    ]
    actuators = _actuators(model)
    latency = list(task.action_latency)
    return {
        "format": FORMAT,
        "version": VERSION,
        "sources": sources,
        "carry": carry,
        "action": {
            "output": ACTION,
            "dtype": "float32",
            "shape": [task.action_size],
            "range": [-1.0, 1.0],
            "meaning": task.action_meaning,
            "latency_steps": latency,
            "target": _target(task.action_layout, task.action_size, actuators),
        },
        "actuators": actuators,
        "joints": _joints(model, actuators, task.action_layout),
        "rates": {
            "control_hz": 1.0 / task.step_seconds,
            "control_seconds": task.step_seconds,
            "physics_hz": 1.0 / float(model.opt.timestep),
            "physics_seconds": float(model.opt.timestep),
        },
    }


def metadata(contract: Mapping[str, Any], run: str) -> dict[str, str]:
    """For the ONNX file: keys that runners in the manner of mjlab read, lists separated by commas; no number rounded.

    Joints are in the order of the actuators. What a task does not have is left out."""
    terms = [term for source in contract["sources"] for term in _terms(source)]
    told = {
        "run_path": run,
        "contract_version": str(contract["version"]),
        "observation_names": _list(term["name"] for term in terms),
        "command_names": _list(term["name"] for term in terms if term["command"]),
    }
    joints = contract["joints"]
    if joints:
        told["joint_names"] = _list(joint["name"] for joint in joints)
        told["default_joint_pos"] = _list(joint["default"] for joint in joints)
    servos = [actuator for actuator in contract["actuators"] if actuator["kind"] == "position"]
    if servos and len(servos) == len(joints) == len(contract["actuators"]):
        told["joint_stiffness"] = _list(servo["kp"] for servo in servos)
        told["joint_damping"] = _list(servo["kd"] for servo in servos)
    if contract["action"]["target"] is not None:
        told["action_scale"] = _list(contract["action"]["target"]["scale"])
    return {key: value for key, value in told.items() if value}


def _terms(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "layout" in source:
        return [{**term, "name": term["name"] or source["name"]} for term in source["layout"]["terms"]]
    return [{"name": source["name"], "command": False}]


def _list(values: Any) -> str:
    return ",".join(value if isinstance(value, str) else repr(value) for value in values)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# --- what is seen -----------------------------------------------------------------------------------------------------


def _vector(source: str, layout: VectorLayout | None, size: int) -> dict[str, Any]:
    layout = layout or VectorLayout((ObservedTerm("", size),))
    frame = sum(term.size for term in layout.terms)
    if frame * layout.history != size:
        raise SdpgError(
            f"the task's layout of '{source}' has {layout.history} x {frame} numbers, and observe() gives {size}; "
            "make them alike"
        )
    terms = []
    for term in layout.terms:
        scale, offset = _each(term.scale, term.size, term.name), _each(term.offset, term.size, term.name)
        terms.append(asdict(term) | {"order": list(term.order), "scale": scale, "offset": offset})
    clip = None if layout.clip is None else list(layout.clip)
    return {
        "terms": terms,
        "history": layout.history,
        "history_order": "oldest first",
        "begins": layout.begins,
        "clip": clip,
        "latency_steps": layout.latency,
    }


def _each(value: float | Sequence[float], size: int, name: str) -> list[float]:
    values = [float(value)] * size if isinstance(value, int | float) else [float(each) for each in value]
    if len(values) != size:
        raise SdpgError(f"the layout of '{name}' has {len(values)} numbers for {size}; give as many, or one")
    return values


def _camera(model: mujoco.MjModel, camera: Camera, cameras: Mapping[str, Camera]) -> dict[str, Any]:
    """Of one frame as it is taken, before the pipeline, and how frames become the source."""
    view = next(view for view in views_of(cameras) if view.camera == camera.name)
    left, right, bottom, top = (float(side[0]) for side in frustum(model, view))
    fx, fy = camera.width / (right - left), camera.height / (top - bottom)
    which = model.camera(camera.name).id
    return {
        "name": camera.name,
        "image": "depth" if camera.depth else "rgb",
        "width": camera.width,
        "height": camera.height,
        "intrinsics": {"fx": fx, "fy": fy, "cx": -left * fx, "cy": top * fy, "pixel_centres": 0.5},
        "link": model.body(int(model.cam_bodyid[which])).name,
        "mode": mujoco.mjtCamLight(int(model.cam_mode[which])).name.removeprefix("mjCAMLIGHT_").lower(),
        "position": model.cam_pos[which].tolist(),
        "quaternion_wxyz": model.cam_quat[which].tolist(),
        "axes": "x right, y up, looks along -z",
        "depth": {"unit": "m", "along": "optical axis", "far": camera.far} if camera.depth else None,
        "pipeline": _plain(asdict(camera.pipeline)),
        "sensor": None if camera.sensor is None else _plain(asdict(camera.sensor)),
        "stack": camera.stack,
        "stack_order": "oldest first",
        "stack_begins": "first",
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


# --- what is done -----------------------------------------------------------------------------------------------------


_ON_JOINTS = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))


def _actuators(model: mujoco.MjModel) -> list[dict[str, Any]]:
    """In the order of the controls."""
    found = []
    for i in range(model.nu):
        gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
        joint = None
        if int(model.actuator_trntype[i]) in _ON_JOINTS:
            joint = model.joint(int(model.actuator_trnid[i, 0])).name
        kind = _kind(model, i)
        facts: dict[str, Any] = {"name": model.actuator(i).name, "kind": kind, "joint": joint}
        if kind == "position":
            facts |= {"kp": float(gain[0]), "kd": -float(bias[2])}
        facts["gear"] = float(model.actuator_gear[i, 0])
        facts["control_range"] = _limits(model.actuator_ctrllimited[i], model.actuator_ctrlrange[i])
        facts["force_range"] = _limits(model.actuator_forcelimited[i], model.actuator_forcerange[i])
        found.append(facts)
    return found


def _kind(model: mujoco.MjModel, i: int) -> str:
    if int(model.actuator_gaintype[i]) != int(mujoco.mjtGain.mjGAIN_FIXED):
        return "general"
    gain, bias, affine = model.actuator_gainprm[i], model.actuator_biasprm[i], int(mujoco.mjtBias.mjBIAS_AFFINE)
    if int(model.actuator_biastype[i]) == int(mujoco.mjtBias.mjBIAS_NONE):
        return "motor"
    if int(model.actuator_biastype[i]) != affine or bias[0] != 0.0:
        return "general"
    if bias[1] == -gain[0] != 0.0:
        return "position"
    return "velocity" if bias[1] == 0.0 and bias[2] == -gain[0] != 0.0 else "general"


def _joints(
    model: mujoco.MjModel, actuators: Sequence[Mapping[str, Any]], layout: ActionLayout | None
) -> list[dict[str, Any]]:
    """That actuators drive, in their order."""
    key = model.key_qpos[0] if model.nkey else model.qpos0
    pose = dict(zip(layout.order, layout.offset, strict=True)) if layout is not None else {}
    found = []
    for actuator in actuators:
        if actuator["joint"] is None:
            continue
        joint = model.joint(actuator["joint"])
        where, dof = int(joint.qposadr[0]), int(joint.dofadr[0])
        kind = mujoco.mjtJoint(int(np.ravel(joint.type)[0]))
        found.append(
            {
                "name": joint.name,
                "actuator": actuator["name"],
                "unit": "m" if kind == mujoco.mjtJoint.mjJNT_SLIDE else "rad",
                "default": float(pose.get(actuator["name"], key[where])),
                "range": _limits(np.ravel(joint.limited)[0], joint.range),
                "damping": float(model.dof_damping[dof]),
                "armature": float(model.dof_armature[dof]),
                "friction": float(model.dof_frictionloss[dof]),
            }
        )
    return found


def _limits(limited: Any, between: np.ndarray) -> list[float] | None:
    return np.ravel(between).tolist() if limited else None


def _target(layout: ActionLayout | None, size: int, actuators: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How an action becomes the actuators' targets, if the task declares it."""
    if layout is None:
        return None
    known = [actuator["name"] for actuator in actuators]
    if unknown := [name for name in layout.order if name not in known]:
        raise SdpgError(f"the task's action_layout names '{unknown[0]}', which is no actuator of its scene")
    if not len(layout.order) == len(layout.offset) == size:
        raise SdpgError(f"the task's action_layout must have {size} names and offsets, as many as actions")
    return {
        "formula": "offset + scale * action",
        "unit": layout.unit,
        "order": list(layout.order),
        "scale": _each(layout.scale, size, "action"),
        "offset": list(layout.offset),
    }
