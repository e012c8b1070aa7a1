"""What one may choose: limits, times and gains, each with a default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from sdpg_runtime.errors import Refused
from sdpg_runtime.guards import Limits
from sdpg_runtime.machine import Gains, Times

Numbers = TypeVar("Numbers", Limits, Times)

SHORTEST = 0.5  # seconds of standing up and of damping: less would be a jump


@dataclass(frozen=True)
class Options:
    limits: Limits = field(default_factory=Limits)
    times: Times = field(default_factory=Times)
    gains: Gains = field(default_factory=Gains)
    publish: bool = True  # False: a dry run
    auto: bool = False  # goes through the states by itself, and ends after damping
    seconds: float = math.inf  # of the policy, then damping and the end


def changed(numbers: Numbers, changes: list[str], option: str) -> Numbers:
    """From "name=value", of the command line."""
    kinds = {each.name: type(getattr(numbers, each.name)) for each in fields(numbers)}
    for change in changes:
        name, _, value = change.partition("=")
        try:
            new = kinds[name](value)
        except (KeyError, ValueError) as error:
            raise Refused(f"{option} {change} is not NAME=VALUE with one of {', '.join(kinds)}") from error
        if not 0 <= new < math.inf:
            raise Refused(f"{option} {change} must be at least 0 and finite")
        numbers = replace(numbers, **{name: new})
    return numbers


def times(changes: list[str]) -> Times:
    made = changed(Times(), changes, "--time")
    if short := [name for name in ("crouch", "rise", "damping") if getattr(made, name) < SHORTEST]:
        raise Refused(f"--time {short[0]} must be at least {SHORTEST} s")
    return made
