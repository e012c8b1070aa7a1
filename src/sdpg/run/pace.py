"""Predicts how many iterations a run that is limited by minutes will make."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

ENOUGH = 10  # iterations that are timed
FEW, SHARE = 2, 0.1  # so few, if they took this share of the time


class Pace:
    """Times the first iterations; it is asked before every one until it has an answer."""

    def __init__(self, minutes: float, most: int):
        self.budget, self.most = 60.0 * minutes, most
        self.marks: list[float] = []

    def iterations(self, iteration: int, seconds: float) -> int | None:
        """How many iterations the run will have made when its time is up, at most `most`; None while that is unknown.

        So far it has made `iteration` iterations in `seconds`, earlier sessions included."""
        self.marks.append(seconds)
        timed = [end - start for start, end in pairwise(self.marks[1:])]  # the first one of a session fills caches
        if len(timed) < (ENOUGH if sum(timed) < SHARE * self.budget else FEW):
            return None
        left = math.ceil(max(0.0, self.budget - seconds) / max(median(timed), 1e-9))
        return min(self.most, iteration + max(1, left))
