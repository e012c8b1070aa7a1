"""Measure, guard, think, command: one tick of control, and the thread that makes them by absolute deadlines."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdpg_runtime import guards
from sdpg_runtime.contract import Folder
from sdpg_runtime.guards import Arriving, Freshness, Rising
from sdpg_runtime.link import Command, Image, Link, RobotState
from sdpg_runtime.log import MEASURED, Writer
from sdpg_runtime.machine import Machine, Mode, Wish, damped, held, standing_up
from sdpg_runtime.observation import Observer, places
from sdpg_runtime.options import Options
from sdpg_runtime.policy import Policy
from sdpg_runtime.publisher import Publisher
from sdpg_runtime.replay import inputs_hash
from sdpg_runtime.robot import GO2, Robot
from sdpg_runtime.timing import Clock, Histogram, Pacer, Sleep
from sdpg_runtime.velocity import Velocity

Array = np.ndarray


@dataclass(frozen=True)
class Measured:
    state: RobotState | None
    images: Mapping[str, Image]  # by camera; those that there are
    state_age: float
    image_ages: Mapping[str, float]


@dataclass(frozen=True)
class Acted:
    begins: bool
    command: Array  # (3,)
    inputs: bytes
    action: Array  # (A,)
    targets: Array  # (A,)


class Runner:
    """`start` begins the threads of the loop and of the sender; `wish` and `report` may be called from others."""

    def __init__(
        self,
        link: Link,
        folder: Folder,
        policy: Policy,
        velocity: Velocity,
        options: Options,
        log: Writer | None = None,
        robot: Robot = GO2,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ):
        self.link, self.policy, self.velocity, self.options, self.log, self.robot = (
            link, policy, velocity, options, log, robot
        )  # fmt: skip
        self._clock, self._contract = clock, folder.contract
        self._observer = Observer(self._contract, robot)
        self._places = places(self._contract.joints.names, robot)
        self._default, self._low, self._high, self._stiffness, self._damping = (
            self._in_robots_order(getattr(self._contract.joints, name))
            for name in ("default", "low", "high", "stiffness", "damping")
        )
        self._crouch = np.asarray(robot.crouch, np.float32)
        self._damped = damped(len(robot.joints), options.gains.damping)
        self.machine = Machine(clock(), options.times, ends=options.auto)
        self.publisher = Publisher(link, self._damped, options.limits.lost_loop, options.publish, clock, sleep)
        self.pacer = Pacer(self._contract.seconds, clock, sleep)
        self._freshness, self._rising, self._wishes = Freshness(), Rising(), deque[Wish](maxlen=16)
        self._start, self._last = self._default, np.zeros(len(self._contract.joints.names), np.float32)
        self._acting, self._arriving = False, Arriving()
        self._thread: threading.Thread | None = None
        self.ticks, self.begun, self.finished = 0, clock(), threading.Event()
        self.loop_time, self.state_age, self.image_age, self.late = (Histogram() for _ in range(4))

    def _in_robots_order(self, values: Array) -> Array:
        """(A,) -> (J,)"""
        ordered = np.zeros(len(self.robot.joints), np.float32)
        ordered[self._places] = values
        return ordered

    # --- one tick

    def tick(self) -> None:
        now = self._clock()
        measured = self._measure()
        before = self.machine.mode
        mode = self.machine.step(now, self._next_wish(now), self._trouble(now, measured))
        if mode is Mode.STAND_UP and before is Mode.PASSIVE and measured.state is not None:
            self._start = measured.state.position
        acted = None
        if mode is Mode.POLICY and measured.state is not None:
            acted = self._act(now, measured.state, measured.images)
            mode = self.machine.step(now, None, guards.action_finite(acted.action))
        command = self._command(now, mode, acted)
        self.publisher.set(command)
        took = self._clock() - now
        self._note(now, took, measured)
        if self.log is not None:
            self._write(self.log, now, took, measured, acted, command)
        self.ticks += 1

    def _measure(self) -> Measured:
        state = self.link.state()
        if state is not None:
            state = _as_float32(state)
        found = {camera.camera: self.link.image(camera.camera) for camera in self._contract.cameras}
        now = self._clock()  # after reading, so that nothing is younger than now
        images = {name: image for name, image in found.items() if image is not None}
        ages = {name: math.inf if image is None else now - image.time for name, image in found.items()}
        return Measured(state, images, self._freshness.age(now, state), ages)

    def _trouble(self, now: float, measured: Measured) -> str | None:
        limits, state, names = self.options.limits, measured.state, self.robot.joints
        dropped = self.link.dropped
        others = self.link.publishers() if self.options.publish else 0  # a dry run disturbs nobody
        found = [
            self.publisher.trouble,
            guards.stale_state(measured.state_age, limits),
            guards.stale_image(measured.image_ages, limits),
            guards.overruns(self.pacer.in_a_row, limits),
            guards.refused(self._rising.rise(now, dropped.crc + dropped.malformed), limits),
            guards.second_publisher(others, limits),
            self._lost_states(state),
            *self._unfit_images(measured.images),
        ]
        if state is not None:
            wrong = guards.measured_sound(state, len(names))
            found.append(wrong)
            if wrong is None:
                found += [
                    guards.remote_stop(state.remote),
                    guards.tilt(state, limits),
                    guards.joint_limits(state, self._low, self._high, names, limits),
                    guards.joint_rates(state, names, limits),
                ]
        return next((trouble for trouble in found if trouble), None)

    def _lost_states(self, state: RobotState | None) -> str | None:
        received = getattr(self.link, "received", None)
        if received is None or state is None:
            return None
        return guards.lost_states(self._arriving.rate(state.tick, received), self.options.limits)

    def _unfit_images(self, images: Mapping[str, Image]) -> list[str | None]:
        cameras = [camera for camera in self._contract.cameras if camera.camera in images]
        return [guards.image_fits(images[c.camera], c.image_shape, c.image_dtype, c.camera) for c in cameras]

    def _next_wish(self, now: float) -> Wish | None:
        if self._wishes:
            return self._wishes.popleft()
        machine, passed = self.machine, now - self.machine.since + self._contract.seconds / 2  # to the nearest tick
        if machine.mode is Mode.POLICY and passed >= self.options.seconds:
            return Wish.QUIT
        if self.options.auto and machine.mode is Mode.PASSIVE:
            return Wish.STAND_UP
        if self.options.auto and machine.mode is Mode.READY and passed >= self.options.times.ready:
            return Wish.POLICY
        return None

    def _act(self, now: float, state: RobotState, images: Mapping[str, Image]) -> Acted:
        begins, self._acting = not self._acting, True
        if begins:
            self._observer.reset()
            self.policy.reset()
            self._last = np.zeros_like(self._last)
        command = self.velocity(now - self.machine.since, state)
        seen = self._observer.observe(state, images, command, self._last)
        action = self.policy.act(seen)
        self._last = action
        return Acted(begins, command, inputs_hash(seen), action, self.policy.targets(action))

    def _command(self, now: float, mode: Mode, acted: Acted | None) -> Command | None:
        """None: nothing is sent."""
        gains = self.options.gains
        if mode is Mode.PASSIVE:
            return None
        if mode is Mode.POLICY and acted is not None:
            return held(self._in_robots_order(acted.targets), self._stiffness, self._damping)
        if mode in (Mode.STAND_UP, Mode.READY):
            where = self._default
            if mode is Mode.STAND_UP:
                passed = now - self.machine.since
                where = standing_up(self._start, self._crouch, self._default, passed, self.options.times)
            return held(where, gains.stand_stiffness, gains.stand_damping)
        return self._damped

    # --- what is kept of it

    def _note(self, now: float, took: float, measured: Measured) -> None:
        self.loop_time.add(took)
        self.late.add(max(0.0, now - self.pacer.due))
        if self.machine.mode is not Mode.PASSIVE:
            self.state_age.add(measured.state_age)
            for age in measured.image_ages.values():
                self.image_age.add(age)

    def _write(
        self, log: Writer, now: float, took: float, measured: Measured, acted: Acted | None, command: Command | None
    ) -> None:
        row = np.zeros((), log.dtype)
        row["number"], row["time"], row["took"], row["mode"] = self.ticks, now, took, self.machine.mode
        row["reason"] = (self.machine.reason or self.machine.note).encode()[:160]
        if (state := measured.state) is not None:
            row["measured"], row["state_time"], row["state_tick"] = 1, state.time, state.tick
            for name in MEASURED:
                row[name] = getattr(state, name)
            row["remote"] = np.void(state.remote[:40].ljust(40, b"\0"))
        for i, camera in enumerate(self._contract.cameras):
            image = measured.images.get(camera.camera)
            row["image_number"][i], row["image_time"][i] = (
                (-1, -math.inf) if image is None else (image.number, image.time)
            )
        if acted is not None:
            row["acted"], row["begins"], row["inputs"] = 1, acted.begins, np.void(acted.inputs)
            row["command"], row["action"], row["targets"] = acted.command, acted.action, acted.targets
        if command is not None:
            row["sent"] = 1
            row["sent_position"], row["sent_stiffness"] = command.position, command.stiffness
            row["sent_damping"] = command.damping
        log.tick(row, measured.images if acted is not None else {})

    # --- the thread

    def wish(self, wish: Wish) -> None:
        self._wishes.append(wish)

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="control", daemon=True)
        self.publisher.start()
        self._thread.start()

    def run(self) -> None:
        """Ticks until the machine has finished; the sender stops after the last one."""
        self.pacer.due = self._clock()
        while not self.machine.finished(self._clock()):
            try:
                self.tick()
            except Exception as error:  # whatever it is: the robot must not be left with the last target
                self._failed(error)
            self.pacer.wait()
        self.publisher.stop()
        self.finished.set()

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        self.machine.damp(now, f"error in the control loop: {type(error).__name__}: {error}")
        mode = self.machine.step(now, self._next_wish(now), None)
        self.publisher.set(None if mode is Mode.PASSIVE else self._damped)
        self.log_blindly()

    def log_blindly(self) -> None:
        """A tick without measurements: of a loop that failed, or, told by another thread, that is lost."""
        if self.log is not None:
            row = np.zeros((), self.log.dtype)
            row["number"], row["time"], row["mode"] = self.ticks, self._clock(), Mode.DAMPING
            row["reason"] = (self.machine.reason or self.publisher.trouble or "").encode()[:160]
            self.log.tick(row, {})
        self.ticks += 1

    @property
    def lost(self) -> bool:
        """Whether the loop stopped for good, and the sender has damped long enough without it."""
        alone = self.publisher.trouble is not None and self.machine.mode is not Mode.DAMPING
        return alone and self.publisher.silence > self.options.times.damping

    def report(self) -> dict[str, Any]:
        dropped, log = self.link.dropped, self.log
        reason = self.machine.reason or self.publisher.trouble or ""
        return {
            "mode": self.machine.mode.name.lower(),
            "reason": reason,
            "note": self.machine.note,
            "seconds": round(self._clock() - self.begun, 3),
            "ticks": self.ticks,
            "missed_deadlines": self.pacer.missed,
            "loop_ms": self.loop_time.milliseconds(),
            "late_ms": self.late.milliseconds(),
            "state_age_ms": self.state_age.milliseconds(),
            "image_age_ms": self.image_age.milliseconds(),
            "sent": self.publisher.sent,
            "refused_messages": {"crc": dropped.crc, "malformed": dropped.malformed, "first": dropped.reasons[:3]},
            "log": None if log is None else {"path": log.path, "lost_records": log.lost, "trouble": log.trouble},
        }


def _as_float32(state: RobotState) -> RobotState:
    """As it is computed with and logged."""
    parts: dict[str, Any] = {name: np.asarray(getattr(state, name), np.float32) for name in MEASURED}
    return replace(state, **parts)
