"""The folder of an export, checked: contract.json, the manifest's hashes, and the graph against both.

Whatever does not fit is refused with one line that names the fix, before anything moves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdpg_runtime.errors import Refused
from sdpg_runtime.pipeline import Pipeline
from sdpg_runtime.robot import GO2, Robot

Array = np.ndarray

CONTRACT, POLICY, MANIFEST = "contract.json", "policy.onnx", "manifest.json"
FORMAT, VERSION = "sdpg-contract", 1
EXPORT_FORMAT, EXPORT_VERSION = "sdpg-export", 1

ON_JOINTS = ("joint_pos", "joint_vel", "last_action")
SIZES = {"base_ang_vel": 3, "projected_gravity": 3, "command": 3}
"""Terms that can be made of what a robot measures; those of joints are as long as their order."""


@dataclass(frozen=True)
class Term:
    """Numbers of a frame: scale * (measured - offset)."""

    name: str
    scale: Array  # (size,) float32
    offset: Array
    order: tuple[str, ...]  # of joints; () for others


@dataclass(frozen=True)
class Vector:
    """A source made of terms: `history` frames, the oldest first."""

    name: str
    terms: tuple[Term, ...]
    history: int
    begins: str  # what a history is filled with: the "first" frame, or "zeros"
    clip: tuple[float, float] | None

    @property
    def size(self) -> int:
        return self.history * sum(len(term.scale) for term in self.terms)


@dataclass(frozen=True)
class Camera:
    """A source made of images: `stack` frames, the oldest first."""

    name: str
    camera: str  # its name on the robot
    depth: bool
    width: int  # of an image before the pipeline
    height: int
    pipeline: Pipeline
    stack: int

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (1 if self.depth else 3, self.height, self.width)

    @property
    def image_dtype(self) -> str:
        return "float32" if self.depth else "uint8"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stack * self.image_shape[0], *self.pipeline.size(self.height, self.width))


@dataclass(frozen=True)
class Memory:
    """Of a recurrent policy."""

    input: str
    output: str
    begin: Array  # (1, ...)


@dataclass(frozen=True)
class Joints:
    """In the order of actions, (A,) float32 each; the policy's targets are offset + scale * action."""

    names: tuple[str, ...]
    default: Array
    low: Array
    high: Array
    stiffness: Array
    damping: Array
    offset: Array
    scale: Array


@dataclass(frozen=True)
class Contract:
    sources: tuple[Vector | Camera, ...]
    ports: Mapping[str, tuple[str, tuple[int, ...]]]  # inputs of the graph: type and shape without the batch
    carry: tuple[Memory, ...]
    output: str
    joints: Joints
    seconds: float  # of a control step
    told: Mapping[str, Any]  # as it was read

    @property
    def cameras(self) -> tuple[Camera, ...]:
        return tuple(source for source in self.sources if isinstance(source, Camera))


@dataclass(frozen=True)
class Folder:
    """An export that is whole."""

    contract: Contract
    policy: bytes
    sha256: Mapping[str, str]  # of both files


def load(folder: Path | str, robot: Robot = GO2) -> Folder:
    files = {name: _read(Path(folder), name) for name in (MANIFEST, CONTRACT, POLICY)}
    hashes = _verified(files)
    return Folder(parse(files[CONTRACT], robot), files[POLICY], hashes)


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise Refused(f"can't read '{folder / name}': {why}; give a folder that `sdpg export` wrote") from error


def _verified(files: Mapping[str, bytes]) -> dict[str, str]:
    manifest = _object(files[MANIFEST])
    if manifest is None or manifest.get("format") != EXPORT_FORMAT:
        raise Refused(f"{MANIFEST} is not of an export by sdpg; export the run again")
    if manifest.get("version") != EXPORT_VERSION:
        raise Refused(_unknown(MANIFEST, manifest.get("version"), EXPORT_VERSION))
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in (CONTRACT, POLICY)}
    entries = manifest.get("files")
    for name, digest in hashes.items():
        entry = entries.get(name) if isinstance(entries, dict) else None
        if not isinstance(entry, dict) or entry.get("sha256") != digest:
            raise Refused(f"{name} has another SHA-256 than {MANIFEST} says; copy the folder again, or export again")
    return hashes


def _unknown(name: str, version: Any, known: int) -> str:
    return f"{name} has version {version!r}, this runtime reads {known}; install the sdpg-runtime that fits the export"


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def parse(data: bytes, robot: Robot = GO2) -> Contract:
    told = _object(data)
    if told is None or told.get("format") != FORMAT:
        raise Refused(f"{CONTRACT} is not a contract of sdpg; export the run again")
    if told.get("version") != VERSION:
        raise Refused(_unknown(CONTRACT, told.get("version"), VERSION))
    try:
        return _contract(told, robot)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Refused(f"{CONTRACT} is not complete ({said}); export the run again") from error


def _contract(told: Mapping[str, Any], robot: Robot) -> Contract:
    sources = tuple(_source(source, robot) for source in told["sources"])
    ports = {source["name"]: (str(source["dtype"]), tuple(source["shape"])) for source in told["sources"]}
    carry = []
    for memory in told["carry"]:
        shape = tuple(memory["shape"])
        begin = np.asarray(memory["begin"], memory["dtype"]).reshape((1, *shape))
        carry.append(Memory(memory["input"], memory["output"], begin))
        ports[memory["input"]] = (memory["dtype"], shape)
    for source in sources:
        shape = source.shape if isinstance(source, Camera) else (source.size,)
        if shape != ports[source.name][1]:
            raise Refused(
                f"{CONTRACT}: what it says of '{source.name}' makes {shape}, not {ports[source.name][1]}; export again"
            )
    seconds = float(told["rates"]["control_seconds"])
    if not 0.001 <= seconds <= 1.0:
        raise Refused(f"{CONTRACT}: a control step of {seconds} s is none of a robot's; export again")
    return Contract(sources, ports, tuple(carry), told["action"]["output"], _joints(told, robot), seconds, told)


# --- what is seen -----------------------------------------------------------------------------------------------------


def _source(source: Mapping[str, Any], robot: Robot) -> Vector | Camera:
    name = source["name"]
    if "camera" in source:
        return _camera(name, source["camera"])
    if "layout" not in source:
        raise Refused(f"{CONTRACT}: '{name}' has neither a layout nor a camera; export the run again")
    layout = source["layout"]
    terms = tuple(_term(name, term, robot) for term in layout["terms"])
    if layout["begins"] not in ("first", "zeros"):
        raise Refused(f"{CONTRACT}: '{name}' begins with {layout['begins']!r}, which is neither 'first' nor 'zeros'")
    history = int(layout["history"])
    if history < 1:
        raise Refused(f"{CONTRACT}: '{name}' has a history of {history} frames; export the run again")
    clip = None if layout["clip"] is None else (float(layout["clip"][0]), float(layout["clip"][1]))
    return Vector(name, terms, history, layout["begins"], clip)


def _term(source: str, term: Mapping[str, Any], robot: Robot) -> Term:
    name, size, order = term["name"], int(term["size"]), tuple(term["order"])
    if not name:
        raise Refused(f"'{source}' is a vector without names; declare the task's `layouts` and export again")
    if name not in SIZES and name not in ON_JOINTS:
        raise Refused(
            f"the policy sees '{name}', which the robot can't measure; train and export one that sees only "
            f"{', '.join((*SIZES, *ON_JOINTS))} and cameras"
        )
    if name in ON_JOINTS:
        _places(order, robot, f"'{name}'")
    if size != (len(order) if name in ON_JOINTS else SIZES[name]):
        raise Refused(f"{CONTRACT}: '{name}' has {size} numbers, which do not fit its order; export the run again")
    return Term(name, _floats(term["scale"], size), _floats(term["offset"], size), order if name in ON_JOINTS else ())


def _camera(name: str, told: Mapping[str, Any]) -> Camera:
    pipeline = dict(told["pipeline"])
    for key in ("crop", "limit"):
        pipeline[key] = None if pipeline[key] is None else tuple(pipeline[key])
    kind = told["image"]
    if kind not in ("depth", "rgb"):
        raise Refused(f"{CONTRACT}: camera '{told['name']}' has images of kind {kind!r}; this runtime knows depth, rgb")
    width, height, stack = int(told["width"]), int(told["height"]), int(told["stack"])
    return Camera(name, told["name"], kind == "depth", width, height, Pipeline(**pipeline), stack)


# --- what is done -----------------------------------------------------------------------------------------------------


def _joints(told: Mapping[str, Any], robot: Robot) -> Joints:
    target = told["action"]["target"]
    if target is None:
        raise Refused(f"{CONTRACT} does not say what actions mean; declare the task's `action_layout` and export again")
    order, size = tuple(target["order"]), int(told["action"]["shape"][0])
    if len(order) != size or target["unit"] != "rad":
        raise Refused(f"{CONTRACT}: actions are not one target in radians for each joint; export the run again")
    _places(order, robot, "the actions")
    if missing := [name for name in robot.joints if name not in order]:
        raise Refused(f"no action moves '{missing[0]}' of the {robot.name}; this policy is for another robot")
    servos = {actuator["name"]: actuator for actuator in told["actuators"]}
    joints = {joint["actuator"]: joint for joint in told["joints"]}
    for name in order:
        if servos[name]["kind"] != "position" or servos[name]["gear"] != 1.0:
            raise Refused(f"actuator '{name}' is no position servo of gear 1; train with those and export again")
        if joints[name]["range"] is None:
            raise Refused(f"joint '{name}' has no range, so that nothing can guard it; give it one and export again")
    low, high = zip(*(joints[name]["range"] for name in order), strict=True)
    return Joints(
        order,
        default=_floats([joints[name]["default"] for name in order], size),
        low=_floats(low, size),
        high=_floats(high, size),
        stiffness=_floats([servos[name]["kp"] for name in order], size),
        damping=_floats([servos[name]["kd"] for name in order], size),
        offset=_floats(target["offset"], size),
        scale=_floats(target["scale"], size),
    )


def _places(order: tuple[str, ...], robot: Robot, what: str) -> None:
    if unknown := [name for name in order if name not in robot.joints]:
        raise Refused(f"{what} name '{unknown[0]}', no joint of the {robot.name}; this policy is for another robot")
    if len(set(order)) != len(order):
        raise Refused(f"{CONTRACT}: {what} name a joint twice; export the run again")


def _floats(values: Any, size: int) -> Array:
    """(size,) float32, all finite."""
    made = [float(value) for value in values]
    if len(made) != size or not all(map(math.isfinite, made)):
        raise ValueError(f"{len(made)} numbers for {size}, or not finite")
    return np.asarray(made, np.float32)
