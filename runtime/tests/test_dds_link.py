"""DdsLink against a robot that is played by the test, on the loopback interface."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sdpg_runtime.dds import layout
from sdpg_runtime.link import Command, Image, RobotState

if os.environ.get("CI"):
    import cyclonedds  # noqa: F401  continuous integration must have it
pytest.importorskip("cyclonedds", reason="needs cyclonedds: pip install 'sdpg-runtime[dds]'")

from sdpg_runtime.dds import messages
from sdpg_runtime.dds.link import SENDING, Arrivals, DdsLink, as_record
from sdpg_runtime.dds.messages import Image_, LowCmd_, LowState_
from sdpg_runtime.dds.node import Node, configuration, taken

PATIENCE = 30.0  # seconds: a machine may be busy
DOMAIN = 100 + os.getpid() % 100  # of this test alone
COMMAND = Command(*(np.arange(12.0) + 20 * i for i in range(5)))


class Robot:
    """Both ends of a robot's wire."""

    def __init__(self) -> None:
        self.node = Node(DOMAIN, "lo")
        self.states = self.node.writer(messages.LOW_STATE, LowState_)
        self.images = self.node.writer(messages.IMAGE, Image_)
        self.commands = self.node.reader(messages.LOW_CMD, LowCmd_, 64)

    def say(self, tick: int = 7, **changes: Any) -> None:
        record = np.zeros((), layout.LOW_STATE)
        record["head"], record["tick"] = layout.HEAD, tick
        record["imu_state"]["quaternion"] = (1.0, 0.0, 0.0, 0.0)
        record["motor_state"]["q"] = np.arange(20)
        layout.seal(record)
        for name, value in changes.items():
            record[name] = value
        self.states.write(LowState_.of(record))


@pytest.fixture
def ends() -> Iterator[tuple[Robot, DdsLink]]:
    robot, link = Robot(), DdsLink(DOMAIN)
    yield robot, link
    link.close()
    robot.node.close()


def until(ask: Callable[[], Any], tell: Callable[[], Any] = lambda: None) -> Any:
    """What `ask` answers, told again and again until that is something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        tell()
        if answer := ask():
            return answer
        time.sleep(0.01)
    raise AssertionError("nothing came")


def test_states_come_in_the_robots_order(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    assert link.state() is None
    state: RobotState = until(link.state, robot.say)
    assert state.tick == 7 and state.position.tolist() == list(range(12)) and state.quaternion.tolist() == [1, 0, 0, 0]
    assert len(state.remote) == 40
    assert link.dropped.crc == link.dropped.malformed == 0


def test_a_state_is_as_old_as_it_is(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    first = until(link.state, robot.say)
    time.sleep(0.02)
    while (state := link.state()) is not first:  # those that were on their way
        first = state
    assert link.state() is first


def test_arrivals_by_the_senders_clock() -> None:
    """Sent every 2 ms by a clock that is 1000 s ahead, seen every 20 ms: they came up to 2 ms before they were seen."""
    arrivals, ages = Arrivals(), []
    for poll in range(1000):
        now = 0.0203 * poll
        sent = math.floor(now / 0.002) * 0.002
        ages.append(now - arrivals.of(1000.0 + sent, now))
        if poll > 50:
            assert ages[-1] == pytest.approx(now - sent, abs=2e-4)
    assert min(ages) >= 0.0 and max(ages) < 0.0021


@pytest.mark.parametrize("step", [-3.0, 3.0])
def test_arrivals_when_the_senders_clock_is_set(step: float) -> None:
    """For some seconds states may look old, which is the safe side; never are they from the future."""
    arrivals, ages = Arrivals(window=1.0), []
    for poll in range(300):
        now = 0.02 * poll
        ages.append(now - arrivals.of(now + (step if poll > 100 else 0.0), now))
    assert min(ages) >= 0.0 and max(ages) < 3.0 + 1e-9
    assert [ages[100], ages[-1]] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_broken_states_are_dropped_and_counted(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    until(link.state, robot.say)
    until(lambda: link.state() and link.dropped.crc, lambda: robot.say(tick=8, crc=1))
    until(lambda: link.state() and link.dropped.malformed, lambda: robot.say(tick=9, head=(0, 0)))
    state, sound = link.state(), link.received
    assert state is not None and state.tick == 7 and sound > 0
    until(lambda: link.state() and link.received > sound, robot.say)  # only these count
    assert {"state: crc", "state: head"} == set(link.dropped.reasons) and len(link.dropped.reasons) <= 10


def test_states_of_two_robots_are_refused(ends: tuple[Robot, DdsLink]) -> None:
    """A policy must not see a mixture of them."""
    now, (robot, _) = [0.0], ends
    link, other = DdsLink(DOMAIN, clock=lambda: now[0]), Robot()
    until(link.state, robot.say)

    def both() -> None:
        robot.say(tick=8)
        other.say(tick=9)

    until(lambda: link.state() and link.dropped.malformed > 5, both)
    assert "state: 2 robots send states; one has to go" in link.dropped.reasons
    now[0] += SENDING
    time.sleep(0.1)
    link.state()  # what was on its way
    now[0] += SENDING
    seen: RobotState = until(lambda: (state := link.state()) and state.tick == 10 and state, lambda: other.say(tick=10))
    assert seen.tick == 10  # the other one alone
    link.close()
    other.node.close()


def test_commands_arrive_sealed(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    message = until(lambda: taken(robot.commands, 64), lambda: link.send(COMMAND))[-1]
    record = message.record
    assert tuple(record["head"]) == layout.HEAD and record["level_flag"] == 0xFF
    assert record["crc"] == layout.crc_of(record)
    motors = record["motor_cmd"]
    assert motors["mode"].tolist() == [1] * 12 + [0] * 8
    for name, values in zip(("q", "dq", "tau", "kp", "kd"), vars(COMMAND).values(), strict=True):
        assert motors[name][:12].tolist() == values.tolist() and not motors[name][12:].any()


def test_a_command_can_be_prepared_once_and_sent_often(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    prepared, came = link.prepare(COMMAND), list[Any]()
    until(lambda: len(came) >= 3, lambda: (link.send_prepared(prepared), came.extend(taken(robot.commands, 64))))
    assert len({message.record.tobytes() for message in came}) == 1


def test_images(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    pixels = np.random.default_rng(0).random((1, 60, 106)).astype(np.float32)

    def show(age: float = 0.0, data: bytes = pixels.tobytes()) -> None:
        robot.images.write(Image_("depth", 3, time.monotonic() - age, [1, 60, 106], "float32", data))

    assert link.image("depth") is None
    image: Image = until(lambda: link.image("depth"), show)
    assert image.number == 3 and 0.0 <= time.monotonic() - image.time < PATIENCE
    assert image.pixels.dtype == np.float32 and (image.pixels == pixels).all()
    assert link.image("pixels") is None
    until(lambda: link.image("depth") and link.dropped.malformed, lambda: show(data=b"123"))
    seen = link.dropped.malformed
    until(lambda: link.image("depth") and link.dropped.malformed > seen, lambda: show(age=-100.0))
    assert "image: its time is not of this machine's clock" in link.dropped.reasons


def test_other_publishers_are_heard(ends: tuple[Robot, DdsLink]) -> None:
    now = [0.0]
    link = DdsLink(DOMAIN, clock=lambda: now[0])
    other = ends[1]
    link.send(COMMAND)
    assert link.publishers() == 0  # itself does not count
    assert until(link.publishers, lambda: other.send(COMMAND)) == 1
    time.sleep(0.1)
    link.publishers()
    now[0] += SENDING
    assert link.publishers() == 0  # it fell silent
    link.close()


def test_two_processes(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    link.close()
    script = f"""
import time, numpy as np
from sdpg_runtime.dds.link import DdsLink
from sdpg_runtime.link import Command
link, end = DdsLink({DOMAIN}), time.monotonic() + {PATIENCE}
while time.monotonic() < end:
    link.send(Command(*[np.ones(12)] * 5))
    if (state := link.state()) is not None and state.tick == 42:
        print("seen")
        break
    time.sleep(0.01)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    )
    try:
        record = until(lambda: taken(robot.commands, 64))[-1].record
        assert record["motor_cmd"]["q"][:12].tolist() == [1.0] * 12
        until(lambda: process.poll() is not None, lambda: robot.say(tick=42))
        assert process.stdout is not None and process.stdout.read() == b"seen\n"
    finally:
        process.kill()
        process.wait()


def test_closed_means_gone(ends: tuple[Robot, DdsLink]) -> None:
    robot, link = ends
    until(lambda: taken(robot.commands, 64), lambda: link.send(COMMAND))
    assert len(robot.commands.get_matched_publications()) == 1
    link.close()
    until(lambda: not robot.commands.get_matched_publications())
    link.close()  # again: nothing happens


def test_stays_on_this_machine() -> None:
    xml = configuration("lo")
    assert 'name="lo"' in xml and "<AllowMulticast>false" in xml and 'address="localhost"' in xml
    assert "AllowMulticast" not in configuration("eth0")


def test_a_domain_has_one_interface(ends: tuple[Robot, DdsLink]) -> None:
    with pytest.raises(ValueError, match="on the interface lo already"):
        Node(DOMAIN, "eth0")


def test_a_command_takes_microseconds_to_make() -> None:
    """Not the milliseconds of field by field: 500 a second are one of many things to do."""
    as_record(COMMAND)
    begin = time.process_time()
    for _ in range(500):
        LowCmd_.of(as_record(COMMAND)).serialize()
    assert time.process_time() - begin < 0.5
