"""Commands for a stand-in Go2, as a runtime sends them."""

from __future__ import annotations

import numpy as np

from sdpg.robot.stand_in import StandIn
from sdpg.robot.world import TIMESTEP
from sdpg.tasks import go2
from sdpg_runtime.dds import layout
from sdpg_runtime.dds.layout import Record
from sdpg_runtime.link import Command

ZERO, ONE = np.zeros(12), np.ones(12)
STANCE = np.array(go2.STANCE)


def stand(position: np.ndarray = STANCE) -> Command:
    return Command(position, ZERO, ZERO, 60.0 * ONE, 2.0 * ONE)


def sealed(command: Command, **changes: object) -> Record:
    """A LowCmd; `changes` come before the checksum."""
    record = np.zeros((), layout.LOW_CMD)
    record["head"], record["level_flag"] = layout.HEAD, layout.LOW_LEVEL
    motors = record["motor_cmd"][:12]
    motors["mode"] = layout.SERVO
    for name, values in zip(("q", "dq", "tau", "kp", "kd"), vars(command).values(), strict=True):
        motors[name] = values
    for name, value in changes.items():
        record[name] = value
    return layout.seal(record)


def hold(robot: StandIn, seconds: float, command: Command) -> None:
    for _ in range(round(seconds / TIMESTEP)):
        robot.step(command)


def rise(robot: StandIn) -> None:
    first = robot.position.copy()
    for share in np.linspace(0.0, 1.0, 750):
        robot.step(stand((1.0 - share) * first + share * STANCE))
    hold(robot, 0.5, stand())
