"""The runtime's end of the wire: LowState and images in, LowCmd out. Readers are polled; nothing here has a thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sdpg_runtime.dds import layout, messages
from sdpg_runtime.dds.layout import Record
from sdpg_runtime.dds.messages import Image_, LowCmd_, LowState_
from sdpg_runtime.dds.node import LOOPBACK, Node, taken
from sdpg_runtime.link import Command, Dropped, Image, RobotState

SENDING = 1.0  # seconds after its last message during which a publisher counts as one
_KEPT = 64  # messages between two polls
_REASONS = 10  # that are kept for people
_OLDEST = 10.0  # seconds: an image that says it is older was taken by another machine's clock
_PIXELS: dict[str, np.dtype] = {"uint8": np.dtype("u1"), "float32": np.dtype("<f4")}

Clock = Callable[[], float]


class DdsLink:
    """See `sdpg_runtime.link`: a `PreparedLink` and a `CountingLink`. Tried against the stand-in robot on the loopback
    interface; on no real robot.

    Images must come from a process on this machine: their times are those of its CLOCK_MONOTONIC, which all processes
    of a Linux machine share.
    """

    def __init__(self, domain: int = 1, interface: str = LOOPBACK, clock: Clock = time.monotonic):
        self.dropped, self.received = Dropped(), 0
        self._clock = clock
        self._node = Node(domain, interface)
        self._states = self._node.reader(messages.LOW_STATE, LowState_, _KEPT)
        self._images = self._node.reader(messages.IMAGE, Image_, _KEPT)
        self._others = self._node.reader(messages.LOW_CMD, LowCmd_, _KEPT)
        self._commands = self._node.writer(messages.LOW_CMD, LowCmd_)
        self._state: RobotState | None = None
        self._arrivals = Arrivals()
        self._image: dict[str, Image] = {}
        self._robots, self._rivals = Heard(), Heard()  # who sends states, and who else sends commands

    def state(self) -> RobotState | None:
        latest = None
        for message in taken(self._states, _KEPT):
            robots = self._robots.count(self._clock(), message.sample_info.publication_handle)
            reason = fault_of_state(message.record)
            if robots > 1 and reason is None:
                reason = f"{robots} robots send states; one has to go"
            if reason is None:
                latest = message
                self.received += 1
            else:
                self._drop(reason, "state")
        if latest is not None:
            stamp = 1e-9 * latest.sample_info.source_timestamp
            self._state = as_state(latest.record, self._arrivals.of(stamp, self._clock()))
        return self._state

    def image(self, camera: str) -> Image | None:
        for message in taken(self._images, _KEPT):
            image = as_image(message, self._clock())
            if isinstance(image, Image):
                self._image[message.camera] = image
            else:
                self._drop(image, "image")
        return self._image.get(camera)

    def send(self, command: Command) -> None:
        self.send_prepared(self.prepare(command))

    def prepare(self, command: Command) -> Any:
        """Sealed, to be sent many times."""
        return LowCmd_.of(as_record(command))

    def send_prepared(self, prepared: Any) -> None:
        self._commands.write(prepared)

    def publishers(self) -> int:
        """Those that were heard in the last second: a program that could send, but is silent, does not count."""
        now = self._clock()
        for message in taken(self._others, _KEPT):
            self._rivals.count(now, message.sample_info.publication_handle)
        return self._rivals.count(now)

    def close(self) -> None:
        self._node.close()

    def _drop(self, reason: str, what: str) -> None:
        if reason == "crc":
            self.dropped.crc += 1
        else:
            self.dropped.malformed += 1
        if len(self.dropped.reasons) < _REASONS:
            self.dropped.reasons.append(f"{what}: {reason}")


class Heard:
    """Who spoke in the last second."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def count(self, now: float, who: int | None = None) -> int:
        """How many did, after `who` has spoken now."""
        if who is not None:
            self._last[who] = now
        if len(self._last) > 1 or who is None:
            self._last = {who: when for who, when in self._last.items() if now - when < SENDING}
        return len(self._last)


class Arrivals:
    """When messages arrived that were polled later, by the sender's stamps on them. Its clock may be any other: the
    quickest message of the last seconds is taken to have come at once, others so much later than that."""

    def __init__(self, window: float = 5.0):
        self._window, self._since = window, -math.inf
        self._least = self._least_before = math.inf  # seconds from a stamp to the poll: of this window, of the last

    def of(self, stamp: float, now: float) -> float:
        """Seconds, each by its own clock -> by ours, never later than now."""
        if now - self._since > self._window:
            self._least_before, self._least, self._since = self._least, math.inf, now
        self._least = min(self._least, now - stamp)
        return min(now, stamp + min(self._least, self._least_before))


def fault_of_state(record: Record | None) -> str | None:
    """Why a LowState is refused; None: it is sound."""
    if record is None:
        return "bytes that are no LowState"
    if tuple(record["head"]) != layout.HEAD:
        return "head"
    if record["crc"] != layout.crc_of(record):
        return "crc"
    return None


def as_state(record: Record, now: float) -> RobotState:
    imu, motors = record["imu_state"], record["motor_state"][: layout.JOINTS]
    return RobotState(
        time=now,
        tick=int(record["tick"]),
        quaternion=imu["quaternion"].copy(),
        gyroscope=imu["gyroscope"].copy(),
        accelerometer=imu["accelerometer"].copy(),
        position=motors["q"].copy(),
        velocity=motors["dq"].copy(),
        torque=motors["tau_est"].copy(),
        remote=record["wireless_remote"].tobytes(),
    )


def as_image(message: Any, now: float) -> Image | str:
    """Or why it is refused."""
    dtype = _PIXELS.get(message.dtype)
    shape = tuple(message.shape)
    if dtype is None or len(message.data) != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        return f"{len(message.data)} bytes are no {message.dtype} {shape}"
    if not now - _OLDEST < message.time <= now:
        return "its time is not of this machine's clock"
    pixels = np.frombuffer(bytes(message.data), dtype).reshape(shape)
    return Image(time=message.time, number=message.number, pixels=pixels)


def as_record(command: Command) -> Record:
    """Of the first 12 motors; the other slots stay at zero, switched off."""
    record = np.zeros((), layout.LOW_CMD)
    record["head"], record["level_flag"] = layout.HEAD, layout.LOW_LEVEL
    motors = record["motor_cmd"][: layout.JOINTS]
    motors["mode"] = layout.SERVO
    motors["q"], motors["dq"], motors["tau"] = command.position, command.velocity, command.torque
    motors["kp"], motors["kd"] = command.stiffness, command.damping
    return layout.seal(record)
