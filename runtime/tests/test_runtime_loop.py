"""States, deadlines and what is sent in each."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import DEFAULT, JOINTS, Clock, Robot, contract, write_export
from worlds import World

from sdpg_runtime import velocity
from sdpg_runtime.errors import Refused
from sdpg_runtime.link import Command
from sdpg_runtime.machine import Machine, Mode, Times, Wish, damped, standing_up
from sdpg_runtime.publisher import Publisher
from sdpg_runtime.robot import GO2
from sdpg_runtime.timing import Histogram, Pacer

Make = Callable[..., World]


# --- states


def test_through_all_states_by_itself(world: Make) -> None:
    dog = world(seconds=1.0)
    dog.spin(20.0)
    assert [mode for mode, _ in itertools.groupby(dog.history)] == list(Mode)
    expected = {Mode.PASSIVE: 50, Mode.STAND_UP: 125, Mode.READY: 50, Mode.POLICY: 50, Mode.DAMPING: 150}
    assert all(abs(dog.history.count(mode) - ticks) <= 1 for mode, ticks in expected.items())
    assert dog.reason == "asked for" and dog.runner.machine.finished(dog.clock.now)


def test_it_stands_before_the_policy_begins(world: Make) -> None:
    dog = world(auto=False)
    dog.spin(0.2)
    assert dog.mode is Mode.PASSIVE and not dog.robot.sent  # nothing is sent before somebody asks
    dog.runner.wish(Wish.POLICY)
    dog.spin(0.1)
    assert dog.mode is Mode.PASSIVE  # not from here
    dog.runner.wish(Wish.STAND_UP)
    dog.spin(5.0)
    assert dog.mode is Mode.READY
    np.testing.assert_allclose(dog.robot.position, DEFAULT, atol=0.01)
    steps = np.diff([command.position for command in dog.robot.sent], axis=0)
    assert np.abs(steps).max() < 0.05  # no jumps
    dog.runner.wish(Wish.DAMPING)
    dog.spin(10.0)
    assert dog.mode is Mode.DAMPING and not dog.runner.machine.finished(dog.clock.now)
    for wish in (Wish.STAND_UP, Wish.POLICY):
        dog.runner.wish(wish)
    dog.spin(0.1)
    assert dog.mode is Mode.DAMPING  # the end
    dog.runner.wish(Wish.QUIT)
    dog.spin(0.1)
    assert dog.runner.machine.finished(dog.clock.now)


def test_quitting_while_walking_damps_first(world: Make) -> None:
    dog = world(auto=False)
    for wish, seconds in ((Wish.STAND_UP, 4.0), (Wish.POLICY, 1.0), (Wish.QUIT, 0.1)):
        dog.runner.wish(wish)
        dog.spin(seconds)
    assert dog.mode is Mode.DAMPING and not dog.runner.machine.finished(dog.clock.now)
    dog.spin(2.8)
    assert not dog.runner.machine.finished(dog.clock.now) and dog.robot.sent[-1].damping[0] == 3.0
    dog.spin(0.3)
    assert dog.runner.machine.finished(dog.clock.now)


def test_quitting_before_anything_moved_ends_at_once() -> None:
    machine = Machine(0.0, Times())
    machine.step(1.0, Wish.QUIT, None)
    assert machine.finished(1.0) and machine.mode is Mode.PASSIVE


def test_quitting_is_heard_while_it_still_looks() -> None:
    machine = Machine(0.0, Times())
    machine.step(0.5, Wish.STAND_UP, None)
    machine.step(1.0, Wish.QUIT, None)
    assert machine.mode is Mode.PASSIVE and machine.finished(1.0)
    machine = Machine(0.0, Times())
    machine.step(0.5, Wish.DAMPING, None)
    assert not machine.finished(0.5)  # nothing to damp


def test_the_first_reason_is_kept() -> None:
    machine = Machine(0.0, Times())
    machine.step(1.0, Wish.STAND_UP, None)
    machine.step(2.0, None, "one")
    machine.step(2.1, None, "two")
    assert machine.reason == "one" and machine.since == 2.0


def test_it_looks_before_it_stands_up() -> None:
    machine = Machine(0.0, Times())
    assert machine.step(0.1, Wish.STAND_UP, None) is Mode.PASSIVE
    assert machine.step(0.9, None, None) is Mode.PASSIVE
    assert machine.step(1.0, None, None) is Mode.STAND_UP
    machine = Machine(0.0, Times())
    machine.step(0.1, Wish.STAND_UP, None)
    machine.step(0.9, None, "somebody else sends")
    assert machine.step(5.0, None, None) is Mode.PASSIVE  # it does not rise by surprise when a fault goes away


def test_standing_up_goes_over_a_crouch() -> None:
    start, crouch, default = (np.full(2, value, np.float32) for value in (0.0, 1.0, 3.0))
    times = Times(crouch=1.0, rise=2.0)
    where = [standing_up(start, crouch, default, t, times)[0] for t in (0.0, 0.5, 1.0, 2.0, 3.0, 9.0)]
    assert where == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_dry_run_computes_and_sends_nothing(world: Make) -> None:
    dog = world(publish=False, seconds=1.0)
    dog.robot.others = 1  # which disturbs nobody
    dog.spin(20.0)
    assert dog.history.count(Mode.POLICY) == 50 and not dog.robot.sent and dog.runner.report()["sent"] == 0


def test_targets_are_the_policys_and_within_the_ranges(world: Make) -> None:
    dog = world().walking()
    dog.spin(0.02)
    last = dog.robot.sent[-1]
    expected = np.array(DEFAULT, np.float32) + np.float32(0.5) * dog.runner._last
    low, high = np.array((-1.0, -1.5, -2.8) * 4), np.array((1.0, 3.4, -0.8) * 4)
    np.testing.assert_allclose(last.position, expected.clip(low, high), atol=1e-7)
    assert (last.stiffness == 30.0).all() and (last.damping == 1.5).all() and not last.torque.any()
    assert (dog.runner.policy.targets(np.full(12, 9.0, np.float32)) == high.astype(np.float32)).all()


def test_joints_go_by_name(tmp_path: Path, world: Make) -> None:
    """A policy that orders joints otherwise moves the same ones."""
    order = tuple(reversed(JOINTS))
    dog = world(write_export(tmp_path / "other", contract(order=order))).walking()
    dog.spin(0.02)
    targets = dict(zip(order, dog.runner.policy.targets(dog.runner._last), strict=True))
    assert [targets[name] for name in GO2.joints] == dog.robot.sent[-1].position.tolist()


# --- deadlines


def test_deadlines_are_absolute() -> None:
    clock, begun = Clock(), []
    pacer = Pacer(0.02, clock, clock.sleep)
    for work in (0.001, 0.019, 0.0, 0.012):
        begun.append(round(clock.now - 100.0, 6))
        clock.sleep(work)
        pacer.wait()
    assert begun == [0.0, 0.02, 0.04, 0.06] and pacer.missed == 0


def test_what_was_missed_is_not_made_up_for() -> None:
    clock, begun = Clock(), []
    pacer = Pacer(0.02, clock, clock.sleep)
    for work in (0.001, 0.065, 0.001, 0.001):
        begun.append(round(clock.now - 100.0, 6))
        clock.sleep(work)
        pacer.wait()
    assert begun == [0.0, 0.02, 0.085, 0.1]  # late, then on time again; never twice within a period
    assert pacer.missed == 3 and pacer.in_a_row == 0


def test_the_loop_keeps_its_rate_over_an_hour() -> None:
    clock = Clock()
    pacer = Pacer(0.02, clock, lambda seconds: setattr(clock, "now", clock.now + seconds + 0.0004))  # sleeps too long
    for _ in range(180_000):
        pacer.wait()
    assert clock.now - 100.0 == pytest.approx(3600.0, abs=0.001) and pacer.missed == 0


def test_commands_go_out_at_500_hz(world: Make) -> None:
    dog = world().walking()
    before = dog.runner.publisher.sent
    dog.spin(1.0)
    assert dog.runner.publisher.sent - before == 500


def test_histograms_tell_quantiles() -> None:
    times = Histogram()
    for i in range(1000):
        times.add(i * 1e-5)
    times.add(0.5)
    assert times.milliseconds() == pytest.approx({"p50": 5.0, "p99": 9.9, "max": 500.0}, abs=0.06)
    times.add(float("inf"))
    assert times.quantile(1.0) > 0.9 and Histogram().milliseconds()["p99"] == 0.0


def test_a_message_is_prepared_once() -> None:
    class Prepared(Robot):
        made = 0

        def prepare(self, command: Command) -> bytes:
            self.made += 1
            return command.damping.tobytes()

        def send_prepared(self, prepared: bytes) -> None:
            self.got = prepared

    clock = Clock()
    robot = Prepared(clock)
    publisher = Publisher(robot, damped(12, 3.0), 0.1, True, clock, clock.sleep)
    publisher.step()
    assert publisher.sent == 0  # nobody has asked for anything
    publisher.set(damped(12, 7.0))
    for _ in range(10):
        publisher.step()
    assert robot.made == 2 and publisher.sent == 10 and robot.got == damped(12, 7.0).damping.tobytes()


def test_threads_run_and_end(world: Make) -> None:
    """By the real clock; nothing here depends on how fast the machine is."""
    import time

    dog = world(auto=False)
    runner = type(dog.runner)(Robot(), dog.folder, dog.runner.policy, velocity.constant(0, 0, 0), dog.runner.options)
    runner.start()
    while runner.ticks < 3:
        time.sleep(0.01)
    runner.wish(Wish.QUIT)
    assert runner.finished.wait(30.0) and runner.publisher.sent == 0


# --- velocities


def test_a_script_of_velocities(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([{"seconds": 2, "velocity": [0.5, 0.1]}, {"seconds": 1, "velocity": [0, 0], "turn": 1}]))
    told, state = velocity.script(path), Robot(Clock()).state()
    assert state is not None
    commands = [told(t, state).tolist() for t in (0.0, 1.99, 2.0, 2.99, 3.0, 99.0)]
    first, second, last = [0.5, np.float32(0.1), 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]
    assert commands == [first, first, second, second, last, last]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"seconds": -1, "velocity": [0, 0]}]', '[{"velocity": [0]}]'])
def test_a_script_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    if text == "{}":
        assert velocity.script(path)  # no segments: stands still
        return
    with pytest.raises(Refused, match="is no script of velocities; write it like"):
        velocity.script(path)


def test_sticks_of_the_remote() -> None:
    robot, told = Robot(Clock()), velocity.remote(speed=0.8, turn=0.5)
    robot.remote = bytes(4) + struct.pack("<5f", 1.0, -1.0, 0.0, 0.0, 0.5) + bytes(16)
    state = robot.state()
    assert state is not None
    np.testing.assert_allclose(told(0.0, state), (0.4, -0.8, 0.5), rtol=1e-6)
    robot.remote = bytes(4) + struct.pack("<5f", *[float("nan")] * 5) + bytes(16)
    robot.clock.now += 1.0  # type: ignore[attr-defined]
    state = robot.state()
    assert state is not None and not told(0.0, state).any()


def test_velocities_must_be_numbers() -> None:
    with pytest.raises(Refused):
        velocity.constant(float("nan"), 0.0, 0.0)
