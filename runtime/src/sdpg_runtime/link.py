"""What the runtime and a robot say to each other, whatever carries it: arrays in the robot's own order of joints.

Times are seconds of `time.monotonic()` on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class RobotState:
    """What the robot measured."""

    time: float  # when it was received
    tick: int  # the robot's own clock, milliseconds
    quaternion: Array  # (4,) of the base: w, x, y, z
    gyroscope: Array  # (3,) radians a second, in the base's frame
    accelerometer: Array  # (3,) metres a second squared
    position: Array  # (J,) of the joints, radians
    velocity: Array  # (J,) radians a second
    torque: Array  # (J,) as estimated, newton metres
    remote: bytes = b""  # of the wireless controller


@dataclass(frozen=True)
class Image:
    """One frame of a camera, before the policy's pipeline: (C, H, W), uint8 colours or float32 metres."""

    time: float  # when the light came in
    number: int  # rises by one with every frame
    pixels: Array


@dataclass(frozen=True)
class Command:
    """Targets of the joints' own servos: torque + stiffness (position - q) + damping (velocity - dq)."""

    position: Array  # (J,)
    velocity: Array
    torque: Array
    stiffness: Array
    damping: Array


@dataclass
class Dropped:
    """Messages that were refused, by reason; they only rise."""

    crc: int = 0
    malformed: int = 0
    reasons: list[str] = field(default_factory=list)  # the first few, for people


class Link(Protocol):
    """The robot's end of the wire, as the runtime sees it. No call waits."""

    dropped: Dropped

    def state(self) -> RobotState | None:
        """The latest sound one; None before the first."""

    def image(self, camera: str) -> Image | None:
        """The latest of this camera; None before the first."""

    def send(self, command: Command) -> None:
        """To the motors. May be called from another thread than the rest."""

    def publishers(self) -> int:
        """How many others send commands to this robot now."""

    def close(self) -> None: ...


class CountingLink(Link, Protocol):
    """A link that counts. Optional: the runtime looks for it, and then notices a wire that loses messages."""

    received: int  # sound states so far


class PreparedLink(Link, Protocol):
    """A link that can do the work of a message once and send it many times. Optional: the runtime looks for both."""

    def prepare(self, command: Command) -> object:
        """Serialised and signed; called by the control loop."""

    def send_prepared(self, prepared: object) -> None:
        """As `send`, from the publishing thread."""
