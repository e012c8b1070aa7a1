"""Lists run folders, and tells whether each run is running, finished, interrupted or failed."""

from __future__ import annotations

import datetime
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sdpg.errors import SdpgError
from sdpg.run import log

CONFIG = "config.json"
STATUS = "status.json"
RETURN = "Train/mean_reward"

State = Literal["running", "finished", "interrupted", "failed", "unreadable"]
STATES = ("running", "finished", "interrupted", "failed")  # those that a run writes of itself

QUIET = 300.0  # seconds without a new row after which a run that has no status.json is not running


@dataclass(frozen=True)
class Options:
    """List the runs below a folder, the one that moved last at the end: `sdpg runs [FOLDER]`; FOLDER is runs."""

    json: bool = False
    """One JSON list on standard output."""


@dataclass(frozen=True)
class Run:
    """What a run folder tells without its checkpoints; None is what it does not tell."""

    run: str
    state: State
    message: str = ""  # why it is in that state, where that is not plain
    task: str | None = None
    obs: str | None = None
    algorithm: str | None = None
    seed: int | None = None
    iteration: int | None = None
    iterations: int | None = None
    mean_reward: float | None = None  # the last one
    best_reward: float | None = None
    minutes: float | None = None
    started: str | None = None
    updated: str | None = None


def find(folder: Path) -> list[Run]:
    """Every run below `folder`, the one that moved last at the end; what can't be read is at the front."""
    if not folder.is_dir():
        raise SdpgError(f"no folder '{folder}'; give one with runs below it (`sdpg train TASK` makes runs/)")
    refused: list[OSError] = []
    found = []
    for path, below, files in os.walk(folder, onerror=refused.append):
        if CONFIG in files:
            found.append(look(Path(path)))
            below.clear()  # runs do not nest
    found += [_unreadable(Path(error.filename), error) for error in refused]
    return sorted(found, key=lambda run: (_seconds(run.updated), run.run))


def look(folder: Path) -> Run:
    """One run folder. It may be damaged in any way: it must not hide the others."""
    try:
        return _look(folder)
    except Exception as error:
        return _unreadable(folder, error)


def read_config(run: Path) -> dict[str, Any]:
    """config.json of a run folder: "cfg", its options, and "sessions", a list of facts."""
    if not run.is_dir():
        raise SdpgError(f"no run folder '{run}'; give the folder that `sdpg train` printed (runs/TASK/ALGORITHM/DATE)")
    try:
        config = json.loads((run / CONFIG).read_bytes())
        sessions = config.setdefault("sessions", [])
        if not isinstance(config["cfg"], dict):
            raise ValueError("no 'cfg' in it")
        if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
            raise ValueError("its 'sessions' are no list of objects")
    except FileNotFoundError:
        raise SdpgError(f"'{run}' is not a run folder: it has no {CONFIG}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SdpgError(f"'{run / CONFIG}' can't be read: {error}; give another run") from error
    return config


def _look(folder: Path) -> Run:
    config = read_config(folder)
    cfg = config["cfg"]
    rows = log.read(folder) if (folder / log.METRICS).exists() else []
    status = _status(folder) or _deduced(folder, config, rows)
    state, message = _state(status)
    returns = [row[RETURN] for row in rows if isinstance(row.get(RETURN), int | float) and math.isfinite(row[RETURN])]
    return Run(
        run=str(folder),
        state=state,
        message=message,
        task=str(cfg["task"]),
        obs=cfg.get("obs"),
        algorithm=cfg.get("algorithm"),
        seed=cfg.get("seed"),
        iteration=int(status["iteration"]),
        iterations=int(status["iterations"]),
        mean_reward=None if status["mean_reward"] is None else float(status["mean_reward"]),
        best_reward=max(returns, default=None),
        minutes=float(status["seconds"]) / 60.0,
        started=_moment(status["started"]),
        updated=_moment(status["updated"]),
    )


def _status(folder: Path) -> dict[str, Any] | None:
    try:
        status = json.loads((folder / STATUS).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{STATUS}: {error}") from error
    if not isinstance(status, dict) or status.get("state") not in STATES:
        raise ValueError(f"{STATUS} names no state")
    return status


def _deduced(folder: Path, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The status of a run of an earlier version, which wrote no status.json."""
    cfg, last = config["cfg"], rows[-1] if rows else {}
    iteration, seconds = int(last.get("iteration", 0)), float(last.get("seconds", 0.0))
    updated = (folder / (log.METRICS if rows else CONFIG)).stat().st_mtime
    minutes = cfg.get("minutes")
    # The clock is looked at after the last row is written.
    finished = iteration >= cfg["iterations"] or (minutes is not None and seconds >= 0.99 * 60.0 * minutes)
    state = "finished" if finished else "running" if time.time() - updated < QUIET else "interrupted"
    sessions = config["sessions"] or [{}]
    return {
        "state": state,
        "message": "",
        "started": sessions[0].get("started") or _iso(updated - seconds),
        "updated": _iso(updated),
        "iteration": iteration,
        "iterations": cfg["iterations"],
        "seconds": seconds,
        "mean_reward": last.get(RETURN),
    }


def _state(status: Mapping[str, Any]) -> tuple[State, str]:
    """A run that was killed could not write so."""
    state, message = status["state"], str(status.get("message") or "")
    if state == "running" and "pid" in status:
        if status["host"] != socket.gethostname():
            return "running", message or f"on {status['host']}"
        if not _exists(int(status["pid"])):
            return "interrupted", "killed"
    return state, message


def _exists(pid: int) -> bool:
    if os.name == "nt":
        return True  # there, signal 0 is not a question
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return pid > 0  # 0 and less are groups of processes


def _unreadable(folder: Path, error: Exception) -> Run:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, KeyError):
        reason = f"there is no {reason} in its files"
    return Run(run=str(folder), state="unreadable", message=" ".join(reason.split()) or type(error).__name__)


# --- as text ----------------------------------------------------------------------------------------------------------

HEADER = ("run", "task", "obs", "algorithm", "seed", "iteration", "return", "best", "minutes", "state", "age", "")
NUMBERS = (4, 5, 6, 7, 8, 10)  # columns that stand to the right


def table(found: Sequence[Run]) -> list[tuple[str, ...]]:
    """A line of text per run."""
    now = time.time()
    return [
        (
            run.run, _text(run.task), _text(run.obs), _text(run.algorithm), _text(run.seed),
            "-" if run.iteration is None else f"{run.iteration}/{run.iterations}",
            _text(run.mean_reward), _text(run.best_reward), _text(run.minutes), run.state,
            "-" if run.updated is None else age(now - _seconds(run.updated)), run.message,
        )
        for run in found
    ]  # fmt: skip


def age(seconds: float) -> str:
    """In the largest unit that gives at least 2 of it."""
    for name, unit in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).isoformat(timespec="seconds")


def _moment(text: str) -> str:
    datetime.datetime.fromisoformat(text)  # raises if it is none
    return text


def _seconds(moment: str | None) -> float:
    return 0.0 if moment is None else datetime.datetime.fromisoformat(moment).timestamp()
