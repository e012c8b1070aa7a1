"""Where the stand-in walks: the scene of the task go2_terrain, whose joints are driven by torques."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import mujoco
import numpy as np
import torch

from sdpg.errors import SdpgError
from sdpg.tasks.go2_terrain import GROUND, Go2Terrain, Go2TerrainCfg, ground
from sdpg.tasks.terrain import Terrain

TIMESTEP = 0.002  # seconds of physics; a command counts from the next one on
PLAIN = "plain"
KINDS = (PLAIN, *dict.fromkeys(GROUND.kinds))
_SIDE = 5  # patches along a side of a course


@dataclass(frozen=True)
class Place:
    """A patch of ground that a robot starts on, in its middle."""

    terrain: str = PLAIN
    level: int = 0
    seed: int = 0
    course: bool = False
    heading: float = 0.0  # degrees to the left of +x

    def rules(self) -> dict[str, bool]:
        return {
            f"terrain must be of {', '.join(KINDS)}, not {self.terrain}": self.terrain in KINDS,
            f"level must be from 0 to {GROUND.levels - 1}, not {self.level}": 0 <= self.level < GROUND.levels,
            f"seed must be at least 0, not {self.seed}": self.seed >= 0,
        }


@dataclass(frozen=True)
class World:
    """A compiled scene, and the task that knows its ground and its cameras."""

    task: Go2Terrain
    model: mujoco.MjModel
    origin: np.ndarray  # (3,) where the robot starts, on the ground
    heading: float  # radians, that it faces then


def make_world(place: Place) -> World:
    for sentence, holds in place.rules().items():
        if not holds:
            raise SdpgError(sentence)
    terrain, level, column = _ground(place)
    task = Go2Terrain(Go2TerrainCfg(terrain_seed=place.seed))
    task.__dict__["ground"] = terrain  # the task looks it up once; this one may be another than training's
    spec = task.scene()
    spec.option.timestep = TIMESTEP
    for actuator in spec.actuators:
        actuator.set_to_motor()  # limits of torque stay
    origin = terrain.spawn(torch.tensor(level), torch.tensor(column)).double().numpy()
    return World(task, spec.compile(), origin, math.radians(place.heading))


def _ground(place: Place) -> tuple[Terrain, int, int]:
    """The map, and the level and column to start on: a plain; the map of training; or a course, the same kind and level
    everywhere, so that one can walk on for minutes."""
    if place.terrain == PLAIN:
        plain = replace(GROUND, kinds=("rough",) * _SIDE, levels=_SIDE, rough=(0.0, 0.0))
        return Terrain(plain), _SIDE // 2, _SIDE // 2
    if not place.course:
        return ground(place.seed), place.level, GROUND.kinds.index(place.terrain)
    values = {name: GROUND.at(getattr(GROUND, name), place.level) for name in ("slope", "rough", "riser")}
    same = {name: (value, value) for name, value in values.items()}
    course = replace(GROUND, seed=place.seed, kinds=(place.terrain,) * _SIDE, levels=_SIDE, **same)  # type: ignore[arg-type]
    return Terrain(course), 0, _SIDE // 2
