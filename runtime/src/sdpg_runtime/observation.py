"""What the policy sees, of what the robot measured: in float32, step by step as training computes it, to the last bit.

The latencies and the sensor model of training are not repeated: the robot has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sdpg_runtime.contract import Camera, Contract, Term, Vector
from sdpg_runtime.link import Image, RobotState
from sdpg_runtime.pipeline import processed
from sdpg_runtime.robot import GO2, Robot

Array = np.ndarray


class Observer:
    """One episode at a time: `reset` begins the next."""

    def __init__(self, contract: Contract, robot: Robot = GO2):
        self._vectors = [_Frames(s, robot) for s in contract.sources if isinstance(s, Vector)]
        self._stacks = [_Stack(s) for s in contract.sources if isinstance(s, Camera)]
        self._to_robot = places(contract.joints.names, robot)

    def reset(self) -> None:
        for frames in self._vectors:
            frames.reset()
        for stack in self._stacks:
            stack.reset()

    def observe(
        self, state: RobotState, images: Mapping[str, Image], command: Array, last_action: Array
    ) -> dict[str, Array]:
        """Inputs of the graph, (1, ...) each. `images` by camera; `command` (3,); `last_action` (A,), as the policy
        orders them."""
        action = np.zeros(len(state.position), np.float32)
        action[self._to_robot] = last_action  # so that all joints' terms are ordered alike
        measured = {
            "base_ang_vel": np.asarray(state.gyroscope, np.float32),
            "projected_gravity": down_direction(np.asarray(state.quaternion, np.float32)),
            "command": np.asarray(command, np.float32),
            "joint_pos": np.asarray(state.position, np.float32),
            "joint_vel": np.asarray(state.velocity, np.float32),
            "last_action": action,
        }
        seen = {part.source.name: part.add(measured) for part in self._vectors}
        return seen | {part.source.name: part.add(images[part.source.camera]) for part in self._stacks}


class _Frames:
    def __init__(self, source: Vector, robot: Robot):
        self.source = source
        self._which = [places(term.order, robot) if term.order else slice(None) for term in source.terms]
        self._history: Array | None = None  # (history, frame), the oldest first

    def reset(self) -> None:
        self._history = None

    def add(self, measured: Mapping[str, Array]) -> Array:
        """(1, history * frame)"""
        parts = [_scaled(t, measured[t.name][which]) for t, which in zip(self.source.terms, self._which, strict=True)]
        frame = np.concatenate(parts)
        if (clip := self.source.clip) is not None:
            frame = frame.clip(*clip)
        if self._history is not None:
            self._history = np.concatenate((self._history[1:], frame[None]))
        else:
            self._history = np.tile(frame, (self.source.history, 1))
            if self.source.begins == "zeros":
                self._history[:-1] = 0.0
        return self._history.reshape(1, -1)


class _Stack:
    def __init__(self, source: Camera):
        self.source = source
        self._frames: list[Array] = []  # the oldest first
        self._image: Image | None = None

    def reset(self) -> None:
        self._frames, self._image = [], None

    def add(self, image: Image) -> Array:
        """(1, stack * C, H, W). Every control step adds a frame, of the same image if there is no newer one."""
        frame = self._frames[-1] if image is self._image else self._processed(image.pixels)
        self._frames = [*self._frames[1:], frame] if self._frames else [frame] * self.source.stack
        self._image = image
        return np.concatenate(self._frames)[None]

    def _processed(self, pixels: Array) -> Array:
        if self.source.depth:
            pixels = np.where(np.isnan(pixels), np.float32(0.0), pixels)  # a depth that is lost is 0
        return np.ascontiguousarray(processed(pixels, self.source.pipeline, self.source.depth))


def _scaled(term: Term, measured: Array) -> Array:
    return term.scale * (measured - term.offset)


def places(names: tuple[str, ...], robot: Robot) -> Array:
    """Where these joints are in the robot's order."""
    return np.array([robot.joints.index(name) for name in names], np.intp)


def down_direction(quaternion: Array) -> Array:
    """Where down is in the base's frame; (4,) w, x, y, z -> (3,). The order of operations is that of training."""
    w, x, y, z = quaternion
    two, one = np.float32(2.0), np.float32(1.0)
    down = (two * (w * y - x * z), -two * (y * z + w * x), -(one - two * (x * x + y * y)))
    return np.array(down, np.float32)
