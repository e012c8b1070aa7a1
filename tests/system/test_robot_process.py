"""The stand-in as a process of its own, over DDS on the loopback interface, as a runtime meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.stand_in import STANCE, sealed, stand

if os.environ.get("CI"):
    import cyclonedds  # noqa: F401  continuous integration must have it
pytest.importorskip("cyclonedds", reason="needs cyclonedds: pip install 'sdpg[robot]'")

from sdpg.robot.disturb import broken
from sdpg_runtime.dds.link import DdsLink
from sdpg_runtime.dds.messages import LowCmd_

pytestmark = pytest.mark.slow
PATIENCE = 120.0  # seconds: a machine may be busy, and a renderer's first use on it compiles
DOMAIN = 1 + os.getpid() % 99


@contextmanager
def _robot(report: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "sdpg", "robot", "go2", "--domain", str(DOMAIN), "--report", str(report), *options]
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": paths})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _ended(process: subprocess.Popen[bytes], report: Path) -> dict[str, Any]:
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    facts: dict[str, Any] = json.loads(report.read_text())
    return facts


def _until(ask: Callable[[], Any], tell: Callable[[], Any] = lambda: None) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        tell()
        if answer := ask():
            return answer
        time.sleep(0.002)
    raise AssertionError("waited in vain")


@pytest.fixture
def link() -> Iterator[DdsLink]:
    link = DdsLink(DOMAIN)
    yield link
    link.close()


def _stand_up(link: DdsLink) -> None:
    first = _until(link.state).position
    begin = time.monotonic()

    def command() -> None:
        share = min((time.monotonic() - begin) / 1.5, 1.0)
        link.send(stand((1.0 - share) * first + share * STANCE))

    def stands() -> bool:
        state = link.state()
        return state is not None and bool(abs(state.position - STANCE).max() < 0.25)

    _until(stands, command)


def test_stands_refuses_what_is_broken_and_brakes_when_left_alone(tmp_path: Path, link: DdsLink) -> None:
    report = tmp_path / "report.json"
    with _robot(report, "--no-camera") as process:
        _stand_up(link)
        for bit in range(2000, 2050):  # broken commands, of legs stretched far
            link._commands.write(LowCmd_.of(broken(sealed(stand(np.full(12, 9.0))), bit)))
            link.send(stand())
            time.sleep(0.002)
        state = link.state()
        assert state is not None and state.quaternion[0] > 0.9
        tick = state.tick
        _until(lambda: (state := link.state()) is not None and state.tick > tick + 500)  # nobody commands
        facts = _ended(process, report)
    assert link.dropped.crc == link.dropped.malformed == 0
    commands = facts["commands"]
    assert commands["dropped"] == {"crc": 50} and commands["accepted"] > 50
    assert commands["watchdog"][-1]["seconds"] is None and commands["watchdog"][-1]["after"] >= 0.1
    assert facts["mode_seconds"]["watchdog"] > 0.0 and facts["mode_seconds"]["driven"] > 0.0
    assert len(facts["trajectory"]["rows"]) > 50


def _has_ended(pid: str) -> bool:
    """Gone, or a zombie that its parent has not asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_robot_outlives_its_camera(tmp_path: Path, link: DdsLink) -> None:
    report = tmp_path / "report.json"
    with _robot(report, "--terrain", "rough", "--level", "3", "--sensor.noise", "0.01") as process:
        first = _until(lambda: link.image("depth"))
        _until(lambda: (image := link.image("depth")) is not None and image.number > first.number + 3)
        assert first.pixels.shape == (1, 60, 106) and first.pixels.dtype == np.float32
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        cameras = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(cameras[0]), signal.SIGKILL)
        _until(lambda: _has_ended(cameras[0]))  # on a loaded machine that takes a while
        state = _until(link.state)
        _until(lambda: (now := link.state()) is not None and now.tick > state.tick + 500)
        last = link.image("depth")
        _until(lambda: (now := link.state()) is not None and now.tick > state.tick + 1000)
        assert link.image("depth") is last  # no more images come
        facts = _ended(process, report)
    assert facts["camera"]["pid"] == int(cameras[0]) and not facts["camera"]["alive_at_the_end"]
    assert facts["camera"]["images"] > 3


def test_disturbances_are_counted_at_both_ends(tmp_path: Path, link: DdsLink) -> None:
    report = tmp_path / "report.json"
    wire = ("--loss", "0.2", "--corrupt", "0.2", "--latency", "3", "--jitter", "4")
    with _robot(report, "--no-camera", *wire) as process:
        _stand_up(link)
        _until(lambda: link.state() and link.dropped.crc > 20, lambda: link.send(stand()))
        facts = _ended(process, report)
    for line in facts["wire"].values():
        assert line["lost"] > 20 and line["corrupted"] > 20
    assert facts["commands"]["dropped"]["crc"] > 20
