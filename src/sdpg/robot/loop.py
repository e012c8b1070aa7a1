"""The stand-in in real time: one step of physics every 2 ms, by deadlines that do not drift."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sdpg.robot.camera import SharedPose
from sdpg.robot.inbox import Inbox
from sdpg.robot.stand_in import StandIn
from sdpg.robot.wire import Wire, state_record

BACKLOG = 0.1  # seconds behind the clock from which on lost time is given up, not caught up with
EVERY = 10  # steps between two rows of the log: 50 Hz


class Log:
    """What happened, at 50 Hz. In a file without a name: however long it goes on, memory does not grow."""

    ROW = np.dtype([("time", "f8"), ("qpos", "f4", 19), ("qvel", "f4", 18), ("mode", "i4")])

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  it goes with the log

    def add(self, now: float, robot: StandIn, mode: int) -> None:
        self._file.write(np.array((now, robot.data.qpos, robot.data.qvel, mode), self.ROW).tobytes())

    def rows(self) -> np.ndarray:
        """All of them: time (CLOCK_MONOTONIC, seconds), qpos, qvel, mode (see inbox.MODES)."""
        self._file.seek(0)
        return np.frombuffer(self._file.read(), self.ROW)


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
