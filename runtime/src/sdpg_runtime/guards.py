"""What must not be. Each guard looks at one thing and tells what is wrong, or None; any of them leads to damping."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sdpg_runtime.link import Image, RobotState

Array = np.ndarray


@dataclass(frozen=True)
class Limits:
    """`--limit NAME=VALUE` changes one."""

    state_age: float = 0.05  # seconds since the robot's newest measurement
    state_rate: float = 400.0  # states for a second of the robot's clock, which has 500, if the link counts them
    image_age: float = 0.3  # seconds since the light of the newest image came in
    tilt: float = 1.0  # radians between the base's up and the world's
    joint_margin: float = 0.1  # radians that a joint may be beyond its range
    joint_rate: float = 30.0  # radians a second
    overruns: int = 5  # deadlines missed in a row
    refused: int = 5  # messages with a wrong CRC or shape, within a second
    publishers: int = 0  # others that send commands
    lost_loop: float = 0.1  # seconds without a tick, after which the sender gives up on the loop


def stale_state(age: float, limits: Limits) -> str | None:
    if age == math.inf:
        return "no state has come from the robot; switch it on, and check --domain and --interface"
    if not -limits.state_age <= age <= limits.state_age:
        return f"no fresh state: the newest is {_ms(age)} old, {_ms(limits.state_age)} are allowed"
    return None


def stale_image(ages: Mapping[str, float], limits: Limits) -> str | None:
    for camera, age in ages.items():
        if age == math.inf:
            return f"no image has come from camera '{camera}', which the policy needs; start the camera"
        if not -limits.image_age <= age <= limits.image_age:  # one from the future has a wrong clock
            return f"no fresh image of '{camera}': the newest is {_ms(age)} old, {_ms(limits.image_age)} are allowed"
    return None


def image_fits(image: Image, shape: tuple[int, ...], dtype: str, camera: str) -> str | None:
    if image.pixels.shape != shape or image.pixels.dtype != dtype:
        told = f"{image.pixels.dtype} {image.pixels.shape}"
        return f"images of '{camera}' are {told}, the policy needs {dtype} {shape}; set the camera up so"
    return None


def measured_sound(state: RobotState, joints: int) -> str | None:
    if state.position.shape != (joints,) or state.velocity.shape != (joints,):
        return f"the robot tells {state.position.shape} joints, the policy moves {joints}; it is for another robot"
    parts = (state.quaternion, state.gyroscope, state.position, state.velocity)
    if not all(np.isfinite(part).all() for part in parts):
        return "the robot's state has numbers that are not finite"
    if abs(float(np.linalg.norm(state.quaternion)) - 1.0) > 0.1:
        return "the robot's orientation is no unit quaternion"
    return None


def tilt(state: RobotState, limits: Limits) -> str | None:
    _, x, y, _ = (float(part) for part in state.quaternion)
    angle = math.acos(min(1.0, max(-1.0, 1.0 - 2.0 * (x * x + y * y))))
    return f"tilted by {angle:.2f} rad, {limits.tilt:.2f} are allowed" if angle > limits.tilt else None


def joint_limits(state: RobotState, low: Array, high: Array, names: tuple[str, ...], limits: Limits) -> str | None:
    """`low` and `high` (J,) in the robot's order."""
    beyond = np.maximum(low - state.position, state.position - high)
    worst = int(beyond.argmax())
    if beyond[worst] > limits.joint_margin:
        return f"joint {names[worst]} is {beyond[worst]:.2f} rad beyond its range, {limits.joint_margin} are allowed"
    return None


def joint_rates(state: RobotState, names: tuple[str, ...], limits: Limits) -> str | None:
    worst = int(np.abs(state.velocity).argmax())
    rate = abs(float(state.velocity[worst]))
    if rate > limits.joint_rate:
        return f"joint {names[worst]} turns at {rate:.0f} rad/s, {limits.joint_rate:g} are allowed"
    return None


def action_finite(action: Array) -> str | None:
    return None if np.isfinite(action).all() else "the policy's action is not finite"


def overruns(in_a_row: int, limits: Limits) -> str | None:
    return f"{in_a_row} deadlines missed in a row" if in_a_row >= limits.overruns else None


def refused(count: int, limits: Limits) -> str | None:
    if count > limits.refused:
        return f"{count} messages with a wrong CRC or shape within a second, {limits.refused} are allowed"
    return None


def lost_states(rate: float, limits: Limits) -> str | None:
    if rate < limits.state_rate:
        return f"{rate:.0f} states came for a second of the robot's, {limits.state_rate:g} are needed: some are lost"
    return None


def second_publisher(count: int, limits: Limits) -> str | None:
    if count > limits.publishers:
        return f"{count} other publisher(s) of commands: switch the robot's own controller, or the other program, off"
    return None


def remote_stop(remote: bytes) -> str | None:
    """L2 and B of the wireless controller, held together."""
    held = int.from_bytes(remote[2:4], "little") if len(remote) >= 4 else 0
    return "the remote asked for it (L2 + B)" if held & 0x220 == 0x220 else None


class Freshness:
    """How old the newest measurement is. Messages whose clock stands still are no news."""

    def __init__(self) -> None:
        self._tick: int | None = None
        self._since = -math.inf

    def age(self, now: float, state: RobotState | None) -> float:
        if state is not None and state.tick != self._tick:
            self._tick, self._since = state.tick, state.time
        return now - self._since


class Rising:
    """By how much a count rose within the last second."""

    def __init__(self, window: float = 1.0):
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def rise(self, now: float, count: int) -> int:
        self._seen.append((now, count))
        while self._seen[0][0] < now - self._window:
            self._seen.popleft()
        return count - self._seen[0][1]


class Arriving:
    """How many states come for a second of the robot's own clock: a robot that is slow, or a machine that is busy,
    loses none."""

    SPAN = 1000  # milliseconds

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()  # the clock and the count, a second back

    def rate(self, tick: int, received: int) -> float:
        """0 until a second is over."""
        if self._seen and tick < self._seen[-1][0]:  # it was switched off and on
            self._seen.clear()
        if not self._seen or tick > self._seen[-1][0]:
            self._seen.append((tick, received))
        while len(self._seen) > 1 and tick - self._seen[1][0] >= self.SPAN:
            self._seen.popleft()
        first, count = self._seen[0]
        return 1000.0 * (self._seen[-1][1] - count) / (tick - first) if tick - first >= self.SPAN else 0.0


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.0f} ms"
