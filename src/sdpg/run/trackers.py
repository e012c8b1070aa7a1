"""Experiment trackers as sinks of a run: W&B and trackio. One that fails costs a warning, never the run."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdpg.config import TrainCfg
from sdpg.errors import SdpgError
from sdpg.run import checkpoint, log

TRACK = "track.json"  # in the run folder: under which id a run is known to trackers, and how far they have its rows

PATIENCE = 30.0  # seconds for a server's first answer

Warn = Callable[[str], None]


def require(tracker: str) -> None:
    """Refuse a tracker that is not installed, before a run begins."""
    if tracker != "none" and importlib.util.find_spec(tracker) is None:
        raise SdpgError(
            f"--track {tracker}: the package is not installed; pip install 'sdpg[{tracker}]', or --track none"
        )


def open_trackers(cfg: TrainCfg, folder: Path, warn: Warn) -> list[log.Sink]:
    """The tracker that the run asks for, if any. To be called before metrics.jsonl is cut back to a checkpoint."""
    if cfg.track == "none":
        return []
    try:
        name, sent = _register(cfg, folder)
        begin = {"wandb": _wandb, "trackio": _trackio}[cfg.track]
        with _stdout_is_ours():
            return [Tracker(cfg.track, begin(cfg, folder, name, warn), sent, warn)]
    except Exception as error:  # other people's code, networks and accounts
        warn(f"no {cfg.track} for this run: {_reason(error)}; metrics.jsonl and TensorBoard have it all")
        return []


class Tracker:
    """One run of a tracker. It has the rows up to iteration `sent` from an earlier session; an exact resume makes them
    again, number for number."""

    def __init__(self, name: str, run: Any, sent: int, warn: Warn):
        self._name, self._run, self._sent, self._warn = name, run, sent, warn

    def write(self, row: log.Row) -> None:
        step = int(row["iteration"] or 0)
        if step > self._sent:
            self._try(lambda run: run.log(log.numbers(row), step=step))

    def close(self) -> None:
        self._try(lambda run: run.finish())

    def _try(self, act: Callable[[Any], None]) -> None:
        if self._run is None:
            return
        try:
            with _stdout_is_ours():
                act(self._run)
        except Exception as error:
            self._run = None
            self._warn(f"{self._name} is left alone from here on: {_reason(error)}; metrics.jsonl has it all")


def _stdout_is_ours() -> contextlib.redirect_stdout[Any]:
    """Trackers greet; `--json` promises one object on standard output."""
    return contextlib.redirect_stdout(sys.stderr)


def _register(cfg: TrainCfg, folder: Path) -> tuple[str, int]:
    """The run's id, the same for all of its sessions, and the last iteration that this tracker has."""
    path, place = folder / TRACK, f"{cfg.track}/{cfg.track_project}"
    if path.exists():
        known = json.loads(path.read_bytes())
        if not re.fullmatch(r"[\w.-]+", known["id"]):  # trackers make paths of it
            raise ValueError(f"{TRACK} has an id that is none")
    else:
        stem = re.sub(r"[^\w.-]+", "-", f"{cfg.task}-{folder.resolve().name}")
        known = {"id": f"{stem}-{secrets.token_hex(4)}", "sent": {}}
    sent = 0
    if place in known["sent"]:  # the last session may have gone beyond the checkpoint that this one starts from
        rows = log.read(folder) if (folder / log.METRICS).exists() else []
        sent = max([known["sent"][place], *(int(row["iteration"]) for row in rows[-1:])])
    known["sent"][place] = sent
    checkpoint.write_atomic(path, json.dumps(known, indent=1).encode() + b"\n")
    return known["id"], sent


def _wandb(cfg: TrainCfg, folder: Path, name: str, warn: Warn) -> Any:
    """Without an account or a network, offline: what `wandb sync` sends later."""
    import wandb

    def begin(mode: str) -> Any:
        return wandb.init(
            project=cfg.track_project, id=name, name=name, resume="allow", dir=folder, config=dataclasses.asdict(cfg),
            mode=mode, settings=wandb.Settings(silent=True, console="off", init_timeout=PATIENCE),
        )  # fmt: skip

    later = f"its rows are kept in {folder / 'wandb'}, from where `wandb sync` sends them"
    mode = wandb.setup().settings.mode  # WANDB_MODE, or what `wandb offline` left
    if mode == "online" and not wandb.login(prompt=False, verify=False):
        warn(f"wandb: not logged in (`wandb login`); {later}")
        mode = "offline"
    try:
        return begin(mode)
    except Exception as error:
        if mode != "online":
            raise
        warn(f"wandb: {_reason(error)}; {later}")
        return begin("offline")


def _trackio(cfg: TrainCfg, folder: Path, name: str, warn: Warn) -> Any:
    """Local, in TRACKIO_DIR; `trackio show --project PROJECT` opens it."""
    import trackio

    trackio.init(project=cfg.track_project, name=name, resume="allow", config=dataclasses.asdict(cfg))
    return trackio  # a run that is not finished by its module is finished again at exit


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
