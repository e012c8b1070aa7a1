"""Every guard, by the fault that it is for: the robot ends damped, in time, and it is said why."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import graph, write_export
from worlds import World

from sdpg_runtime import guards
from sdpg_runtime.errors import Refused
from sdpg_runtime.guards import Arriving, Freshness, Limits, Rising
from sdpg_runtime.machine import Mode, Wish
from sdpg_runtime.options import changed, times

Make = Callable[..., World]


def freeze(world: World) -> None:
    world.robot.frozen = True


def freeze_clock(world: World) -> None:
    world.robot.frozen_tick = True


def blind(world: World) -> None:
    world.robot.blind = True


def tip(world: World) -> None:
    world.robot.quaternion = np.array((np.cos(0.6), np.sin(0.6), 0.0, 0.0))


def bend(world: World) -> None:
    world.robot.position = world.robot.position + np.eye(12)[3] * 1.5


def race(world: World) -> None:
    world.robot.velocity = world.robot.velocity + np.eye(12)[4] * 60.0


def lose_a_number(world: World) -> None:
    world.robot.gyroscope = np.array((0.0, np.nan, 0.0))


def nonsense(world: World) -> None:
    world.robot.quaternion = np.zeros(4)


def corrupt(world: World) -> None:
    world.robot.dropped.crc += 6


def malform(world: World) -> None:
    world.robot.dropped.malformed += 6


def join(world: World) -> None:
    world.robot.others = 1


def press(world: World) -> None:
    world.robot.remote = bytes((0x55, 0x51)) + struct.pack("<H5f", 0x220, 0, 0, 0, 0, 0) + bytes(16)


def shrink(world: World) -> None:
    world.robot.pixels = np.zeros((1, 4, 4), np.float32)


FAULTS: list[tuple[Callable[[World], None], str, float]] = [
    (freeze, "no fresh state: the newest is .* 50 ms are allowed", 0.1),
    (freeze_clock, "no fresh state", 0.1),
    (blind, "no fresh image of 'depth': .* 300 ms are allowed", 0.4),
    (tip, "tilted by 1.20 rad, 1.00 are allowed", 0.04),
    (bend, "joint FL_hip is .* beyond its range", 0.04),
    (race, "joint FL_thigh turns at .* rad/s, 30 are allowed", 0.04),
    (lose_a_number, "not finite", 0.04),
    (nonsense, "no unit quaternion", 0.04),
    (corrupt, "6 messages with a wrong CRC", 0.04),
    (malform, "6 messages with a wrong CRC or shape", 0.04),
    (join, "1 other publisher", 0.04),
    (press, "the remote asked", 0.04),
    (shrink, r"images of 'depth' are float32 \(1, 4, 4\), the policy needs float32 \(1, 12, 20\)", 0.1),
]


@pytest.mark.parametrize(("fault", "why", "within"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_a_fault_while_walking_ends_damped(
    world: Make, fault: Callable[[World], None], why: str, within: float
) -> None:
    dog = world().walking()
    assert dog.robot.sent[-1].stiffness[0] == 30.0
    fault(dog)
    dog.spin(within + 0.02)  # and one tick until it is sent
    assert dog.mode is Mode.DAMPING
    assert_damped(dog)

    assert re.search(why, dog.reason), dog.reason
    assert dog.runner.report()["reason"] == dog.reason
    dog.spin(10.0)
    assert dog.runner.machine.finished(dog.clock.now)
    assert_damped(dog)


def assert_damped(dog: World) -> None:
    last = dog.robot.sent[-1]
    assert (last.stiffness == 0.0).all() and (last.damping == 3.0).all() and (last.torque == 0.0).all()


@pytest.mark.parametrize(("fault", "why", "within"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_a_fault_before_the_start_keeps_it_from_moving(
    world: Make, fault: Callable[[World], None], why: str, within: float
) -> None:
    dog = world(auto=False)
    dog.spin(0.1)
    fault(dog)
    dog.spin(within + 0.02)
    dog.runner.wish(Wish.STAND_UP)
    dog.spin(0.04)
    assert dog.mode is Mode.PASSIVE and not dog.robot.sent and dog.runner.machine.note


def test_a_wire_that_loses_messages(world: Make) -> None:
    dog = world()
    dog.robot.counting()
    dog.walking()
    dog.robot.lossy = 1
    dog.spin(2.0)
    assert dog.mode is Mode.POLICY  # a tenth is borne
    dog.robot.lossy = 3
    dog.spin(1.1)
    assert dog.mode is Mode.DAMPING and "states came for a second of the robot's, 400 are needed" in dog.reason
    assert_damped(dog)


def test_a_policy_that_answers_nan(tmp_path: Path, world: Make) -> None:
    dog = world(write_export(tmp_path / "nan", policy=graph(nan=True)))
    dog.spin(6.0)
    assert dog.mode is Mode.DAMPING and "action is not finite" in dog.reason
    assert all(np.isfinite(command.position).all() for command in dog.robot.sent)
    assert_damped(dog)


def test_deadlines_missed_in_a_row(world: Make) -> None:
    dog = world().walking()
    act = dog.runner.policy.act

    def slow(seen: Any) -> Any:
        dog.clock.sleep(0.025)
        return act(seen)

    dog.runner.policy.act = slow  # type: ignore[method-assign]
    dog.spin(1.0)
    assert dog.mode is Mode.DAMPING and dog.reason == "5 deadlines missed in a row"


def test_one_missed_deadline_is_counted_and_survived(world: Make) -> None:
    dog = world().walking()
    dog.clock.sleep(0.05)
    dog.spin(0.5)
    assert dog.mode is Mode.POLICY and dog.runner.pacer.missed == 2


def test_a_loop_that_stops_is_noticed_by_the_sender(world: Make) -> None:
    dog = world().walking()
    dog.clock.sleep(0.075)  # no ticks (the last was 20 ms ago), but the sender has its turns
    assert dog.robot.sent[-1].stiffness[0] == 30.0
    dog.clock.sleep(0.008)
    assert_damped(dog)
    assert "control loop stopped" in (dog.runner.publisher.trouble or "")
    dog.spin(0.1)  # it comes back: too late
    assert dog.mode is Mode.DAMPING and "control loop stopped" in dog.reason
    assert_damped(dog)
    dog.clock.sleep(4.0)
    assert not dog.runner.lost  # it is there again, and ends by itself


def test_a_loop_that_is_gone_for_good_is_told(world: Make) -> None:
    dog = world().walking()
    dog.clock.sleep(2.9)
    assert not dog.runner.lost
    dog.clock.sleep(0.2)
    assert dog.runner.lost and "control loop stopped" in dog.runner.report()["reason"]


def test_an_error_in_the_loop_damps(world: Make) -> None:
    dog = world()
    begun, image = dog.clock.now, dog.robot.image

    def fails(camera: str) -> Any:
        if dog.clock.now - begun > 5.5:
            raise OSError("the camera's cable")
        return image(camera)

    dog.robot.image = fails  # type: ignore[method-assign]
    dog.runner.run()
    assert dog.mode is Mode.DAMPING and dog.reason == "error in the control loop: OSError: the camera's cable"
    assert_damped(dog)
    assert 8.5 < dog.clock.now - begun < 8.7


def test_an_error_before_anything_moved_sends_nothing(world: Make) -> None:
    dog = world(auto=False)

    def fails() -> Any:
        raise OSError("no wire")

    dog.robot.publishers = fails  # type: ignore[method-assign]
    dog.runner.run()
    assert dog.mode is Mode.PASSIVE and not dog.robot.sent and dog.reason.endswith("OSError: no wire")


def test_a_wire_that_refuses_is_told(world: Make) -> None:
    dog = world().walking()

    def refuses(command: Any) -> None:
        raise OSError("no route")

    dog.runner.publisher._send = refuses
    dog.spin(0.1)
    assert dog.mode is Mode.DAMPING and dog.reason == "can't send: OSError: no route"


def test_thresholds_are_where_they_are_said_to_be() -> None:
    limits = Limits()
    assert guards.stale_state(0.05, limits) is None and guards.stale_state(0.0501, limits)
    assert guards.stale_image({"a": 0.3}, limits) is None and guards.stale_image({"a": 0.301}, limits)
    assert guards.stale_image({"a": -0.5}, limits)  # a clock that is wrong
    assert guards.overruns(4, limits) is None and guards.overruns(5, limits)
    assert guards.refused(5, limits) is None and guards.refused(6, limits)
    assert guards.second_publisher(0, limits) is None and guards.second_publisher(1, limits)
    assert guards.remote_stop(b"") is None and guards.remote_stop(b"\0\0\x20\0") is None
    assert guards.action_finite(np.ones(3)) is None and guards.action_finite(np.array((1.0, np.inf)))


def test_counts_rise_within_a_second() -> None:
    rising = Rising()
    assert [rising.rise(t, n) for t, n in ((0.0, 3), (0.5, 5), (1.0, 6), (1.4, 6), (3.0, 6))] == [0, 2, 3, 1, 0]


def test_states_are_counted_by_the_robots_clock() -> None:
    arriving = Arriving()
    assert [arriving.rate(tick, tick // 2) for tick in (0, 500, 998)] == [0.0, 0.0, 0.0]  # nothing is known yet
    assert arriving.rate(1000, 500) == 500.0
    assert arriving.rate(1000, 500) == 500.0  # it stands still, which is another guard's business
    assert arriving.rate(2000, 850) == 350.0
    assert arriving.rate(20, 851) == 0.0  # switched off and on


def test_no_state_is_infinitely_old() -> None:
    assert Freshness().age(1.0, None) == np.inf


def test_limits_and_times_can_be_changed_by_name() -> None:
    limits = changed(Limits(), ["tilt=0.5", "overruns=9"], "--limit")
    assert limits.tilt == 0.5 and limits.overruns == 9 and limits.state_age == 0.05
    for wrong in ("tilt=steep", "height=1", "tilt", "overruns=1.5"):
        with pytest.raises(Refused, match=r"--limit .* is not NAME=VALUE with one of state_age, "):
            changed(Limits(), [wrong], "--limit")
    with pytest.raises(Refused, match="must be at least 0 and finite"):
        changed(Limits(), ["tilt=nan"], "--limit")
    assert times(["rise=2"]).rise == 2.0
    with pytest.raises(Refused, match=r"--time crouch must be at least 0\.5 s"):
        times(["crouch=0.1"])
