from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sdpg.run import log
from sdpg.run.log import RunLog


def _write(folder: Path, iterations: range, resume_at: int | None = None) -> list[str]:
    warnings: list[str] = []
    sink = RunLog(folder, warnings.append, resume_at)
    for i in iterations:
        sink.write({"iteration": i, "Train/mean_reward": float(i), "note": "text", "Train/nothing": math.nan})
    sink.close()
    return warnings


def test_rows_are_json_and_nan_is_null(tmp_path: Path) -> None:
    _write(tmp_path, range(1, 4))
    rows = log.read(tmp_path)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[0] == {"iteration": 1, "Train/mean_reward": 1.0, "note": "text", "Train/nothing": None}


def test_a_resumed_log_goes_on_in_place(tmp_path: Path) -> None:
    _write(tmp_path, range(1, 8))
    with open(tmp_path / log.METRICS, "ab") as file:
        file.write(b'{"iteration": 8, "torn')
    _write(tmp_path, range(5, 7), resume_at=4)
    assert [row["iteration"] for row in log.read(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_spoiled_line_costs_its_row_alone(tmp_path: Path) -> None:
    assert not _write(tmp_path, range(1, 7))
    lines = (tmp_path / log.METRICS).read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:9] + b"\n"
    (tmp_path / log.METRICS).write_bytes(b"".join(lines))
    (warning,) = _write(tmp_path, range(7, 9), resume_at=6)
    assert "can't be read as rows: 1; all others are kept" in warning
    assert [row["iteration"] for row in log.read(tmp_path)] == [1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("resume_at", "missing"), [(6, 1), (5, 0)])
def test_a_torn_end_is_told_if_its_row_is_not_computed_anew(resume_at: int, missing: int, tmp_path: Path) -> None:
    _write(tmp_path, range(1, 7))
    data = (tmp_path / log.METRICS).read_bytes()
    (tmp_path / log.METRICS).write_bytes(data[:-5])
    assert len(_write(tmp_path, range(resume_at + 1, 8), resume_at)) == missing
    assert [row["iteration"] for row in log.read(tmp_path)] == [1, 2, 3, 4, 5, *range(resume_at + 1, 8)]


def test_tensorboard_reads_the_events_and_forgets_what_a_resume_overtook(tmp_path: Path) -> None:
    _write(tmp_path, range(1, 8))
    first = next(tmp_path.glob("events*"))
    first.rename(tmp_path / "events.out.tfevents.1.1")  # files are read in the order of their names
    _write(tmp_path, range(5, 7), resume_at=4)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["Train/mean_reward"]
    assert [scalar.step for scalar in events.Scalars("Train/mean_reward")] == [1, 2, 3, 4, 5, 6]


class FullFile:
    """A file on a disk that is full for a while."""

    def __init__(self, file: Any):
        self.file, self.full = file, False

    def write(self, data: bytes) -> int:
        if self.full:
            self.file.write(data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_costs_a_warning_and_no_row(tmp_path: Path) -> None:
    warnings: list[str] = []
    sink = RunLog(tmp_path, warnings.append)
    lines = next(part for part in sink._sinks if isinstance(part, log.JsonLines))
    disk = FullFile(lines._file)
    lines._file = disk  # type: ignore[assignment]
    for i, full in enumerate([False, True, True, False], start=1):
        disk.full = full
        sink.write({"iteration": i})
    sink.close()
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    assert [json.loads(line)["iteration"] for line in (tmp_path / log.METRICS).read_text().splitlines()] == [1, 2, 3, 4]


def test_events_that_cannot_be_written_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    sink = RunLog(tmp_path, warnings.append)

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    events = next(part for part in sink._sinks if isinstance(part, log.Events))
    monkeypatch.setattr(events._records, "write", full)
    sink.write({"iteration": 1, "x": 1.0})
    sink.write({"iteration": 2, "x": 1.0})
    sink.close()
    assert len(warnings) == 1
    assert len(log.read(tmp_path)) == 2


def test_every_sink_gets_every_row_and_is_closed(tmp_path: Path) -> None:
    class Memory:
        def __init__(self) -> None:
            self.rows: list[log.Row] = []
            self.closed = False

        def write(self, row: log.Row) -> None:
            self.rows.append(row)
            if row["iteration"] == 1:
                raise OSError(errno.EIO, "Input/output error")

        def close(self) -> None:
            self.closed = True
            raise OSError(errno.EIO, "Input/output error")

    memory, other, warnings = Memory(), Memory(), list[str]()
    run_log = RunLog(tmp_path, warnings.append, sinks=[memory, other])
    rows = [{"iteration": i, "x": 0.5} for i in (1, 2, 3)]
    for row in rows:
        run_log.write(row)
    run_log.close()
    assert memory.rows == other.rows == rows == log.read(tmp_path)
    assert memory.closed and other.closed
    assert len(warnings) == 1 and "Input/output error" in warnings[0]


def test_what_is_no_row_is_left_out(tmp_path: Path) -> None:
    (tmp_path / log.METRICS).write_bytes(
        b'{"iteration": 1}\n\xff\xfe\n3\n{"iteration": true}\n' + b"[" * 99999 + b"\n"
        b'{"iteration": "x"}\n{"iteration": 2}\n{"iter'
    )
    assert [row["iteration"] for row in log.read(tmp_path)] == [1, 2]


def test_numbers_are_what_can_be_plotted() -> None:
    row = {"iteration": 3, "a": 1.5, "b": 2, "c": "text", "d": None, "e": math.inf, "f": math.nan}
    assert log.numbers(row) == {"a": 1.5, "b": 2}
