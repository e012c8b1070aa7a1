"""Structs as they lie in the robot's memory, and as they go over the wire."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdpg_runtime.dds import layout
from sdpg_runtime.dds.layout import Coding, Record

MESSAGES = {"LowCmd_": layout.LOW_CMD, "LowState_": layout.LOW_STATE}


def _random(dtype: np.dtype, seed: int = 0) -> Record:
    """Through the wire once: gaps are zero, as in all that is received. Bytes below 128 make no NaN."""
    held = np.random.default_rng(seed).integers(0, 120, dtype.itemsize, dtype=np.uint8).view(dtype).reshape(())
    record = Coding(dtype).decode(Coding(dtype).encode(held))
    assert record is not None
    return record


def test_sizes() -> None:
    assert {name: dtype.itemsize for name, dtype in MESSAGES.items()} == {"LowCmd_": 812, "LowState_": 1180}
    assert layout.MOTOR_CMD.itemsize == 36 and layout.MOTOR_STATE.itemsize == 48
    assert layout.IMU_STATE.itemsize == 56 and layout.BMS_STATE.itemsize == 44


def test_offsets() -> None:
    def offsets(dtype: np.dtype, *names: str) -> list[int]:
        assert dtype.fields is not None
        return [int(dtype.fields[name][1]) for name in names]

    assert offsets(layout.LOW_CMD, "sn", "bandwidth", "motor_cmd", "bms_cmd", "wireless_remote") == [
        4,
        20,
        24,
        744,
        748,
    ]
    assert offsets(layout.LOW_CMD, "led", "fan", "gpio", "reserve", "crc") == [788, 800, 802, 804, 808]
    assert offsets(layout.LOW_STATE, "imu_state", "motor_state", "bms_state", "foot_force") == [24, 80, 1040, 1084]
    assert offsets(layout.LOW_STATE, "tick", "wireless_remote", "adc_reel", "power_v") == [1100, 1104, 1148, 1156]
    assert offsets(layout.LOW_STATE, "fan_frequency", "reserve", "crc") == [1164, 1172, 1176]


@pytest.mark.parametrize("dtype", MESSAGES.values(), ids=MESSAGES)
def test_there_and_back(dtype: np.dtype) -> None:
    record = _random(dtype)
    sent = Coding(dtype).encode(record)
    back = Coding(dtype).decode(sent)
    assert back is not None and back.tobytes() == record.tobytes()


@pytest.mark.parametrize("dtype", MESSAGES.values(), ids=MESSAGES)
def test_what_is_no_message(dtype: np.dtype) -> None:
    sent = Coding(dtype).encode(_random(dtype))
    for wrong in (b"", sent[:-1], sent + b"\0" * 4, b"\0\0" + sent[2:], b"\0\7" + sent[2:]):
        assert Coding(dtype).decode(wrong) is None


def test_sealed() -> None:
    record = layout.seal(_random(layout.LOW_CMD))
    assert record["crc"] == layout.crc_of(record)
    record["motor_cmd"]["q"][3] += 1.0
    assert record["crc"] != layout.crc_of(record)


def need_dds() -> None:
    """Where cyclonedds is not installed there is nothing to try; continuous integration must have it."""
    if os.environ.get("CI"):
        import cyclonedds  # noqa: F401
    pytest.importorskip("cyclonedds", reason="needs cyclonedds: pip install 'sdpg-runtime[dds]'")


def _plain(value: Any) -> Any:
    """A record as objects with attributes, which cyclonedds codes field by field."""
    if value.shape:
        return [_plain(each) for each in value]
    if value.dtype.names is None:
        return value.item()
    return SimpleNamespace(**{name: _plain(value[name]) for name in value.dtype.names})


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("seed", range(3))
def test_same_bytes_as_cyclone_makes(name: str, seed: int) -> None:
    need_dds()
    from sdpg_runtime.dds import messages

    kind, record = getattr(messages, name), _random(MESSAGES[name], seed)
    assert kind.of(record).serialize() == kind.__idl__.serialize(_plain(record))
    assert kind.__idl__.idl_transformed_typename == f"unitree_go::msg::dds_::{name}"
    assert kind.deserialize(kind.of(record).serialize()).record.tobytes() == record.tobytes()


def test_types_are_final() -> None:
    need_dds()
    from sdpg_runtime.dds import messages

    for kind in (messages.LowCmd_, messages.LowState_, messages.Image_):
        kind.__idl__.populate()
        assert kind.__idl__.xcdrv1_head == 0 and kind.__idl__.xcdrv2_head == 6  # of appendable ones it is 8
