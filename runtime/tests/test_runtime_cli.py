"""The command line, as a process of its own, with a robot in memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import contract, environment, write_export

from sdpg_runtime.cli import main
from sdpg_runtime.screen import Keys, Screen, lines

# A busy machine may be late; that is another test's business.
QUICK = "--time look=0.1 --time crouch=0.5 --time rise=0.5 --time ready=0.1 --time damping=0.5".split()
PATIENT = "--limit state_age=30 --limit image_age=30 --limit overruns=9999 --limit lost_loop=30".split()


def command(export: Path, *more: str, interface: str = "lo") -> list[str]:
    link = ["--link", "fakes:in_real_time", "--interface", interface]
    return [sys.executable, "-m", "sdpg_runtime.cli", str(export), *link, *PATIENT, *QUICK, *more]


def run(export: Path, *more: str, interface: str = "lo") -> subprocess.CompletedProcess[str]:
    called = command(export, *more, interface=interface)
    return subprocess.run(
        called, env=environment(), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


def test_neither_torch_nor_a_simulator_is_imported(export: Path) -> None:
    names = "cli contract guards link log loop machine observation pipeline policy publisher replay robot screen"
    imports = "".join(f"import sdpg_runtime.{name};" for name in [*names.split(), "timing", "unitree", "velocity"])
    script = f"import sys;{imports}print([n for n in ('torch', 'mujoco', 'sdpg') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_walk_log_and_replay(export: Path, tmp_path: Path) -> None:
    log = tmp_path / "walk.ticks"
    done = run(export, "--auto", "--seconds", "0.5", "--velocity", "0.5", "0", "--log", str(log), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["mode"] == "damping" and report["reason"] == "asked for" and report["sent"] > 100
    assert report["log"]["lost_records"] == 0 and report["loop_ms"]["max"] > 0.0
    done = subprocess.run(
        [sys.executable, "-m", "sdpg_runtime.cli", "replay", str(log), str(export)],
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "the same actions, bit for bit" in done.stdout


def test_a_dry_run_sends_nothing(export: Path) -> None:
    done = run(export, "--auto", "--seconds", "0.2", "--dry-run", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["sent"] == 0


@pytest.mark.parametrize(
    ("interface", "why"),
    [("blind", "no image has come from camera 'depth', which the policy needs"), ("falls", "tilted by 3.14 rad")],
)
def test_a_robot_that_lacks_something_is_refused(export: Path, interface: str, why: str) -> None:
    done = run(export, "--auto", "--wait", "0.3", interface=interface)
    assert done.returncode == 2 and why in done.stderr and len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_guard_ends_it_with_1(export: Path) -> None:
    done = run(export, "--auto", "--domain", "1", "--json", "--limit", "state_age=0.5", interface="stops")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["mode"] == "damping" and "no fresh state" in report["reason"]


def test_a_loop_that_hangs_ends_it_with_1(export: Path) -> None:
    """The process ends although its control thread never comes back."""
    done = run(export, "--auto", "--domain", "1", "--json", "--limit", "lost_loop=0.5", interface="dies")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and "control loop stopped" in report["reason"]


def test_a_link_that_fails_is_told_in_one_line(export: Path) -> None:
    done = run(export, "--auto", interface="fails")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "error in the control loop: OSError: the cable is out" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_damps_and_ends(export: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command(export, "--auto"), env=environment(), stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert any("policy" in line for line in process.stdout)
    process.send_signal(number)
    begun = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "damping asked for" in out and time.monotonic() - begun > 0.4


def test_keys_from_a_pipe(export: Path) -> None:
    process = subprocess.Popen(
        command(export), env=environment(), stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None and process.stdin is not None
    for key, expected in (("", "passive"), ("s", "stand_up"), ("", "ready"), ("p", "policy"), ("q", "damping")):
        process.stdin.write(key)
        process.stdin.flush()
        assert any(expected in line for line in process.stdout)
    process.communicate(timeout=60)
    assert process.returncode == 0


# --- without a process


def test_check(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(export)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Go2: 12 joints at 50 Hz", "sees history: float32 [135]", "sees depth: float32 [2, 5, 8]", "all is well"
    ]  # fmt: skip
    told = contract()
    told["version"] = 9
    assert main(["check", str(write_export(tmp_path / "b", told))]) == 2
    assert "version 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--link", "unitree"], "needs the SDK"),
        (["--link", "carrier-pigeon"], "is neither dds, unitree nor MODULE:FUNCTION"),
        (["--link", "nowhere:Link"], "can't be loaded"),
        (["--link", "fakes:Clock"], "can't begin on 'lo', domain 1"),
        (["--limit", "height=3"], "is not NAME=VALUE"),
        (["--script", "/nowhere.json"], "can't read '/nowhere.json'"),
        (["--link", "fakes:in_real_time", "--log", "/nowhere/x"], "can't begin a log"),
    ],
)
def test_what_cannot_be_is_refused(export: Path, more: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(export), *more]) == 2
    err = capsys.readouterr().err
    assert why in err and len(err.splitlines()) == 1


def test_realtime_that_is_not_granted_is_refused(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setscheduler", denied)
    assert main([str(export), "--realtime"]) == 2
    assert "--realtime is not granted (Operation not permitted); leave it out" in capsys.readouterr().err


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"p50": 1.0, "p99": 2.0, "max": 3.0}
    report = {"mode": "stand_up", "reason": "", "note": "waits", "seconds": 1.0, "ticks": 5, "missed_deadlines": 1}
    report |= {"loop_ms": times, "late_ms": times, "state_age_ms": times, "image_age_ms": times, "sent": 9}
    report |= {"refused_messages": {"crc": 1, "malformed": 2}, "log": {"path": "x", "lost_records": 0, "trouble": ""}}
    shown = lines(report, dry=True)
    assert shown[0].endswith("STAND UP   (dry run: nothing is sent)") and "waits" in shown[1]
    screen = Screen(sys.stdout)
    screen.draw(shown)
    screen.draw(shown[:2])
    assert f"\x1b[{len(shown)}A" in capsys.readouterr().out


def test_without_a_keyboard() -> None:
    with Keys() as keys:
        assert keys.pressed() is None
