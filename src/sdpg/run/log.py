"""Where the numbers of a run go: metrics.jsonl, one line per iteration; the same as TensorBoard events; and whatever
other sinks the run was given (trackers.py has some)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

Row = Mapping[str, float | int | str | None]
METRICS = "metrics.jsonl"


class Sink(Protocol):
    """Where rows go. A row carries its "iteration"; those of a run come in order."""

    def write(self, row: Row) -> None:
        """May raise OSError, and must then be ready for the next row."""

    def close(self) -> None: ...


class RunLog:
    """A row into every sink of a run. A full disk costs a warning, not the run: rows wait until they fit."""

    def __init__(
        self, folder: Path, warn: Callable[[str], None], resume_at: int | None = None, sinks: Iterable[Sink] = ()
    ):
        """`resume_at`: go on in place after this iteration; rows beyond it are dropped."""
        self._folder, self._warn, self._warned = folder, warn, False
        if resume_at is not None and (folder / METRICS).exists():
            spoiled = truncate(folder / METRICS, resume_at)
            if spoiled:
                warn(f"{folder / METRICS}: lines that can't be read as rows: {spoiled}; all others are kept")
        self._sinks: list[Sink] = [JsonLines(folder / METRICS)]
        try:
            self._sinks.append(Events(folder, resume_at))
        except OSError as error:
            self._trouble(error)
        self._sinks += sinks

    def write(self, row: Row) -> None:
        errors = []
        for sink in self._sinks:
            try:
                sink.write(row)
            except OSError as error:
                errors.append(error)
        if errors:
            self._trouble(errors[0])
        else:
            self._warned = False

    def close(self) -> None:
        for sink in self._sinks:
            with contextlib.suppress(OSError):
                sink.close()

    def _trouble(self, error: OSError) -> None:
        if not self._warned:
            where = self._folder / METRICS
            self._warn(f"can't write {where}: {error.strerror or error}; the run goes on, free some space")
        self._warned = True


class JsonLines:
    """metrics.jsonl. Rows that can't be written wait for the next call; the file never holds a part of one."""

    def __init__(self, path: Path):
        self._path, self._waiting = path, list[bytes]()
        self._open()

    def _open(self) -> None:
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  closed by close()
        self._size = self._file.tell()

    def write(self, row: Row) -> None:
        self._waiting.append(json.dumps({name: _finite(value) for name, value in row.items()}).encode() + b"\n")
        if not self._path.exists():  # removed: what is open is a file that nobody sees
            self._file.close()
            self._open()
        for line in list(self._waiting):
            self._append(line)
            self._waiting.pop(0)

    def close(self) -> None:
        self._file.close()

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


class Events:
    """TensorBoard's file. Records are written here, as they come: TensorBoard's own writer works in a thread, which
    prints a traceback when a disk is full."""

    def __init__(self, folder: Path, resume_at: int | None = None):
        name = f"events.out.tfevents.{time.time():.0f}.{os.getpid()}"
        self._records: RecordWriter | None = RecordWriter(open(folder / name, "ab", buffering=0))  # noqa: SIM115
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_at is not None:  # TensorBoard forgets the steps from here on that an earlier session wrote
            started = SessionLog(status=SessionLog.SessionStatus.START)
            self._append(Event(wall_time=time.time(), step=resume_at + 1, session_log=started))

    def write(self, row: Row) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(row).items()]
        self._append(Event(wall_time=time.time(), step=int(row["iteration"] or 0), summary=Summary(value=values)))

    def close(self) -> None:
        if self._records is not None:
            self._records.close()

    def _append(self, event: Event) -> None:
        if self._records is None:
            return
        try:
            self._records.write(event.SerializeToString())
        except OSError:  # a torn record ends what readers see of this file: metrics.jsonl has it all
            self._records = None
            raise


def numbers(row: Row) -> dict[str, float]:
    """What can be plotted over the iterations."""
    return {
        name: value
        for name, value in row.items()
        if name != "iteration" and isinstance(value, int | float) and math.isfinite(value)
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def truncate(path: Path, iteration: int) -> int:
    """Drop the rows beyond `iteration`, and a last line that was torn. Returns how many rows are missing.

    A row is missing if its line can't be read. Such lines stay where they are: readers leave them out."""
    keep = last = spoiled = 0
    with open(path, "rb+") as file:
        for line in file:
            row = _row(line)
            if not line.endswith(b"\n"):
                spoiled += last < iteration  # else it was the next one, which is computed anew
                break
            if row is not None and row["iteration"] > iteration:
                break
            keep += len(line)
            last, spoiled = (last, spoiled + 1) if row is None else (row["iteration"], spoiled)
        file.truncate(keep)
    return spoiled


def read(run: Path) -> list[dict[str, Any]]:
    """The rows of a run, oldest first; lines that can't be read, such as a torn one, are left out."""
    rows = map(_row, (run / METRICS).read_bytes().splitlines())
    return [row for row in rows if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """The row of a line of metrics.jsonl; None if the line can't be read."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("iteration")) is int else None
