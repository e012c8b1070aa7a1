"""How well does an exported policy walk the stand-in robot over DDS, beside the simulator that it was trained in?

    sdpg export runs/go2 --out go2
    python benchmarks/closed_loop.py go2 --terrain stairs_up --level 3 --starts 10 --write out.json --table out.md
    python benchmarks/closed_loop.py go2 --soak 30 --write soak.json

For every start (a seed of ground, heading and noise) and every setting: `sdpg robot go2` and `sdpg-run --auto` as
processes of their own on the loopback interface, with velocities from a script. Distance, falls and tracking errors are
those of the stand-in's own trajectory while the policy was on, against the commands in the runtime's log: both have the
clock CLOCK_MONOTONIC. This is sim-to-sim over DDS: no robot has taken part.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from closed_loop_sim import measured, walk

from sdpg.bench import machine
from sdpg.robot.inbox import DRIVEN, MODES
from sdpg.robot.world import Place
from sdpg_runtime import contract, velocity
from sdpg_runtime.log import Log
from sdpg_runtime.machine import Mode

CAMERA = "--sensor.latency 60 100 --sensor.noise 0.01 --sensor.edge 0.3 --sensor.holes 0.01".split()
SETTINGS: dict[str, Sequence[str]] = {
    "none": (),
    "latency 10 ms": ("--latency", "10"),
    "jitter 10 ms": ("--jitter", "10"),
    "loss 10 %": ("--loss", "0.1"),
    "sensor noise": ("--imu-noise", "0.06", "--encoder-noise", "0.006"),
    "torque-speed limits": ("--torque-speed",),
    "camera's sensor model": CAMERA,
}
SETTINGS["all together"] = [option for options in SETTINGS.values() for option in options]
SCRIPT = (  # seconds, forward, left (m/s), turn (rad/s): a minute within what go2_terrain was trained with
    (5, 0.4, 0.0, 0.0), (10, 0.6, 0.0, 0.0), (5, 0.4, 0.0, 0.3), (5, 0.4, 0.0, -0.3),
    (5, 0.3, 0.2, 0.0), (5, 0.3, -0.2, 0.0), (20, 0.6, 0.0, 0.0), (5, 0.0, 0.0, 0.0),
)  # fmt: skip
CIRCLE = ((1e6, 0.4, 0.0, 0.4),)  # for as long as one likes on one patch
SPREAD = 20.0  # degrees to either side that starts face
PATIENCE = 300.0  # seconds for processes to begin and to end
NUMBERS = ("distance", "velocity_error", "turn_error")
TIMES = ("loop_ms", "late_ms", "state_age_ms", "image_age_ms")


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def started(*argv: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """In a group of its own, nothing of which is left behind."""
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *argv], stdin=subprocess.DEVNULL, stdout=file, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def robot_argv(given: argparse.Namespace, place: Place, report: Path, options: Sequence[str]) -> list[str]:
    argv = ["sdpg", "robot", "go2", "--domain", str(given.domain), "--terrain", place.terrain]
    argv += ["--level", str(place.level), "--seed", str(place.seed), "--heading", f"{place.heading:.3f}"]
    return [*argv, *(["--course"] if place.course else []), "--report", str(report), *options]


def runtime_argv(given: argparse.Namespace, seconds: float, script: Path, log: Path) -> list[str]:
    argv = ["sdpg_runtime.cli", str(given.folder), "--domain", str(given.domain), "--auto", "--json"]
    argv += ["--seconds", str(seconds), "--script", str(script), "--log", str(log), "--wait", str(PATIENCE)]
    argv += [word for limit in given.limit for word in ("--limit", limit)]
    return [*argv, *(["--realtime"] if given.realtime else [])]


def attempted(*what: Any) -> dict[str, Any]:
    """One start that fails does not cost the others."""
    try:
        return drive(*what)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"failed": f"{type(error).__name__}: {error}", "fell": False, "whole": False}


def drive(
    given: argparse.Namespace, place: Place, options: Sequence[str], segments: Sequence[Sequence[float]], seconds: float
) -> dict[str, Any]:
    """One start: both processes from begin to end, and what they tell."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        script, report, log, said = (here / each for each in ("script.json", "robot.json", "run.ticks", "run.json"))
        script.write_text(json.dumps([{"seconds": s, "velocity": [x, y], "turn": w} for s, x, y, w in segments]))
        with started(*robot_argv(given, place, report, options), out=here / "robot.txt") as robot:
            with started(*runtime_argv(given, seconds, script, log), out=said) as runtime:
                memory = watched({"stand-in": robot, "runtime": runtime}, PATIENCE + 2 * seconds)
            robot.send_signal(signal.SIGINT)
            robot.wait(PATIENCE)
        if not said.stat().st_size:
            raise ChildProcessError(f"sdpg-run ended with {runtime.returncode} before anything moved")
        told, facts = json.loads(said.read_text()), json.loads(report.read_text())
        return {"exit_code": runtime.returncode, "memory_mb": memory, **summary(told, facts, ticks_of(log), seconds)}


def watched(processes: dict[str, subprocess.Popen[bytes]], seconds: float) -> dict[str, list[list[float]]]:
    """Until the runtime ends: [seconds, megabytes] of each, and of the camera, which is the stand-in's child."""
    begin, found = time.monotonic(), {name: list[list[float]]() for name in (*processes, "camera")}
    while processes["runtime"].poll() is None:
        passed = time.monotonic() - begin
        if passed > seconds:
            raise TimeoutError("sdpg-run does not end")
        if processes["stand-in"].poll() is not None:
            raise ChildProcessError(f"the stand-in ended with {processes['stand-in'].returncode}")
        pids = {name: process.pid for name, process in processes.items()} | camera_of(processes["stand-in"].pid)
        for name, pid in pids.items():
            if (now := megabytes(pid)) is not None:
                found[name].append([round(passed, 1), now])
        time.sleep(1.0)
    return found


def camera_of(robot: int) -> dict[str, int]:
    children = Path(f"/proc/{robot}/task/{robot}/children").read_text().split()
    pids = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return {"camera": pids[0]} if pids else {}


def megabytes(pid: int) -> float | None:
    """Resident."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


# --- numbers ----------------------------------------------------------------------------------------------------------


def ticks_of(path: Path) -> dict[str, np.ndarray]:
    """Times and commands of the policy's ticks; images of a long run would not fit into memory."""
    log, times, commands = Log(path), [], []
    for tick in log.ticks():
        if tick.row["mode"] == Mode.POLICY:
            times.append(float(tick.row["time"]))
            commands.append(tick.row["command"].copy())
    log.close()
    return {"time": np.array(times), "command": np.array(commands).reshape(-1, 3)}


def summary(
    told: dict[str, Any], facts: dict[str, Any], ticks: dict[str, np.ndarray], seconds: float
) -> dict[str, Any]:
    kept = {name: told[name] for name in (*TIMES, "reason", "ticks", "missed_deadlines", "refused_messages", "sent")}
    kept["missed_share"] = told["missed_deadlines"] / max(told["missed_deadlines"] + told["ticks"], 1)
    kept |= {"real_time_factor": facts["real_time_factor"], "commands": facts["commands"], "falls": facts["falls"]}
    if not len(ticks["time"]):
        return kept | {"fell": False, "whole": False, "seconds": 0.0}
    first, last = ticks["time"][0], ticks["time"][-1]
    driven = [fall for fall in facts["falls"] if fall["mode"] == MODES[DRIVEN] and first <= fall["time"] <= last + 0.1]
    table = np.array(facts["trajectory"]["rows"])
    columns = [facts["trajectory"]["columns"].index(name) for name in ("x", "y", "forward", "left", "turn")]
    table = table[(table[:, 0] >= first) & (table[:, 0] <= last)]
    asked = ticks["command"][np.searchsorted(ticks["time"], table[:, 0], side="right") - 1]
    whole = told["exit_code"] == 0 and not driven
    kept |= {"fell": bool(driven), "whole": whole, "seconds": last - first, "rate_by_tenths": rates(ticks["time"])}
    return kept | measured(np.concatenate((table[:, columns], asked), axis=1))


def rates(times: np.ndarray) -> list[float]:
    """Ticks a second in each tenth of the time."""
    counts, edges = np.histogram(times, 10)
    return [round(float(count / seconds), 3) for count, seconds in zip(counts, np.diff(edges), strict=True)]


def inside(given: argparse.Namespace, places: Sequence[Place]) -> list[dict[str, Any]]:
    folder = contract.load(given.folder)
    told, step = velocity._timed([(s, np.array(each, np.float32)) for s, *each in SCRIPT]), folder.contract.seconds
    commands = np.array([told(i * step, None) for i in range(round(given.seconds / step))])  # type: ignore[arg-type]
    return [walk(folder, place, commands) | {"whole": True} for place in places]


def mean(runs: Sequence[dict[str, Any]], name: str) -> float:
    values = [run[name] for run in runs if name in run]
    return float(np.mean(values)) if values else float("nan")


def line(name: str, runs: Sequence[dict[str, Any]]) -> str:
    upright = sum(run["whole"] and not run["fell"] for run in runs)
    cells = [name, f"{upright} of {len(runs)}", f"{sum(run['fell'] for run in runs)}"]
    cells += [f"{mean(runs, each):.2f}" for each in NUMBERS]
    for each in ("loop_ms", "state_age_ms", "image_age_ms"):
        worst = [[run[each][q] for q in ("p50", "p99", "max")] for run in runs if each in run]
        cells.append(" / ".join(f"{value:.1f}" for value in np.max(worst, axis=0)) if worst else "")
    missed = [run["missed_share"] for run in runs if "missed_share" in run]
    return "| " + " | ".join([*cells, f"{100 * max(missed):.2f} %" if missed else ""]) + " |"


HEADER = """\
| setting | to the end, upright | falls | distance, m | velocity error, m/s | turn error, rad/s \
| loop, ms | state age, ms | image age, ms | missed deadlines |
|---|---|---|---|---|---|---|---|---|---|"""


def markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """Errors and distances are means over starts; times are p50 / p99 / max of the worst start."""
    return "\n".join([HEADER, *(line(name, runs) for name, runs in results.items())]) + "\n"


# --- what is asked for ------------------------------------------------------------------------------------------------


def places_of(given: argparse.Namespace) -> list[Place]:
    headings = [float(np.random.default_rng(seed).uniform(-SPREAD, SPREAD)) for seed in range(given.starts)]
    course = given.terrain != "plain"
    return [Place(given.terrain, given.level, seed, course, heading) for seed, heading in enumerate(headings)]


def closed_loop(given: argparse.Namespace) -> None:
    places, results = places_of(given), dict[str, list[dict[str, Any]]]()
    results["training's simulator"] = inside(given, places)
    print(f"{HEADER}\n{line('training', results[next(iter(results))])}", flush=True)
    for name in given.settings or SETTINGS:
        results[name] = []
        for place in places:
            found = attempted(given, place, SETTINGS[name], SCRIPT, given.seconds)
            results[name].append({key: value for key, value in found.items() if key != "memory_mb"})
            print(line(f"{name}, start {place.seed}", results[name][-1:]), flush=True)
            write(given, {"settings": SETTINGS, "results": results})  # whatever happens to the rest


def soak(given: argparse.Namespace) -> None:
    """One long run in a circle; of its last three quarters, the second half is compared with the first."""
    found = attempted(given, places_of(given)[0], (), CIRCLE, 60.0 * given.soak)
    growth = {}
    for name, samples in found.get("memory_mb", {}).items():
        settled = [value for passed, value in samples if passed > 0.25 * samples[-1][0]]
        half = len(settled) // 2
        growth[name] = float(np.mean(settled[half:]) - np.mean(settled[:half])) if half else None
    brief = {name: found[name] for name in ("failed", "reason", "seconds", "rate_by_tenths") if name in found}
    brief |= {"soak_minutes": given.soak, "memory_growth_mb": growth}
    print(json.dumps(brief, indent=1))
    write(given, brief | {"run": found})


def write(given: argparse.Namespace, found: dict[str, Any]) -> None:
    told = {"command": shlex.join(["python", *sys.argv]), "machine": machine.describe(1)} | found
    if given.write is not None:
        given.write.write_text(json.dumps(told, indent=1) + "\n")
    if "results" in found and given.table is not None:
        given.table.write_text(markdown(found["results"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("folder", type=Path, help="that `sdpg export` wrote, of go2_terrain; or its run, if that has export/")
    add("--terrain", default="rough", help="as of `sdpg robot go2` (default: rough)")
    add("--level", type=int, default=0)
    add("--starts", type=int, default=10)
    add("--seconds", type=float, default=60.0, help="of the policy, for each start")
    add("--settings", nargs="+", choices=list(SETTINGS), metavar="NAME", help=", ".join(SETTINGS).replace("%", "%%"))
    add("--soak", type=float, metavar="MINUTES", help="in place of all that: one long run, and its memory")
    add("--limit", action="append", default=[], metavar="NAME=VALUE", help="of the runtime's guards")
    add("--realtime", action="store_true", help="real-time scheduling for sdpg-run")
    add("--domain", type=int, default=40)
    add("--write", type=Path, metavar="FILE", help="all numbers as JSON")
    add("--table", type=Path, metavar="FILE", help="the table as Markdown")
    given = parser.parse_args()
    if not (given.folder / contract.CONTRACT).exists():
        given.folder = given.folder / "export"
    return given


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the `finally`s
    (closed_loop if given.soak is None else soak)(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
