"""Where the velocity command comes from: flags, a script, or the remote. Forward, left (m/s), turn (rad/s)."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdpg_runtime.errors import Refused
from sdpg_runtime.link import RobotState

Array = np.ndarray
Velocity = Callable[[float, RobotState], Array]
"""Seconds since the policy began, and what was measured -> (3,) float32."""


def constant(forward: float, left: float, turn: float) -> Velocity:
    command = np.array((forward, left, turn), np.float32)
    if not np.isfinite(command).all():
        raise Refused("--velocity and --turn must be numbers")
    return lambda passed, state: command


def script(path: Path | str) -> Velocity:
    """[{"seconds": 2, "velocity": [0.5, 0], "turn": 0}, ...]; after the last segment: stand still."""
    try:
        segments = [_segment(each) for each in json.loads(Path(path).read_bytes())]
    except OSError as error:
        raise Refused(f"can't read '{path}': {error.strerror}; give another --script") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        example = '[{"seconds": 2, "velocity": [0.5, 0], "turn": 0}]'
        raise Refused(f"'{path}' is no script of velocities; write it like {example}") from error
    return _timed(segments)


def _segment(told: dict[str, Any]) -> tuple[float, Array]:
    seconds, (forward, left) = float(told["seconds"]), told["velocity"]
    command = np.array((forward, left, told.get("turn", 0.0)), np.float32)
    if not (np.isfinite(command).all() and math.isfinite(seconds) and seconds > 0.0):
        raise ValueError("not finite")
    return seconds, command


def _timed(segments: Sequence[tuple[float, Array]]) -> Velocity:
    ends = np.cumsum([seconds for seconds, _ in segments])
    commands = [*(command for _, command in segments), np.zeros(3, np.float32)]
    return lambda passed, state: commands[int(np.searchsorted(ends, passed, side="right"))]


def remote(speed: float = 1.0, turn: float = 1.0) -> Velocity:
    """Sticks of Unitree's controller: left one forward and sideways, right one turns; these numbers at full stick."""
    scale = np.array((speed, speed, turn), np.float32)

    def told(passed: float, state: RobotState) -> Array:
        if len(state.remote) < 24:
            return np.zeros(3, np.float32)
        lx, rx, _, _, ly = struct.unpack_from("<5f", state.remote, 4)
        sticks = np.array((ly, -lx, -rx), np.float32)
        return scale * np.nan_to_num(sticks, posinf=0.0, neginf=0.0).clip(-1.0, 1.0)

    return told
