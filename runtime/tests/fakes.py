"""A robot in memory, a clock that is told what time it is, and an export made by hand."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sdpg_runtime.link import Command, Dropped, Image, RobotState
from sdpg_runtime.robot import GO2

JOINTS = GO2.joints
DEFAULT = (0.0, 0.8, -1.5) * 4
HISTORY, FRAME, HEIGHT, WIDTH = 3, 45, 12, 20


class Clock:
    """Sleeping is the only way in which time passes; meanwhile others do their work every 2 ms."""

    def __init__(self) -> None:
        self.now = 100.0
        self.others: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = min(until, self.now + 0.002)
            for other in self.others:
                other()


class Robot:
    """Joints of unit inertia that follow the latest command; faults are attributes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, camera: bool = True):
        self.clock, self.dropped, self.others, self.camera = clock, Dropped(), 0, camera
        self.sent: list[Command] = []
        self.position, self.velocity = np.array(GO2.crouch), np.zeros(12)
        self.quaternion, self.gyroscope = np.array((1.0, 0.0, 0.0, 0.0)), np.zeros(3)
        self.remote = b""
        self.frozen = self.frozen_tick = self.blind = False
        self.pixels = np.full((1, HEIGHT, WIDTH), 1.5, np.float32)
        self._begun = self._last = clock()
        self._state: RobotState | None = None
        self._image: Image | None = None

    def advance(self) -> None:
        now = self.clock()
        seconds, self._last = min(now - self._last, 0.02), now
        if self.sent and seconds > 0.0:
            c = self.sent[-1]
            steps = max(1, round(seconds / 0.001))
            for _ in range(steps):
                torque = (
                    c.torque + c.stiffness * (c.position - self.position) + c.damping * (c.velocity - self.velocity)
                )
                self.velocity = self.velocity + torque * seconds / steps
                self.position = self.position + self.velocity * seconds / steps
        if not self.frozen:
            self._count()
            tick = self._state.tick if self.frozen_tick and self._state else int(1000 * (now - self._begun))
            numbers = (self.quaternion, self.gyroscope, np.zeros(3), self.position, self.velocity, np.zeros(12))
            self._state = RobotState(now, tick, *(np.array(each) for each in numbers), self.remote)
        number = int((now - self._begun) * 30)
        if self.camera and not self.blind and (self._image is None or self._image.number != number):
            self._image = Image(now, number, self.pixels + np.float32(0.01) * (number % 7))

    def _count(self) -> None:
        """Of 10 messages so many are lost."""
        if hasattr(self, "received"):
            self._sent_states += 1
            self.received += self._sent_states % 10 >= self.lossy

    def counting(self) -> None:
        self.received = self._sent_states = self.lossy = 0

    def state(self) -> RobotState | None:
        self.advance()
        return self._state

    def image(self, camera: str) -> Image | None:
        return self._image if camera == "depth" else None

    def send(self, command: Command) -> None:
        self.sent = [*self.sent[-2000:], command]

    def publishers(self) -> int:
        return self.others

    def close(self) -> None:
        pass


def in_real_time(domain: int, interface: str) -> Robot:
    """For --link fakes:in_real_time; the interface names a fault, the domain when it begins (s)."""
    robot = Robot(camera=interface != "blind")
    if interface == "falls":
        robot.quaternion = np.array((0.0, 1.0, 0.0, 0.0))
    if interface == "fails":

        def fail(camera: str) -> Image | None:
            raise OSError("the cable is out")

        robot.image = fail  # type: ignore[method-assign]
    if interface == "stops":
        begun, advance = time.monotonic(), robot.advance

        def advance_then_stop() -> None:
            robot.frozen = time.monotonic() - begun > domain
            advance()

        robot.advance = advance_then_stop  # type: ignore[method-assign]
    if interface == "dies":
        begun, image = time.monotonic(), robot.image

        def image_then_die(camera: str) -> Image | None:
            while time.monotonic() - begun > domain:  # the control loop hangs here for good
                time.sleep(0.1)
            return image(camera)

        robot.image = image_then_die  # type: ignore[method-assign]
    return robot


# --- an export


def term(name: str, size: int, scale: float = 1.0, offset: Any = 0.0, order: tuple[str, ...] = ()) -> dict[str, Any]:
    offsets = [offset] * size if isinstance(offset, float) else list(offset)
    order = order or tuple("xyz"[:size])
    told = {"name": name, "size": size, "unit": "", "meaning": "", "order": list(order), "command": name == "command"}
    return told | {"scale": [scale] * size, "offset": offsets}


def contract(seconds: float = 0.02, recurrent: bool = False, order: tuple[str, ...] = JOINTS) -> dict[str, Any]:
    terms = [
        term("base_ang_vel", 3, 0.25),
        term("projected_gravity", 3),
        term("command", 3, 2.0),
        term("joint_pos", 12, 1.0, [DEFAULT[JOINTS.index(name)] for name in order], order),
        term("joint_vel", 12, 0.05, order=order),
        term("last_action", 12, order=order),
    ]
    layout = {"terms": terms, "history": HISTORY, "history_order": "oldest first", "begins": "first"}
    layout |= {"clip": [-100.0, 100.0], "latency_steps": 0}
    pipeline = {"crop": [0, 2, 2, 2], "limit": [0.0, 2.0], "width": 8, "height": 5, "resize": "area"}
    camera = {"name": "depth", "image": "depth", "width": WIDTH, "height": HEIGHT, "stack": 2}
    camera |= {"pipeline": pipeline | {"depth": "centred"}, "stack_order": "oldest first", "stack_begins": "first"}
    carry = {"name": "sum", "input": "carry.sum", "output": "next.sum", "dtype": "float32"}
    ranges = {"hip": [-1.0, 1.0], "thigh": [-1.5, 3.4], "calf": [-2.8, -0.8]}
    return {
        "format": "sdpg-contract",
        "version": 1,
        "sources": [
            {"name": "history", "dtype": "float32", "shape": [HISTORY * FRAME], "layout": layout},
            {"name": "depth", "dtype": "float32", "shape": [2, 5, 8], "camera": camera},
        ],
        "carry": [carry | {"shape": [12], "begin": [0.5] * 12}] if recurrent else [],
        "action": {
            "output": "actions",
            "dtype": "float32",
            "shape": [12],
            "target": {
                "unit": "rad",
                "order": list(order),
                "scale": [0.5] * 12,
                "offset": [DEFAULT[JOINTS.index(name)] for name in order],
            },
        },
        "actuators": [
            {"name": name, "kind": "position", "joint": f"{name}_joint", "kp": 30.0, "kd": 1.5, "gear": 1.0}
            for name in order
        ],
        "joints": [
            {"name": f"{name}_joint", "actuator": name, "default": DEFAULT[JOINTS.index(name)]}
            | {"range": ranges[name.split("_")[1]]}
            for name in order
        ],
        "rates": {"control_seconds": seconds},
    }


def graph(recurrent: bool = False, nan: bool = False) -> bytes:
    """actions = tanh(history W + mean(depth) [+ memory])"""
    rng = np.random.default_rng(0)
    weights = (0.1 * rng.standard_normal((HISTORY * FRAME, 12))).astype(np.float32)
    scale = np.float32(np.nan if nan else 1.0)
    constants = {"weights": weights, "scale": scale, "row": np.array([-1, 1], np.int64)}
    nodes = [
        helper.make_node("MatMul", ["history", "weights"], ["straight"]),
        helper.make_node("ReduceMean", ["depth"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "row"], ["column"]),
        helper.make_node("Add", ["straight", "column"], ["both"]),
        helper.make_node("Mul", ["both", "scale"], ["scaled"]),
    ]
    inputs = [_port("history", [HISTORY * FRAME]), _port("depth", [2, 5, 8])]
    outputs = [_port("actions", [12])]
    if recurrent:
        nodes += [helper.make_node("Add", ["scaled", "carry.sum"], ["next.sum"])]
        inputs, outputs = [*inputs, _port("carry.sum", [12])], [*outputs, _port("next.sum", [12])]
    nodes.append(helper.make_node("Tanh", ["next.sum" if recurrent else "scaled"], ["actions"]))
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    whole = helper.make_graph(nodes, "tiny", inputs, outputs, made)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _port(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])


def write_export(folder: Path, told: dict[str, Any] | None = None, policy: bytes | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    policy = graph() if policy is None else policy
    files = {"contract.json": json.dumps(told or contract()).encode(), "policy.onnx": policy}
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    files["manifest.json"] = json.dumps({"format": "sdpg-export", "version": 1, "files": entries}).encode()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def environment() -> dict[str, str]:
    """Of a subprocess that finds the runtime and this file."""
    import sdpg_runtime

    here, there = Path(__file__).parent, Path(sdpg_runtime.__file__).parent.parent
    return {**os.environ, "PYTHONPATH": f"{there}:{here}"}
