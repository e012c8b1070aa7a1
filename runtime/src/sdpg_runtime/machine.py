"""Passive -> StandUp -> Ready -> Policy -> Damping: which of them is on, and what is sent to the joints in each.

Passive sends nothing. Damping is the end: whoever wants to go on starts again. Joints are in the robot's order here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from sdpg_runtime.link import Command

Array = np.ndarray


ASKED = "asked for"  # the reason that nobody minds


class Mode(enum.IntEnum):
    PASSIVE = 0
    STAND_UP = 1
    READY = 2
    POLICY = 3
    DAMPING = 4


class Wish(enum.Enum):
    STAND_UP = "s"
    POLICY = "p"
    DAMPING = "d"
    QUIT = "q"


@dataclass(frozen=True)
class Times:
    """Seconds."""

    look: float = 1.0  # that Passive lasts at least: others that send must have been noticed
    crouch: float = 1.0  # from any pose to folded legs
    rise: float = 1.5  # from there to the policy's default pose
    ready: float = 1.0  # that Ready lasts at least, if it goes on by itself
    damping: float = 3.0  # before the program ends


@dataclass(frozen=True)
class Gains:
    """Nm/rad and Nm s/rad, of what is not the policy's."""

    stand_stiffness: float = 60.0
    stand_damping: float = 5.0
    damping: float = 3.0


class Machine:
    def __init__(self, now: float, times: Times, ends: bool = False):
        """`ends`: Damping ends by itself; else somebody must ask to quit."""
        self.times, self.ends = times, ends
        self.mode, self.since = Mode.PASSIVE, now
        self.reason = ""  # of damping
        self.note = ""  # what was asked for in vain
        self._rises = self._quits = False  # what was asked for

    def step(self, now: float, wish: Wish | None, trouble: str | None) -> Mode:
        """One tick: what somebody wants, and what a guard says."""
        if trouble and self.mode is Mode.PASSIVE:
            self.note = f"waits: {trouble}"
        elif trouble:
            self.damp(now, trouble)
        elif self.mode is Mode.PASSIVE:
            self.note = ""
        if wish is not None:
            self._heed(now, wish)
        if trouble or self._quits:
            self._rises = False  # it must be asked for again
        if self.mode is Mode.PASSIVE and self._rises and now - self.since >= self.times.look:
            self._enter(Mode.STAND_UP, now)
        if self.mode is Mode.STAND_UP and now - self.since >= self.times.crouch + self.times.rise:
            self._enter(Mode.READY, now)
        return self.mode

    def damp(self, now: float, reason: str) -> None:
        if self.mode is Mode.PASSIVE:  # nothing was sent, so that there is nothing to damp
            self.reason, self._quits = reason, True
        elif self.mode is not Mode.DAMPING:
            self.reason = reason
            self._enter(Mode.DAMPING, now)

    def _heed(self, now: float, wish: Wish) -> None:
        if wish is Wish.QUIT:
            self._quits = True
        if wish is Wish.QUIT or (wish is Wish.DAMPING and self.mode is not Mode.PASSIVE):
            self.damp(now, ASKED)
        elif wish is Wish.STAND_UP:
            self._rises = True
        elif wish is Wish.POLICY and self.mode is Mode.READY:
            self._enter(Mode.POLICY, now)

    def _enter(self, mode: Mode, now: float) -> None:
        self.mode, self.since = mode, now

    def finished(self, now: float) -> bool:
        if self.mode is Mode.PASSIVE:
            return self._quits
        damped = self.mode is Mode.DAMPING and now - self.since >= self.times.damping
        return damped and (self.ends or self._quits)


def standing_up(start: Array, crouch: Array, default: Array, passed: float, times: Times) -> Array:
    """(J,) where the joints should be so many seconds after standing up began."""
    if passed < times.crouch:
        return start + (crouch - start) * np.float32(passed / times.crouch)
    share = min(1.0, (passed - times.crouch) / times.rise)
    return crouch + (default - crouch) * np.float32(share)


def held(position: Array, stiffness: Array | float, damping: Array | float) -> Command:
    """Go to a position (J,)."""
    zeros = np.zeros_like(position)
    return Command(position, zeros, zeros, zeros + np.float32(stiffness), zeros + np.float32(damping))


def damped(joints: int, gain: float) -> Command:
    """Resist every movement; never limp."""
    return held(np.zeros(joints, np.float32), 0.0, gain)
