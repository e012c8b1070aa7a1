"""Which command the motors follow: the last sound one, or, when none has come for a while, their own brake."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sdpg.robot.stand_in import damped
from sdpg_runtime.dds import layout
from sdpg_runtime.dds.layout import Record
from sdpg_runtime.link import Command

MODES = ("waiting", "driven", "damped", "watchdog")
"""What motors do: brake, as nobody has commanded them yet; are stiff; brake, as they are told to; brake, as nobody
commands them any longer."""
WAITING, DRIVEN, DAMPED, WATCHDOG = range(4)


@dataclass
class Silence:
    """A time without commands."""

    time: float  # when the watchdog put the brake on
    after: float  # seconds after the last sound command
    seconds: float | None = None  # until the next one; None: none came


class Inbox:
    """Times are given by the caller."""

    def __init__(self, patience: float = 0.1):
        self.patience = patience  # seconds
        self.accepted, self.dropped = 0, Counter[str]()
        self.silences: list[Silence] = []
        self.longest_gap = 0.0
        self.mode = WAITING
        self._command, self._brake = damped(), damped()
        self._first = self._last = 0.0  # when sound ones came

    def receive(self, record: Record | None, now: float) -> None:
        if (reason := fault(record)) is not None:
            self.dropped[reason] += 1
            return
        assert record is not None
        if self.accepted == 0:
            self._first = now
        else:
            self.longest_gap = max(self.longest_gap, now - self._last)
        self.accepted += 1
        self._last, self._command = now, as_command(record)
        if self.mode == WATCHDOG:
            self.silences[-1].seconds = now - self.silences[-1].time
        self.mode = DRIVEN if self._command.stiffness.any() else DAMPED

    def command(self, now: float) -> Command:
        if self.mode == WAITING:
            return self._brake
        if now - self._last > self.patience:
            if self.mode != WATCHDOG:
                self.silences.append(Silence(now, now - self._last))
                self.mode = WATCHDOG
            return self._brake
        return self._command

    def facts(self) -> dict[str, Any]:
        seconds = self._last - self._first
        return {
            "accepted": self.accepted,
            "rate_hz": (self.accepted - 1) / seconds if seconds > 0.0 else None,
            "longest_gap_ms": 1e3 * self.longest_gap,
            "dropped": dict(self.dropped),
            "watchdog_ms": 1e3 * self.patience,
            "watchdog": [asdict(each) for each in self.silences],
        }


def fault(record: Record | None) -> str | None:
    """Why a LowCmd is dropped; None: it is sound."""
    if record is None:
        return "malformed"
    if tuple(record["head"]) != layout.HEAD:
        return "head"
    if record["crc"] != layout.crc_of(record):
        return "crc"
    if record["level_flag"] != layout.LOW_LEVEL:
        return "level"
    motors = record["motor_cmd"][: layout.JOINTS]
    if (motors["mode"] != layout.SERVO).any():
        return "mode"
    if not all(np.isfinite(motors[name]).all() for name in ("q", "dq", "tau", "kp", "kd")):
        return "not finite"
    return None


def as_command(record: Record) -> Command:
    motors = record["motor_cmd"][: layout.JOINTS]
    position, velocity, torque, stiffness, damping = (
        motors[name].astype(np.float64) for name in ("q", "dq", "tau", "kp", "kd")
    )
    return Command(position, velocity, torque, stiffness, damping)
