"""A link over Unitree's own Python SDK, if the user has installed it (`unitree_sdk2py`, on the robot's computer).

Unproven: nobody has run it on hardware, nor with the SDK; it is written after the SDK's public examples. The SDK does
not tell how many others publish, and brings no images: `images` has a function for each camera. Release the robot's own
controller (sport mode) before you send anything.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdpg_runtime.dds.layout import HEAD, JOINTS, LOW_LEVEL, SERVO
from sdpg_runtime.errors import Refused
from sdpg_runtime.link import Command, Dropped, Image, RobotState

Images = Mapping[str, Callable[[], Image | None]]


class UnitreeLink:
    def __init__(self, domain: int, interface: str, images: Images | None = None):
        channel, default, messages, crc = _sdk()
        self.dropped = Dropped()
        self._images = dict(images or {})
        self._state: RobotState | None = None
        channel.ChannelFactoryInitialize(domain, interface)
        self._crc, self._message = crc.CRC(), _empty(default.unitree_go_msg_dds__LowCmd_())
        self._publisher = channel.ChannelPublisher("rt/lowcmd", messages.LowCmd_)
        self._publisher.Init()
        self._subscriber = channel.ChannelSubscriber("rt/lowstate", messages.LowState_)
        self._subscriber.Init(self._receive, 10)

    def _receive(self, message: Any) -> None:
        """On the SDK's thread."""
        if message.crc != self._crc.Crc(message):
            self.dropped.crc += 1
            return
        motors, imu = message.motor_state[:JOINTS], message.imu_state
        self._state = RobotState(
            time=time.monotonic(),
            tick=int(message.tick),
            quaternion=np.array(imu.quaternion, np.float32),
            gyroscope=np.array(imu.gyroscope, np.float32),
            accelerometer=np.array(imu.accelerometer, np.float32),
            position=np.array([motor.q for motor in motors], np.float32),
            velocity=np.array([motor.dq for motor in motors], np.float32),
            torque=np.array([motor.tau_est for motor in motors], np.float32),
            remote=bytes(message.wireless_remote),
        )

    def state(self) -> RobotState | None:
        return self._state

    def image(self, camera: str) -> Image | None:
        return self._images[camera]() if camera in self._images else None

    def send(self, command: Command) -> None:
        for i in range(JOINTS):
            motor = self._message.motor_cmd[i]
            motor.q, motor.dq, motor.tau = (
                float(each[i]) for each in (command.position, command.velocity, command.torque)
            )
            motor.kp, motor.kd = float(command.stiffness[i]), float(command.damping[i])
        self._message.crc = self._crc.Crc(self._message)
        self._publisher.Write(self._message)

    def publishers(self) -> int:
        return 0  # the SDK does not tell

    def close(self) -> None:
        self._subscriber.Close()
        self._publisher.Close()


def _sdk() -> tuple[Any, Any, Any, Any]:
    names = "core.channel", "idl.default", "idl.unitree_go.msg.dds_", "utils.crc"
    try:
        channel, default, messages, crc = (importlib.import_module(f"unitree_sdk2py.{name}") for name in names)
    except ImportError as error:
        raise Refused(
            f"--link unitree needs the SDK ({error}); install unitree_sdk2py as its authors say, or take --link dds"
        ) from error
    return channel, default, messages, crc


def _empty(message: Any) -> Any:
    message.head[0], message.head[1] = HEAD
    message.level_flag, message.gpio = LOW_LEVEL, 0
    for motor in message.motor_cmd:
        motor.mode = SERVO
    return message
