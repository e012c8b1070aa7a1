"""The stand-in in real time: one step of physics every 2 ms, by deadlines that do not drift."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sdpg.robot.camera import SharedPose
from sdpg.robot.inbox import Inbox
from sdpg.robot.stand_in import StandIn
from sdpg.robot.wire import Wire, state_record

BACKLOG = 0.1  # seconds behind the clock from which on lost time is given up, not caught up with
EVERY = 10  # steps between two rows of the log: 50 Hz


@dataclass
class Log:
    """What happened, at 50 Hz."""

    time: list[float] = field(default_factory=list)  # CLOCK_MONOTONIC, seconds
    qpos: list[np.ndarray] = field(default_factory=list)  # (19,) float32
    qvel: list[np.ndarray] = field(default_factory=list)  # (18,) float32
    mode: list[int] = field(default_factory=list)  # see inbox.MODES

    def add(self, now: float, robot: StandIn, mode: int) -> None:
        self.time.append(now)
        self.qpos.append(robot.data.qpos.astype(np.float32))
        self.qvel.append(robot.data.qvel.astype(np.float32))
        self.mode.append(mode)


@dataclass
class Pace:
    """How well the clock was kept."""

    steps: int = 0
    late: int = 0  # steps that ended after their deadline
    given_up: float = 0.0  # seconds
    seconds: float = 0.0  # of the clock


def drive(
    robot: StandIn,
    wire: Wire,
    inbox: Inbox,
    seconds: float | None,
    stop: Callable[[], bool] = lambda: False,
    pose: SharedPose | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Log, Pace]:
    """For so many seconds of physics, or until `stop`."""
    log, pace, step_seconds = Log(), Pace(), float(robot.model.opt.timestep)
    begin = deadline = clock()
    while not stop() and (seconds is None or pace.steps * step_seconds < seconds - 1e-9):
        now = clock()
        for record in wire.commands(now):
            inbox.receive(record, now)
        robot.step(inbox.command(now))
        wire.publish(state_record(robot.reading()), now)
        if pose is not None:
            pose.write(now, robot.data.qpos)
        if pace.steps % EVERY == 0:
            log.add(now, robot, inbox.mode)
        pace.steps += 1
        deadline += step_seconds
        behind = clock() - deadline
        if behind > BACKLOG:
            pace.given_up += behind
            deadline += behind
        pace.late += behind > 0.0
        if behind < 0.0:
            sleep(-behind)
    pace.seconds = clock() - begin
    return log, pace
