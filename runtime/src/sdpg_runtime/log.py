"""Every tick on disk: what was measured, what the policy saw and did, what was sent, and why.

A file is a row of records, only ever appended: kind (1 byte), length and CRC-32 of the payload (little-endian uint32
each), payload. A crash costs the end of the last record, and nothing before it.

H   JSON, first: format, version, hashes of the policy and its contract, names of joints and cameras, sizes
I   an image, once, before the first tick that used it: which camera (uint32), pad (uint32), number (int64), time
    (float64), pixels
T   a tick: one element of `tick_dtype`
"""

from __future__ import annotations

import json
import queue
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdpg_runtime.contract import Camera, Folder
from sdpg_runtime.errors import Refused
from sdpg_runtime.link import Image, RobotState
from sdpg_runtime.robot import Robot

Array = np.ndarray

MEASURED = "quaternion gyroscope accelerometer position velocity torque".split()
FORMAT, VERSION = "sdpg-ticks", 1
_HEAD, _IMAGE = struct.Struct("<cII"), struct.Struct("<IIqd")
_MOST = 1 << 26  # bytes of a record
_WAITING = 256  # records that may wait for the disk


def tick_dtype(joints: int, actions: int, cameras: int) -> np.dtype[Any]:
    """Floats are float32, as the policy computes, but for times (seconds of the monotonic clock). Measurements and what
    was sent are in the robot's order of joints, action and targets in the policy's; zeros where there is none."""
    of_joints = ((joints,),)
    names = "position velocity torque sent_position sent_stiffness sent_damping".split()
    return np.dtype(
        [
            ("number", "<i8"),
            ("time", "<f8"),  # when the tick began
            ("took", "<f8"),  # until its command was ready
            ("mode", "u1"),
            ("measured", "u1"),  # whether there was a state
            ("begins", "u1"),  # the policy's first tick
            ("acted", "u1"),  # whether the policy was asked
            ("sent", "u1"),  # whether there was a command
            ("reason", "S160"),
            ("state_time", "<f8"),
            ("state_tick", "<i8"),
            ("quaternion", "<f4", (4,)),
            ("gyroscope", "<f4", (3,)),
            ("accelerometer", "<f4", (3,)),
            *((name, "<f4", *of_joints) for name in names),
            ("remote", "V40"),
            ("image_number", "<i8", (max(cameras, 1),)),
            ("image_time", "<f8", (max(cameras, 1),)),
            ("command", "<f4", (3,)),
            ("inputs", "V16"),  # hash of what the graph was given
            ("action", "<f4", (actions,)),
            ("targets", "<f4", (actions,)),
        ]
    )


class Writer:
    """Writes on its own thread: a slow disk costs records (`lost` counts them), never a deadline."""

    def __init__(self, path: Path | str, folder: Folder, robot: Robot):
        cameras = folder.contract.cameras
        self.dtype = tick_dtype(len(robot.joints), len(folder.contract.joints.names), len(cameras))
        self.lost, self.trouble, self.path = 0, "", str(path)
        self._cameras = [camera.camera for camera in cameras]
        self._written: dict[str, Image] = {}
        try:
            self._file = Path(path).open("xb")  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise Refused(f"can't begin a log at '{path}': {error.strerror}; give another --log") from error
        self._queue: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._put(b"H", json.dumps(_header(folder, robot, cameras)).encode())
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def tick(self, row: Array, used: Mapping[str, Image]) -> None:
        """`row`: () of the dtype; `used`: images that the policy saw in it, by camera."""
        for camera, image in used.items():
            if self._written.get(camera) is not image:
                self._written[camera] = image
                head = _IMAGE.pack(self._cameras.index(camera), 0, image.number, image.time)
                self._put(b"I", head + image.pixels.tobytes())
        self._put(b"T", row.tobytes())

    def _put(self, kind: bytes, payload: bytes) -> None:
        try:
            self._queue.put_nowait(_HEAD.pack(kind, len(payload), zlib.crc32(payload)) + payload)
        except queue.Full:
            self.lost += 1

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            if self.trouble:
                self.lost += 1
                continue
            try:
                self._file.write(record)
                if self._queue.empty():
                    self._file.flush()
            except OSError as error:
                self.trouble = f"the log ended early: {error.strerror}"

    def close(self) -> None:
        try:
            self._queue.put(None, timeout=5.0)
            self._thread.join(5.0)
            self._file.close()
        except (queue.Full, OSError) as error:
            self.trouble = self.trouble or f"the log ended early: {error}"


def _header(folder: Folder, robot: Robot, cameras: Sequence[Camera]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "sha256": dict(folder.sha256),
        "robot": robot.name,
        "joints": list(robot.joints),
        "actions": list(folder.contract.joints.names),
        "cameras": [{"name": c.camera, "shape": list(c.image_shape), "dtype": c.image_dtype} for c in cameras],
    }


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    row: Array  # () of the dtype
    images: Mapping[str, Image]  # the newest of each camera


class Log:
    """`header`, then `ticks()` once; `damage` tells afterwards why reading ended early, if it did."""

    def __init__(self, path: Path | str):
        self.damage, self.cut = "", False
        try:
            self._file = Path(path).open("rb")  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise Refused(f"can't read '{path}': {error.strerror}; give a log of sdpg-run") from error
        self.header = self._read_header(str(path))
        self._dtype = tick_dtype(len(self.header["joints"]), len(self.header["actions"]), len(self.header["cameras"]))

    def _read_header(self, path: str) -> dict[str, Any]:
        kind, payload = next(self._records(), (b"", b""))
        try:
            header = json.loads(payload) if kind == b"H" else None
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise Refused(f"'{path}' is no log of sdpg-run")
        if header.get("version") != VERSION:
            raise Refused(f"'{path}' has version {header.get('version')!r}, this sdpg-run reads {VERSION}")
        names = [header.get("joints"), header.get("actions"), header.get("cameras")]
        if not all(isinstance(each, list) and len(each) <= 256 for each in names):
            raise Refused(f"'{path}' has a header that is not complete")
        return header

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        while head := self._file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                self.damage, self.cut = "the last record is cut off", True
                return
            kind, length, crc = _HEAD.unpack(head)
            if length > _MOST:
                self.damage = "a record's length is wrong"
                return
            payload = self._file.read(length)
            if len(payload) < length:
                self.damage, self.cut = "the last record is cut off", True
                return
            if zlib.crc32(payload) != crc:
                self.damage = "a record's CRC is wrong"
                return
            yield kind, payload

    def ticks(self) -> Iterator[Tick]:
        images: dict[str, Image] = {}
        for kind, payload in self._records():
            if kind == b"T" and len(payload) == self._dtype.itemsize:
                yield Tick(np.frombuffer(payload, self._dtype)[0], dict(images))
            elif kind == b"I" and (image := self._image(payload)) is not None:
                images[image[0]] = image[1]
            else:
                self.damage = f"a record of kind {kind!r} does not fit"
                return

    def _image(self, payload: bytes) -> tuple[str, Image] | None:
        if len(payload) < _IMAGE.size:
            return None
        which, _, number, time = _IMAGE.unpack_from(payload)
        try:
            camera = self.header["cameras"][which]
            pixels = np.frombuffer(payload, camera["dtype"], offset=_IMAGE.size).reshape(camera["shape"])
        except (LookupError, ValueError, TypeError):
            return None
        return camera["name"], Image(time, number, pixels)

    def close(self) -> None:
        self._file.close()


def state_of(row: Array) -> RobotState:
    """As it was measured."""
    parts: dict[str, Any] = {name: row[name] for name in MEASURED}
    return RobotState(float(row["state_time"]), int(row["state_tick"]), **parts, remote=row["remote"].tobytes())
