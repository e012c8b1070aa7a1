"""What a bad wire does to messages: they come late, at odd times, broken, or not at all.

What happens to a message is a function of a seed and its number.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sdpg_runtime.dds.layout import Record


@dataclass(frozen=True)
class Disturbance:
    latency: float = 0.0  # milliseconds
    jitter: float = 0.0  # milliseconds more, at most
    loss: float = 0.0  # share of the messages
    corrupt: float = 0.0  # share of the messages in which a bit is turned over
    seed: int = 0
    after: float = 0.0  # seconds of a sound wire, from the first command on; 0: it is never sound


NONE = Disturbance()


class Fate(NamedTuple):
    lost: bool
    delay: float  # seconds
    bit: int | None  # that is turned over


def fate(disturbance: Disturbance, number: int, bits: int) -> Fate:
    """Of the message with this number, which has so many bits."""
    lost, late, broken, where = np.random.default_rng((disturbance.seed, number)).random(4)
    bit = int(where * bits) if broken < disturbance.corrupt else None
    return Fate(lost < disturbance.loss, 1e-3 * (disturbance.latency + late * disturbance.jitter), bit)


def broken(record: Record, bit: int) -> Record:
    held = np.frombuffer(record.tobytes(), np.uint8).copy()
    held[bit // 8] ^= 1 << bit % 8
    return held.view(record.dtype).reshape(())


class Line:
    """One direction of the wire. Messages do not overtake each other."""

    def __init__(self, disturbance: Disturbance):
        self.disturbance = disturbance
        self.lost = self.corrupted = self.count = 0
        self.begins = math.inf if disturbance.after else -math.inf  # the time from which on it is bad
        self._quiet = not (disturbance.latency or disturbance.jitter or disturbance.loss or disturbance.corrupt)
        self._on_the_way: deque[tuple[float, Record]] = deque()

    def put(self, record: Record, now: float) -> None:
        if self._quiet or now < self.begins:
            self._on_the_way.append((now, record))
            return
        lost, delay, bit = fate(self.disturbance, self.count, 8 * record.dtype.itemsize)
        self.count += 1
        if lost:
            self.lost += 1
            return
        if bit is not None:
            self.corrupted += 1
            record = broken(record, bit)
        last = self._on_the_way[-1][0] if self._on_the_way else now
        self._on_the_way.append((max(last, now + delay), record))

    def get(self, now: float) -> list[Record]:
        """Those that have arrived."""
        arrived = []
        while self._on_the_way and self._on_the_way[0][0] <= now:
            arrived.append(self._on_the_way.popleft()[1])
        return arrived
