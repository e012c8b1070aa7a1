"""What is logged comes back, and gives the same actions bit for bit; what is spoiled is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import contract, graph, write_export
from worlds import World, drain

from sdpg_runtime.contract import load
from sdpg_runtime.errors import Refused
from sdpg_runtime.log import Log, Writer, state_of
from sdpg_runtime.machine import Mode
from sdpg_runtime.replay import replay
from sdpg_runtime.robot import GO2

Make = Callable[..., World]


def walked(world: Make, log: Path, path: Path | None = None, seconds: float = 1.0) -> World:
    dog = world(path, log=log, seconds=seconds)
    dog.robot.gyroscope = np.array((0.1, 0.2, 0.3))
    dog.spin(20.0)
    assert dog.log is not None
    dog.log.close()
    assert dog.log.lost == 0 and dog.log.trouble == ""
    return dog


@pytest.fixture
def log(world: Make, tmp_path: Path) -> Path:
    walked(world, tmp_path / "a.ticks")
    return tmp_path / "a.ticks"


def test_the_same_actions_bit_for_bit(export: Path, log: Path) -> None:
    found = replay(log, load(export))
    assert found.same and found.acted == 50 and found.ticks > 370 and not found.damage


def test_a_recurrent_policy_replays(world: Make, tmp_path: Path) -> None:
    path = write_export(tmp_path / "recurrent", contract(recurrent=True), graph(recurrent=True))
    walked(world, tmp_path / "r.ticks", path)
    assert replay(tmp_path / "r.ticks", load(path)).same


def test_every_tick_is_there(log: Path) -> None:
    reader = Log(log)
    rows = [tick.row for tick in reader.ticks()]
    assert [int(row["number"]) for row in rows] == list(range(len(rows)))
    assert sorted({int(row["mode"]) for row in rows}) == list(Mode)
    np.testing.assert_allclose(np.diff([row["time"] for row in rows]), 0.02, atol=1e-6)
    last = rows[-1]
    assert last["reason"] == b"asked for" and last["sent"] and (last["sent_damping"] == 3.0).all()
    assert not last["sent_stiffness"].any() and not rows[0]["sent"]
    state = state_of(last)
    np.testing.assert_allclose(state.gyroscope, (0.1, 0.2, 0.3), rtol=1e-6)
    assert reader.header["joints"] == list(GO2.joints)


def test_the_reason_of_a_guard_is_logged(world: Make, tmp_path: Path) -> None:
    dog = world(log=tmp_path / "b.ticks").walking()
    dog.robot.frozen = True
    dog.spin(9.0)
    assert dog.log is not None
    dog.log.close()
    rows = [tick.row for tick in Log(tmp_path / "b.ticks").ticks()]
    assert rows[-1]["mode"] == Mode.DAMPING and b"no fresh state" in rows[-1]["reason"]


def test_the_end_of_a_loop_that_is_lost_is_logged(export: Path, world: Make, tmp_path: Path) -> None:
    dog = world(log=tmp_path / "l.ticks").walking()
    dog.clock.sleep(4.0)
    assert dog.runner.lost and dog.log is not None
    dog.runner.log_blindly()
    dog.log.close()
    rows = [tick.row for tick in Log(tmp_path / "l.ticks").ticks()]
    assert rows[-1]["mode"] == Mode.DAMPING and b"the control loop stopped" in rows[-1]["reason"]
    assert replay(tmp_path / "l.ticks", load(export)).same


def test_a_policy_that_answers_nan_replays(world: Make, tmp_path: Path) -> None:
    path = write_export(tmp_path / "nan", policy=graph(nan=True))
    walked(world, tmp_path / "n.ticks", path)
    found = replay(tmp_path / "n.ticks", load(path))
    assert found.same and found.acted == 1


def test_a_crash_costs_the_last_record_only(export: Path, log: Path) -> None:
    data = log.read_bytes()
    for cut in (1, 5, 1500):
        log.write_bytes(data[:-cut])
        found = replay(log, load(export))
        assert found.same and found.damage == "the last record is cut off"


def test_a_changed_bit_is_found(export: Path, log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 4
    log.write_bytes(data)
    found = replay(log, load(export))
    assert not found.same and found.damage


def test_a_changed_measurement_is_found(export: Path, log: Path, tmp_path: Path) -> None:
    """As if the log were right and the runtime had computed otherwise."""
    folder = load(export)
    changed = rewritten(log, folder, tmp_path / "c.ticks", lambda row: row["gyroscope"].__setitem__(0, 0.11))
    found = replay(changed, folder)
    assert not found.same and found.other_inputs == found.other_actions == 50 and 0.0 < found.largest < 0.1


def test_a_changed_action_is_found(export: Path, log: Path, tmp_path: Path) -> None:
    folder = load(export)

    def nudge(row: Any) -> None:
        row["action"][3] = np.nextafter(row["action"][3], np.float32(2.0))

    found = replay(rewritten(log, folder, tmp_path / "d.ticks", nudge), folder)
    assert not found.same and found.other_inputs == 0 and found.other_actions == 50


def test_a_gap_is_told(export: Path, log: Path, tmp_path: Path) -> None:
    folder = load(export)
    writer, middle = Writer(tmp_path / "e.ticks", folder, GO2), 0
    for tick in Log(log).ticks():
        middle += bool(tick.row["acted"])
        if middle != 20:
            writer.tick(tick.row, tick.images)
            drain(writer)
    writer.close()
    assert not (found := replay(tmp_path / "e.ticks", folder)).same and found.gaps == 1


def rewritten(log: Path, folder: Any, out: Path, change: Callable[[Any], None]) -> Path:
    writer = Writer(out, folder, GO2)
    for tick in Log(log).ticks():
        row = np.frombuffer(bytearray(tick.row.tobytes()), writer.dtype).reshape(())
        change(row)
        writer.tick(row, tick.images)
        drain(writer)
    writer.close()
    return out


def test_a_log_of_another_policy_is_refused(log: Path, tmp_path: Path) -> None:
    other = load(write_export(tmp_path / "other", contract(seconds=0.01)))
    with pytest.raises(Refused, match="of another export"):
        replay(log, other)


@pytest.mark.parametrize("data", [b"", b"H", b"nonsense" * 100, b"H\2\0\0\0\x43\xbf\xa6\xa3{}"])
def test_what_is_no_log_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(Refused, match="is no log of sdpg-run"):
        Log(tmp_path / "x")
    with pytest.raises(Refused, match="can't read"):
        Log(tmp_path / "nowhere")


def test_a_log_is_never_overwritten(log: Path, export: Path) -> None:
    with pytest.raises(Refused, match="File exists; give another --log"):
        Writer(log, load(export), GO2)


class Full:
    def write(self, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        pass


def test_a_full_disk_costs_the_log_and_nothing_else(world: Make, tmp_path: Path) -> None:
    dog = world(log=tmp_path / "f.ticks")
    assert dog.log is not None
    dog.log._file = Full()  # type: ignore[assignment]
    dog.walking()
    dog.log.close()
    assert dog.mode is Mode.POLICY
    assert dog.runner.report()["log"]["trouble"] == "the log ended early: No space left on device"
