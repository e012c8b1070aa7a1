"""The types that DDS knows messages by: names, fields and extensibility (`final`) are the robot's, or it would not
listen.

Talking to a real robot's firmware is expected to work because of that, and unproven.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cyclonedds.idl import make_idl_struct, types
from cyclonedds.idl.annotations import autoid, final

from sdpg_runtime.dds import layout
from sdpg_runtime.dds.layout import Coding, Record

LOW_CMD, LOW_STATE, IMAGE = "rt/lowcmd", "rt/lowstate", "sdpg/image"

_NUMBERS = {
    "u1": types.uint8, "u2": types.uint16, "u4": types.uint32, "i2": types.int16, "i4": types.int32, "f4": types.float32
}  # fmt: skip


def _declared(name: str, dtype: np.dtype, inner: dict[np.dtype, Any]) -> Any:
    """A struct for DDS with the fields of `dtype`; `inner`: structs that are part of it."""

    def kind(part: np.dtype) -> Any:
        if part.subdtype is not None:
            each, (count,) = part.subdtype
            return types.array[kind(each), count]
        return inner[part] if part in inner else _NUMBERS[part.str[1:]]

    assert dtype.fields is not None
    fields = {field: kind(dtype.fields[field][0]) for field in dtype.names or ()}
    made = make_idl_struct(name, f"unitree_go.msg.dds_.{name}", fields, dataclassify=False)
    return autoid("sequential")(final(made))


def _message(name: str, dtype: np.dtype, inner: dict[np.dtype, Any]) -> Any:
    """A struct that is sent: holds a `record`, or None if the bytes that came make no sense. cyclonedds asks it for
    bytes and gives it bytes; a class of our own above it would become part of the type."""
    kind, coding = _declared(name, dtype, inner), Coding(dtype)

    def serialize(self: Any, buffer: Any = None, endianness: Any = None, use_version_2: bool | None = None) -> bytes:
        return coding.encode(self.record)

    def deserialize(cls: Any, data: bytes, has_header: bool = True, use_version_2: bool | None = None) -> Any:
        return cls.of(coding.decode(data))

    def of(cls: Any, record: Record | None) -> Any:
        message = cls.__new__(cls)
        message.record = record
        return message

    def nothing(cls: Any, data: bytes, has_header: bool = True, use_version_2: bool | None = None) -> Any:
        return cls.of(None)  # what comes when a writer goes

    kind.serialize, kind.deserialize, kind.of = serialize, classmethod(deserialize), classmethod(of)
    kind.deserialize_key = classmethod(nothing)
    return kind


_parts: dict[np.dtype, Any] = {
    dtype: _declared(name, dtype, {})
    for name, dtype in (
        ("BmsCmd_", layout.BMS_CMD),
        ("MotorCmd_", layout.MOTOR_CMD),
        ("IMUState_", layout.IMU_STATE),
        ("MotorState_", layout.MOTOR_STATE),
        ("BmsState_", layout.BMS_STATE),
    )
}
LowCmd_: Any = _message("LowCmd_", layout.LOW_CMD, _parts)
LowState_: Any = _message("LowState_", layout.LOW_STATE, _parts)


Image_: Any = autoid("sequential")(
    final(
        make_idl_struct(
            "Image_",
            "sdpg.msg.dds_.Image_",
            {
                "camera": str,
                "number": types.uint64,  # rises by one with every image
                "time": types.float64,  # when the light came in: CLOCK_MONOTONIC of the camera's machine, seconds
                "shape": types.array[types.uint32, 3],  # channels, height, width
                "dtype": str,  # "uint8", or "float32", little-endian
                "data": types.sequence[types.uint8],
            },
        )
    )
)
"""Ours: one image of a camera, before the policy's pipeline."""
