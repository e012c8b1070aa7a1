"""What the runtime knows of a robot: the names and the order of its joints, and how it gets up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Robot:
    name: str
    joints: tuple[str, ...]  # in the order of the wire; contracts name actuators or joints like this
    crouch: tuple[float, ...]  # radians: legs folded, where standing up begins


_LEGS, _JOINTS = ("FR", "FL", "RR", "RL"), ("hip", "thigh", "calf")

GO2 = Robot("Go2", tuple(f"{leg}_{joint}" for leg in _LEGS for joint in _JOINTS), (0.0, 1.36, -2.65) * 4)
