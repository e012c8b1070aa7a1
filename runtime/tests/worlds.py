"""A runner with a robot in memory, and time that flies."""

from __future__ import annotations

import time
from pathlib import Path

from fakes import Clock, Robot

from sdpg_runtime import contract
from sdpg_runtime.log import Writer
from sdpg_runtime.loop import Runner
from sdpg_runtime.machine import Mode
from sdpg_runtime.options import Options
from sdpg_runtime.policy import Policy
from sdpg_runtime.robot import GO2
from sdpg_runtime.velocity import constant


def drain(log: Writer) -> None:
    """Here time flies, and the disk must keep up."""
    while log._queue.qsize() > 50 and not log.trouble:
        time.sleep(0.001)


class World:
    """A runner, its robot and their clock; the sender has a turn every 2 ms."""

    def __init__(self, path: Path, options: Options, log: Path | None = None):
        self.clock, self.folder = Clock(), contract.load(path)
        self.robot = Robot(self.clock)
        self.log = None if log is None else Writer(log, self.folder, GO2)
        self.runner = Runner(
            self.robot, self.folder, Policy(self.folder), constant(0.5, 0.0, 0.1), options, self.log,
            clock=self.clock, sleep=self.clock.sleep,
        )  # fmt: skip
        self.clock.others = [self.robot.advance, self.runner.publisher.step]
        self.history: list[Mode] = []

    @property
    def mode(self) -> Mode:
        return self.runner.machine.mode

    @property
    def reason(self) -> str:
        return self.runner.machine.reason

    def spin(self, seconds: float) -> None:
        """Ticks as `Runner.run` makes them."""
        until = self.clock.now + seconds
        while self.clock.now < until - 1e-9 and not self.runner.machine.finished(self.clock.now):
            self.runner.tick()
            self.history.append(self.mode)
            self.runner.pacer.wait()
            if self.log is not None:
                drain(self.log)

    def walking(self) -> World:
        self.spin(6.0)
        assert self.mode is Mode.POLICY, self.runner.report()
        return self
