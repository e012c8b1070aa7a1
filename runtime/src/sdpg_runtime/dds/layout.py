"""The Go2's structs, written down once: as they lie in the robot's memory, which is what its checksum is of.

A message is held as one numpy record in that layout. On the wire (CDR) the same numbers stand in the same order with
other gaps, so that a record goes there and back by one gather of bytes: 10 microseconds, where going field by field
takes half a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdpg_runtime.dds.crc import crc_of_words

Record = np.ndarray
"""Of shape (), with the fields of a struct."""


def _struct(*fields: tuple[Any, ...]) -> np.dtype:
    return np.dtype([*fields], align=True)  # gaps as a C compiler makes them


BMS_CMD = _struct(("off", "u1"), ("reserve", "u1", 3))
MOTOR_CMD = _struct(
    ("mode", "u1"), ("q", "<f4"), ("dq", "<f4"), ("tau", "<f4"), ("kp", "<f4"), ("kd", "<f4"), ("reserve", "<u4", 3)
)
HEADER = (
    ("head", "u1", 2),
    ("level_flag", "u1"),
    ("frame_reserve", "u1"),
    ("sn", "<u4", 2),
    ("version", "<u4", 2),
    ("bandwidth", "<u2"),
)
LOW_CMD = _struct(
    *HEADER,
    ("motor_cmd", MOTOR_CMD, 20),
    ("bms_cmd", BMS_CMD),
    ("wireless_remote", "u1", 40),
    ("led", "u1", 12),
    ("fan", "u1", 2),
    ("gpio", "u1"),
    ("reserve", "<u4"),
    ("crc", "<u4"),
)
IMU_STATE = _struct(
    ("quaternion", "<f4", 4), ("gyroscope", "<f4", 3), ("accelerometer", "<f4", 3), ("rpy", "<f4", 3),
    ("temperature", "u1"),
)  # fmt: skip
MOTOR_STATE = _struct(
    ("mode", "u1"), ("q", "<f4"), ("dq", "<f4"), ("ddq", "<f4"), ("tau_est", "<f4"),
    ("q_raw", "<f4"), ("dq_raw", "<f4"), ("ddq_raw", "<f4"),
    ("temperature", "u1"), ("lost", "<u4"), ("reserve", "<u4", 2),
)  # fmt: skip
BMS_STATE = _struct(
    ("version_high", "u1"), ("version_low", "u1"), ("status", "u1"), ("soc", "u1"), ("current", "<i4"),
    ("cycle", "<u2"), ("bq_ntc", "u1", 2), ("mcu_ntc", "u1", 2), ("cell_vol", "<u2", 15),
)  # fmt: skip
LOW_STATE = _struct(
    *HEADER,
    ("imu_state", IMU_STATE),
    ("motor_state", MOTOR_STATE, 20),
    ("bms_state", BMS_STATE),
    ("foot_force", "<i2", 4),
    ("foot_force_est", "<i2", 4),
    ("tick", "<u4"),
    ("wireless_remote", "u1", 40),
    ("bit_flag", "u1"),
    ("adc_reel", "<f4"),
    ("temperature_ntc1", "u1"),
    ("temperature_ntc2", "u1"),
    ("power_v", "<f4"),
    ("power_a", "<f4"),
    ("fan_frequency", "<u2", 4),
    ("reserve", "<u4"),
    ("crc", "<u4"),
)

HEAD, LOW_LEVEL, SERVO = (0xFE, 0xEF), 0xFF, 0x01  # of `head`, `level_flag`, and a motor's `mode`
JOINTS = 12  # of the Go2: the first of the 20 slots


def crc_of(record: Record) -> int:
    """Of all but its last word, where the checksum itself is."""
    return crc_of_words(record.tobytes()[:-4])


def seal(record: Record) -> Record:
    record["crc"] = crc_of(record)
    return record


_CDR = b"\x00\x01\x00\x00"  # what bytes on the wire begin with: plain CDR, version 1, little-endian


@dataclass(frozen=True)
class Coding:
    """Of a struct: record -> bytes on the wire, and back."""

    dtype: np.dtype
    places: np.ndarray = field(init=False)  # of each byte on the wire: where it is in the record, or its size in gaps

    def __post_init__(self) -> None:
        places: list[int] = []
        _walk(self.dtype, 0, places, self.dtype.itemsize)
        object.__setattr__(self, "places", np.array(places))

    def encode(self, record: Record) -> bytes:
        held = np.frombuffer(record.tobytes() + b"\0", np.uint8)  # the last one is what gaps get
        payload: bytes = held[self.places].tobytes()
        return _CDR + payload

    def decode(self, data: bytes) -> Record | None:
        """None: it is no such message, or coded in another way than all that is known to talk to a Go2."""
        size = len(self.places)
        if data[:2] != _CDR[:2] or not size <= len(data) - 4 < size + 4:  # the end may be filled up to whole words
            return None
        held = np.zeros(self.dtype.itemsize + 1, np.uint8)
        held[self.places] = np.frombuffer(data, np.uint8, size, 4)
        return held[:-1].view(self.dtype).reshape(())


def _walk(dtype: np.dtype, offset: int, places: list[int], gap: int) -> None:
    """Append the bytes of a struct that is at `offset`: numbers on the wire are aligned to their size, structs are
    not."""
    if dtype.subdtype is not None:
        each, shape = dtype.subdtype
        for i in range(int(np.prod(shape))):
            _walk(each, offset + i * each.itemsize, places, gap)
    elif dtype.fields is not None:
        for name in dtype.names or ():
            part, where = dtype.fields[name][:2]
            _walk(part, offset + where, places, gap)
    else:
        places.extend([gap] * (-len(places) % dtype.itemsize))
        places.extend(range(offset, offset + dtype.itemsize))
