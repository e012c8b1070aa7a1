"""Deadlines and how well they are kept."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Pacer:
    """Ticks at absolute times, one period apart: an error of one sleep does not add to the next."""

    def __init__(self, period: float, clock: Clock = time.monotonic, sleep: Sleep = time.sleep):
        self.period, self._clock, self._sleep = period, clock, sleep
        self.due = clock()  # when the present tick had to begin
        self.missed = 0  # deadlines, in all
        self.in_a_row = 0  # ticks that were not done in time

    def wait(self) -> None:
        """Until the next deadline. Those that are over are left out, not made up for: a tick that comes late is the
        only one of its period."""
        over = int((self._clock() - self.due) / self.period)
        if over >= 1:
            self.due += over * self.period
            self.missed += over
            self.in_a_row += 1
            return
        self.in_a_row = 0
        self.due += self.period
        self._sleep(max(0.0, self.due - self._clock()))


class Histogram:
    """Of times, in bins of 0.05 ms up to a second: bounded however long it runs."""

    BIN, BINS = 5e-5, 20_000

    def __init__(self) -> None:
        self._counts = np.zeros(self.BINS + 1, np.int64)
        self.count, self.max = 0, 0.0

    def add(self, seconds: float) -> None:
        self._counts[min(max(int(seconds / self.BIN), 0), self.BINS) if seconds < 1e6 else self.BINS] += 1
        self.count += 1
        self.max = max(self.max, seconds)

    def quantile(self, q: float) -> float:
        """Seconds; the upper end of its bin."""
        if self.count == 0:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._counts), q * self.count))
        return min(self.max, (place + 1) * self.BIN)

    def milliseconds(self) -> dict[str, float]:
        numbers = {"p50": self.quantile(0.5), "p99": self.quantile(0.99), "max": self.max}
        return {name: round(1000.0 * value, 3) for name, value in numbers.items()}
