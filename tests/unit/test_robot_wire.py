"""What the stand-in's wire does to messages, which commands count, and how it keeps time: by clocks of the test's."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.stand_in import STANCE, rise, sealed, stand

from sdpg.robot.disturb import Disturbance, Line, broken, fate
from sdpg.robot.inbox import DAMPED, DRIVEN, WAITING, WATCHDOG, Inbox, fault
from sdpg.robot.loop import EVERY, Log, Pace, drive
from sdpg.robot.report import COLUMNS, fell, trajectory, walk
from sdpg.robot.stand_in import DAMPING, StandIn, damped
from sdpg.robot.world import TIMESTEP, Place, World, make_world
from sdpg_runtime.dds import layout
from sdpg_runtime.dds.layout import Record
from sdpg_runtime.link import Command

BITS = 8 * layout.LOW_CMD.itemsize


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(Place())


# --- disturbances -----------------------------------------------------------------------------------------------------


def test_fates_are_drawn_from_the_seed() -> None:
    bad = Disturbance(latency=5.0, jitter=10.0, loss=0.3, corrupt=0.1, seed=1)
    fates = [fate(bad, number, BITS) for number in range(3000)]
    assert fates == [fate(bad, number, BITS) for number in range(3000)]
    assert abs(np.mean([each.lost for each in fates]) - 0.3) < 0.03
    assert abs(np.mean([each.bit is not None for each in fates]) - 0.1) < 0.02
    delays = np.array([each.delay for each in fates])
    assert 0.005 <= delays.min() < 0.006 and 0.014 < delays.max() <= 0.015
    assert fates != [fate(Disturbance(5.0, 10.0, 0.3, 0.1, seed=2), number, BITS) for number in range(3000)]


def test_a_line_is_sound_until_it_begins_to_be_bad() -> None:
    line = Line(Disturbance(loss=1.0, after=2.0))
    record = sealed(stand())
    line.put(record, 1.0)
    assert len(line.get(1.0)) == 1 and line.lost == 0  # nobody has said yet when it begins
    line.begins = 3.0
    for now in (2.9, 3.0):
        line.put(record, now)
    assert len(line.get(5.0)) == 1 and line.lost == 1


def test_nothing_happens_on_a_good_wire() -> None:
    line, record = Line(Disturbance()), sealed(stand())
    line.put(record, 1.0)
    assert line.get(1.0) == [record] and line.get(2.0) == []


def test_latency_and_jitter_keep_the_order() -> None:
    line = Line(Disturbance(latency=10.0, jitter=20.0))
    for tick in range(100):
        line.put(sealed(stand(), reserve=tick), 0.002 * tick)
    assert line.get(0.0099) == []
    came = [(now, int(record["reserve"])) for now in np.arange(0.0, 0.3, 0.001) for record in line.get(float(now))]
    assert [tick for _, tick in came] == list(range(100))
    assert all(0.009 < now - 0.002 * tick < 0.032 for now, tick in came)


def test_loss_is_counted() -> None:
    line = Line(Disturbance(loss=0.3))
    for _ in range(1000):
        line.put(sealed(stand()), 0.0)
    assert 250 < line.lost < 350 and len(line.get(0.0)) == 1000 - line.lost


def test_one_bit_is_turned_over_and_the_checksum_finds_it() -> None:
    record = sealed(stand())
    changed = broken(record, 1234)
    assert sum((a ^ b).bit_count() for a, b in zip(record.tobytes(), changed.tobytes(), strict=True)) == 1
    line = Line(Disturbance(corrupt=1.0))
    for _ in range(50):
        line.put(record, 0.0)
    faults = {fault(each) for each in line.get(0.0)}
    assert line.corrupted == 50 and faults <= {"crc", "head"} and "crc" in faults


# --- commands ---------------------------------------------------------------------------------------------------------


def _wrong(**changes: object) -> Record:
    record = sealed(stand())
    for name, value in changes.items():
        record[name] = value
    return record


def test_what_is_wrong_is_dropped_and_counted() -> None:
    inbox = Inbox()
    switched_off, no_number = sealed(stand()), sealed(stand())
    switched_off["motor_cmd"]["mode"][3] = 0
    no_number["motor_cmd"]["q"][3] = np.nan
    bad = {
        "malformed": None,
        "head": _wrong(head=(0xFE, 0)),
        "crc": _wrong(crc=0),
        "level": sealed(stand(), level_flag=0xEE),
        "mode": layout.seal(switched_off),
        "not finite": layout.seal(no_number),
    }
    for reason, record in bad.items():
        assert fault(record) == reason
        inbox.receive(record, 0.0)
        inbox.receive(record, 0.0)
    assert inbox.dropped == dict.fromkeys(bad, 2) and inbox.accepted == 0 and inbox.mode == WAITING
    inbox.receive(sealed(stand()), 0.0)
    assert inbox.accepted == 1 and inbox.mode == DRIVEN


def test_a_command_arrives_as_it_was_meant() -> None:
    inbox, command = Inbox(), Command(*(np.arange(12.0) + i for i in range(5)))
    inbox.receive(sealed(command), 1.0)
    for mine, theirs in zip(vars(inbox.command(1.0)).values(), vars(command).values(), strict=True):
        assert (mine == theirs).all()


def test_watchdog_brakes_and_lets_go() -> None:
    inbox = Inbox(patience=0.1)
    assert (inbox.command(5.0).damping == DAMPING).all() and not inbox.silences  # nobody was there yet
    inbox.receive(sealed(stand()), 10.0)
    assert (inbox.command(10.1).stiffness == 60.0).all()
    braking = inbox.command(10.11)
    assert inbox.mode == WATCHDOG and not braking.stiffness.any() and (braking.damping == DAMPING).all()
    inbox.command(10.5)
    inbox.receive(_wrong(crc=0), 10.6)  # a broken one wakes nobody
    assert inbox.command(10.6).damping[0] == DAMPING and inbox.mode == WATCHDOG
    inbox.receive(sealed(stand()), 11.0)
    assert inbox.mode == DRIVEN and (inbox.command(11.0).stiffness == 60.0).all()
    (silence,) = inbox.silences
    assert (silence.time, round(silence.after, 6), round(silence.seconds or 0.0, 6)) == (10.11, 0.11, 0.89)


def test_told_to_brake_is_not_the_watchdog() -> None:
    inbox = Inbox()
    inbox.receive(sealed(damped()), 0.0)
    assert inbox.mode == DAMPED


def test_rate_and_gaps() -> None:
    inbox = Inbox()
    for now in (0.0, 0.002, 0.004, 0.054, 0.1):
        inbox.receive(sealed(stand()), now)
    facts = inbox.facts()
    assert facts["rate_hz"] == pytest.approx(40.0) and facts["longest_gap_ms"] == pytest.approx(50.0)


# --- time -------------------------------------------------------------------------------------------------------------


class Clock:
    """Time passes while one sleeps, and a little in every look."""

    def __init__(self, look: float = 0.0):
        self.now, self.look = 0.0, look

    def __call__(self) -> float:
        self.now += self.look
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeWire:
    """Sends `script(now)`; remembers what was published."""

    def __init__(self, script: object = lambda now: []):
        self.script, self.states = script, list[Record]()

    def commands(self, now: float) -> list[Record | None]:
        return self.script(now)  # type: ignore[operator, no-any-return]

    def publish(self, state: Record, now: float) -> None:
        self.states.append(state)


def test_a_state_every_step_and_deadlines_that_do_not_drift(world: World) -> None:
    clock, wire = Clock(look=1e-4), FakeWire()
    log, pace = drive(StandIn(world), wire, Inbox(), 1.0, clock=clock, sleep=clock.sleep)
    assert pace.steps == len(wire.states) == 500 and pace.late == 0
    assert [int(state["tick"]) for state in wire.states] == [2 * (i + 1) for i in range(500)]
    assert pace.seconds == pytest.approx(1.0, abs=1e-3)
    assert len(log.rows()) == 500 // EVERY


def test_lost_time_is_given_up_when_it_is_much(world: World) -> None:
    clock = Clock(look=1e-4)
    wire = FakeWire(lambda now: (clock.sleep(1.0), [])[1] if 0.5 < now < 1.0 else [])
    _, pace = drive(StandIn(world), wire, Inbox(), 1.0, clock=clock, sleep=clock.sleep)
    assert pace.given_up == pytest.approx(1.0, abs=0.01) and pace.seconds == pytest.approx(2.0, abs=0.01)


def test_it_stops_when_told(world: World) -> None:
    clock = Clock()
    _, pace = drive(
        StandIn(world), FakeWire(), Inbox(), None, stop=lambda: clock.now > 0.099, clock=clock, sleep=clock.sleep
    )
    assert pace.steps == 50


def test_silence_brakes_within_the_patience_and_a_step(world: World) -> None:
    clock = Clock()
    robot, inbox = StandIn(world), Inbox(patience=0.1)
    rise(robot)
    wire = FakeWire(lambda now: [sealed(stand())] if now < 0.5 else [])
    log, _ = drive(robot, wire, inbox, 2.0, clock=clock, sleep=clock.sleep)
    (silence,) = inbox.silences
    assert 0.1 < silence.after <= 0.1 + TIMESTEP + 1e-9 and silence.seconds is None
    assert robot.data.ctrl.any()  # braking, not limp
    assert log.rows()["mode"][[0, -1]].tolist() == [DRIVEN, WATCHDOG]


def test_the_report(world: World) -> None:
    clock, robot = Clock(), StandIn(world)
    rise(robot)

    def script(now: float) -> list[Record]:
        """Stands; then its legs are stretched to one side, and it falls over."""
        aside = np.tile((0.9, 0.3, -0.9), 4)
        return [sealed(stand(STANCE if now < 1.0 else aside))]

    log, pace = drive(robot, FakeWire(script), Inbox(), 4.0, clock=clock, sleep=clock.sleep)
    facts = walk(world, log, pace)
    assert facts["seconds"] == 4.0 and facts["real_time_factor"] == pytest.approx(1.0, abs=0.01)
    assert facts["mode_seconds"]["driven"] == pytest.approx(4.0)
    assert fell(facts) == len(facts["falls"]) == 1 and facts["falls"][0]["time"] > 1.0
    told = trajectory(log)
    assert told["columns"] == list(COLUMNS) and all(len(row) == len(COLUMNS) for row in told["rows"])


def test_distance_and_velocity_of_a_known_path(world: World) -> None:
    """Sideways along y, while it looks along y: forward."""
    log, robot = Log(), StandIn(world)
    rise(robot)
    quat = (np.cos(np.pi / 4), 0.0, 0.0, np.sin(np.pi / 4))
    for i in range(101):
        robot.data.qpos[:2], robot.data.qpos[3:7] = (0.0, 0.01 * i), quat
        robot.data.qvel[:3], robot.data.qvel[5] = (0.0, 0.5, 0.0), 0.3
        log.add(0.02 * i, robot, DRIVEN)

    assert walk(world, log, Pace(1010, seconds=2.02))["distance"] == pytest.approx(1.0, abs=1e-5)
    row = dict(zip(COLUMNS, trajectory(log)["rows"][-1], strict=True))
    assert [row["forward"], row["left"], row["turn"]] == pytest.approx([0.5, 0.0, 0.3], abs=1e-5)
