"""The robot's end of the wire: LowCmd in, LowState out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np

from sdpg.errors import SdpgError
from sdpg.robot.disturb import NONE, Disturbance, Line
from sdpg_runtime.dds import layout
from sdpg_runtime.dds.layout import Record
from sdpg_runtime.link import RobotState

_KEPT = 64  # commands between two polls


class Wire(Protocol):
    def commands(self, now: float) -> list[Record | None]:
        """That arrived since the last call; None: bytes that are no command."""

    def publish(self, state: Record, now: float) -> None: ...


class DdsWire:
    """Both directions are disturbed alike, but not at the same messages."""

    def __init__(self, domain: int, interface: str, disturbance: Disturbance = NONE):
        from sdpg_runtime.dds import messages
        from sdpg_runtime.dds.node import Node, taken

        try:
            self._node = Node(domain, interface)
        except Exception as error:  # the library has one of its own, and says little
            raise SdpgError(
                f"DDS can't begin on the interface '{interface}', domain {domain}; is there such an interface?"
            ) from error
        self._taken, self._message = taken, messages.LowState_
        self._reader = self._node.reader(messages.LOW_CMD, messages.LowCmd_, _KEPT)
        self._writer = self._node.writer(messages.LOW_STATE, messages.LowState_)
        self.inward = Line(disturbance)
        self.outward = Line(replace(disturbance, seed=disturbance.seed + 1))

    def commands(self, now: float) -> list[Record | None]:
        came: list[Record | None] = []
        messages = self._taken(self._reader, _KEPT)
        if messages and self.inward.begins == math.inf:
            self.inward.begins = self.outward.begins = now + self.inward.disturbance.after
        for message in messages:
            if message.record is None:
                came.append(None)
            else:
                self.inward.put(message.record, now)
        return came + self.inward.get(now)

    def publish(self, state: Record, now: float) -> None:
        self.outward.put(state, now)
        for record in self.outward.get(now):
            self._writer.write(self._message.of(record))

    def close(self) -> None:
        self._node.close()


def state_record(reading: RobotState) -> Record:
    """A LowState. What the stand-in does not have (forces of feet, temperatures, battery, remote) is 0."""
    record = np.zeros((), layout.LOW_STATE)
    record["head"], record["level_flag"], record["tick"] = layout.HEAD, layout.LOW_LEVEL, reading.tick
    imu, motors = record["imu_state"], record["motor_state"][: layout.JOINTS]
    imu["quaternion"], imu["gyroscope"] = reading.quaternion, reading.gyroscope
    imu["accelerometer"], imu["rpy"] = reading.accelerometer, _roll_pitch_yaw(*reading.quaternion.tolist())
    motors["mode"] = layout.SERVO
    motors["q"] = motors["q_raw"] = reading.position
    motors["dq"] = motors["dq_raw"] = reading.velocity
    motors["tau_est"] = reading.torque
    return layout.seal(record)


def _roll_pitch_yaw(w: float, x: float, y: float, z: float) -> tuple[float, float, float]:
    return (
        math.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y)),
        math.asin(min(max(2.0 * (w * y - z * x), -1.0), 1.0)),
        math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z)),
    )
