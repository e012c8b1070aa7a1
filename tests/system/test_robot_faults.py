"""What goes wrong on the way, over DDS and with real processes: the stand-in robot ends damped, and it is said why.

Times are read from the runtime's log and the robot's report, which have one clock. Guards other than the one in
question are switched off: a busy machine trips them, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("CI"):
    import cyclonedds  # noqa: F401  continuous integration must have these
    import onnx  # noqa: F401
pytest.importorskip("cyclonedds", reason="needs cyclonedds: pip install 'sdpg[robot]'")
pytest.importorskip("onnx", reason="needs onnx: pip install 'sdpg[export]'")

from helpers.arms import need_scene
from helpers.exports import TOO_FAST, standing
from helpers.stand_in import stand

from sdpg.robot.inbox import DAMPED, WATCHDOG
from sdpg_runtime.dds.link import DdsLink
from sdpg_runtime.log import Log
from sdpg_runtime.machine import Mode

need_scene("go2_terrain")
pytestmark = pytest.mark.slow

PATIENCE = 180.0  # seconds: a machine may be busy, and a renderer's first use on it compiles
ROOM = 2.0  # seconds from a damping command to a robot that obeys it: idle, it takes milliseconds
WATCHDOG_SECONDS = 0.5
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
SESSION = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode())
DOMAIN = 201 + (SESSION + WORKER) % 30  # workers of pytest must not hear each other; other tests stay below 200
OFF = {"state_age": 60.0, "state_rate": 0.0, "image_age": 60.0, "tilt": 4.0, "joint_margin": 9.0, "joint_rate": 9e9}
OFF |= {"overruns": 10**9, "refused": 10**9, "lost_loop": 60.0}
TIMES = {"look": 0.5, "crouch": 0.5, "rise": 0.5, "ready": 0.1, "damping": 1.0}
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextmanager
def robot(report: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    where = ["--domain", str(DOMAIN), "--report", str(report), "--watchdog", str(1e3 * WATCHDOG_SECONDS)]
    process = subprocess.Popen([sys.executable, "-m", "sdpg", "robot", "go2", *where, *options], env=ENV)
    try:
        yield process
    finally:
        process.kill()  # its camera ends by itself
        process.wait()


def ended(process: subprocess.Popen[bytes], report: Path) -> dict[str, Any]:
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    facts: dict[str, Any] = json.loads(report.read_text())
    return facts


@dataclass(frozen=True)
class Run:
    """What a runtime left behind."""

    code: int
    said: str
    ticks: np.ndarray  # (T,) of the log's dtype
    ended: float  # CLOCK_MONOTONIC

    @property
    def damping(self) -> int:
        """The first tick that damps."""
        return int((self.ticks["mode"] == Mode.DAMPING).argmax())

    def require_reason(self, why: str) -> None:
        tick = self.ticks[self.damping]
        assert tick["mode"] == Mode.DAMPING and why in tick["reason"].decode(), (tick["reason"], self.said)
        assert tick["sent"] and (tick["sent_stiffness"] == 0.0).all() and (tick["sent_damping"] > 0.0).all()
        assert (self.ticks["mode"] == Mode.POLICY).any()  # it began in mid-run
        assert why in self.said and self.code == 1


def run(export: Path, log: Path, options: list[str], fault: Callable[[subprocess.Popen[str]], object]) -> Run:
    """`fault` is called when the policy is on, and may look for lines of the process."""
    argv = [sys.executable, "-m", "sdpg_runtime.cli", str(export), "--domain", str(DOMAIN), "--auto"]
    argv += ["--wait", str(PATIENCE), "--log", str(log), *options]
    for name, value in TIMES.items():
        argv += ["--time", f"{name}={value}"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, env=ENV, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = await_line(process, "policy")
        said += fault(process) or ""
        said += process.communicate(timeout=PATIENCE)[0]
    finally:
        process.kill()
        process.wait()
    return Run(process.returncode, said, read(log), time.monotonic())


def await_line(process: subprocess.Popen[str], begins: str) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(begins):
            return said
    raise AssertionError(f"it never said '{begins}': {said}")


def read(path: Path) -> np.ndarray:
    log = Log(path)
    rows = [tick.row for tick in log.ticks()]
    log.close()
    return np.array(rows)


def limits(**changes: float) -> list[str]:
    return [word for name, value in (OFF | changes).items() for word in ("--limit", f"{name}={value}")]


def require_damped(facts: dict[str, Any], since: float, until: float, driven_after: bool = False) -> None:
    """By the robot's own report: its motors brake soon after `since`, and stay so; but for a rival's commands."""
    table = facts["trajectory"]
    rows = np.array(table["rows"])
    times, modes = rows[:, 0], rows[:, table["columns"].index("mode")]
    within = (times >= since) & (times < until)
    times, modes = times[within], modes[within]
    braked = np.isin(modes, (DAMPED, WATCHDOG))
    assert braked.any() and braked[-1]
    assert times[braked.argmax()] - since < ROOM
    assert driven_after or braked[braked.argmax() :].all()


def test_faults_of_policy_sensors_and_others(tmp_path: Path) -> None:
    """One robot, which gets up again after each."""
    depth, breaks = standing(tmp_path / "depth"), standing(tmp_path / "breaks", breaks=True)
    report, script = tmp_path / "report.json", tmp_path / "script.json"
    script.write_text(json.dumps([{"seconds": s, "velocity": [v, 0]} for s, v in ((0.5, 0), (999, 2 * TOO_FAST))]))
    with ExitStack() as stack:
        process = stack.enter_context(robot(report, "--terrain", "rough"))
        rival = DdsLink(DOMAIN)  # one that is silent disturbs nobody
        stack.callback(rival.close)
        seen = Faults(process, rival)

        def went(name: str, export: Path, fault: Callable[[subprocess.Popen[str]], object], *options: str) -> Run:
            return run(export, tmp_path / f"{name}.ticks", list(options), fault)

        broke = went("nan", breaks, seen.nothing, *limits(), "--script", str(script))
        joined = went("rival", depth, seen.join, *limits())
        killed = went("killed", depth, seen.kill, *limits())
        frozen = went("frozen", depth, seen.freeze, *limits(state_age=1.0))
        blind = went("blind", depth, seen.blind, *limits(image_age=1.0))
        facts = ended(process, report)

    broke.require_reason("the policy's action is not finite")
    last = broke.ticks[broke.damping]
    assert np.isnan(last["action"]).all() and (broke.ticks["command"][: broke.damping, 0] <= TOO_FAST).all()
    require_damped(facts, last["time"], broke.ended)

    joined.require_reason("1 other publisher(s) of commands")
    assert joined.ticks[joined.damping]["time"] - seen.joined < ROOM
    require_damped(facts, joined.ticks[joined.damping]["time"], joined.ended, driven_after=True)

    assert killed.code == -signal.SIGKILL and (killed.ticks["mode"] != Mode.DAMPING).all()
    silence = next(each for each in facts["commands"]["watchdog"] if each["time"] > seen.killed)
    assert silence["time"] < killed.ended + ROOM
    assert WATCHDOG_SECONDS < silence["after"] < WATCHDOG_SECONDS + ROOM

    frozen.require_reason("no fresh state")
    require_first_stale(frozen, frozen.ticks["state_time"], 1.0)
    require_damped(facts, seen.awake, frozen.ended)

    blind.require_reason("no fresh image of 'depth'")
    require_first_stale(blind, blind.ticks["image_time"][:, 0], 1.0)
    require_damped(facts, blind.ticks[blind.damping]["time"], np.inf)
    assert not facts["camera"]["alive_at_the_end"] and facts["mode_seconds"]["driven"] > 0.0


def require_first_stale(found: Run, measured: np.ndarray, limit: float) -> None:
    """It damps in the first tick that finds something too old."""
    now, i = found.ticks["time"], found.damping
    assert now[i - 1] - measured[i - 1] <= limit < now[i] + found.ticks["took"][i] - measured[i]


class Faults:
    """Each is called when the policy is on; when they happened, by CLOCK_MONOTONIC."""

    def __init__(self, robot: subprocess.Popen[bytes], rival: DdsLink):
        self._robot, self._rival = robot, rival
        self.joined = self.killed = self.awake = 0.0

    def nothing(self, process: subprocess.Popen[str]) -> None:
        """The policy breaks by itself."""

    def join(self, process: subprocess.Popen[str]) -> str:
        self.joined = time.monotonic()
        for _ in range(25):
            self._rival.send(stand())
            time.sleep(0.02)
        return await_line(process, "damping")

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.killed = time.monotonic()
        process.kill()
        process.wait()
        time.sleep(WATCHDOG_SECONDS + 0.5)  # the robot must notice before the next one comes

    def freeze(self, process: subprocess.Popen[str]) -> str:
        self._robot.send_signal(signal.SIGSTOP)
        said = await_line(process, "damping")
        time.sleep(0.3)  # more than the robot's queue of commands holds
        self.awake = time.monotonic()
        self._robot.send_signal(signal.SIGCONT)
        return said

    def blind(self, process: subprocess.Popen[str]) -> None:
        children = Path(f"/proc/{self._robot.pid}/task/{self._robot.pid}/children").read_text().split()
        (camera,) = (pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(int(camera), signal.SIGKILL)


@pytest.mark.parametrize(
    ("wire", "limit", "why"),
    [
        (("--corrupt", "0.3"), {"refused": 5}, "messages with a wrong CRC or shape within a second, 5 are allowed"),
        (("--loss", "0.3"), {"state_rate": 400}, "are needed: some are lost"),
    ],
    ids=["corrupt", "loss"],
)
def test_a_wire_that_turns_bad(tmp_path: Path, wire: tuple[str, ...], limit: dict[str, float], why: str) -> None:
    report, export = tmp_path / "report.json", standing(tmp_path / "state", obs="state")
    with robot(report, "--no-camera", *wire, "--disturb-after", "4") as process:
        found = run(export, tmp_path / "run.ticks", limits(**limit), lambda process: None)
        facts = ended(process, report)
    found.require_reason(why)
    damping, began = found.ticks[found.damping]["time"], facts["wire"]["states"]["begins"]
    assert 0.0 < damping - began < 1.0 + ROOM  # both are counted over a second
    assert sum(facts["wire"]["states"][name] for name in ("lost", "corrupted")) > 5
    require_damped(facts, damping, found.ended)
    assert facts["mode_seconds"]["driven"] > 0.0
