"""Where the numbers of a run go: metrics.jsonl, one line per iteration, and TensorBoard events of the same."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

Row = Mapping[str, float | int | str | None]
METRICS = "metrics.jsonl"


class RunLog:
    """Writes rows that carry an "iteration". A full disk costs a warning, not the run: rows wait until they fit.

    TensorBoard's own writer works in a thread that prints a traceback when a disk is full, so records are written here,
    as they come.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None], resume_at: int | None = None):
        """`resume_at`: go on in place after this iteration; rows beyond it are dropped."""
        self._path, self._warn, self._warned = folder / METRICS, warn, False
        if resume_at is not None and self._path.exists():
            truncate(self._path, resume_at)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  closed by close()
        self._size = self._file.tell()
        self._waiting: list[bytes] = []
        self._events: RecordWriter | None = None
        self._open_events(folder, resume_at)

    def write(self, row: Row) -> None:
        self._waiting.append(json.dumps({name: _finite(value) for name, value in row.items()}).encode() + b"\n")
        try:
            for line in list(self._waiting):
                self._append(line)
                self._waiting.pop(0)
            self._warned = False
        except OSError as error:
            self._trouble(error)
        self._write_events(row)

    def close(self) -> None:
        for file in (self._file, self._events):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def reopen(self) -> None:
        """After the folder was made anew: the open file is one that nobody sees."""
        self._file.close()
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  closed by close()
        self._size = self._file.tell()

    def _append(self, line: bytes) -> None:
        """The whole line or nothing."""
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(line)

    def _trouble(self, error: OSError) -> None:
        if not self._warned:
            self._warn(f"can't write {self._path}: {error.strerror or error}; the run goes on, free some space")
        self._warned = True

    def _open_events(self, folder: Path, resume_at: int | None) -> None:
        name = f"events.out.tfevents.{time.time():.0f}.{os.getpid()}"
        try:
            self._events = RecordWriter(open(folder / name, "ab", buffering=0))  # noqa: SIM115
            self._event(Event(wall_time=time.time(), file_version="brain.Event:2"))
            if resume_at is not None:  # TensorBoard forgets the steps from here on that an earlier session wrote
                started = SessionLog(status=SessionLog.SessionStatus.START)
                self._event(Event(wall_time=time.time(), step=resume_at + 1, session_log=started))
        except OSError as error:
            self._trouble(error)

    def _event(self, event: Event) -> None:
        if self._events is not None:
            self._events.write(event.SerializeToString())

    def _write_events(self, row: Row) -> None:
        step = int(row["iteration"] or 0)
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name != "iteration" and isinstance(value, int | float) and math.isfinite(value)
        ]
        try:
            self._event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        except OSError as error:  # a torn record ends what readers see of this file: metrics.jsonl has it all
            self._events = None
            self._trouble(error)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def truncate(path: Path, iteration: int) -> None:
    """Drop the rows beyond `iteration`, and a last line that was torn."""
    keep = 0
    with open(path, "rb+") as file:
        for line in file:
            try:
                good = line.endswith(b"\n") and json.loads(line)["iteration"] <= iteration
            except (ValueError, KeyError, TypeError):
                good = False
            if not good:
                break
            keep += len(line)
        file.truncate(keep)


def read(run: Path) -> list[dict[str, Any]]:
    """The rows of a run, oldest first; a torn last line is left out."""
    rows = []
    for line in (run / METRICS).read_text().splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows
