"""The folder of a run: config.json (what was run, by which versions), status.json (how it stands), finding one again.

config.json      options and one entry per session: when, command, versions, git state, hash of the scene
status.json      running, finished, interrupted or failed; written at the start, at checkpoints and at the end
metrics.jsonl, events.out.tfevents.*, checkpoints/
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import hashlib
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

import mujoco
import numpy as np
import torch

import sdpg
from sdpg import checkpoint
from sdpg.build import model_bytes
from sdpg.config import TrainCfg
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.runs import CONFIG, STATUS, State, read_config
from sdpg.tasks.base import named_in_file

LOCK = ".lock"


class RunFolder:
    """Made, or taken up with `resume`; `path` holds config.json from here on."""

    def __init__(
        self, path: Path | str | None, cfg: TrainCfg, env: BranchedEnv, resume: bool, warn: Callable[[str], None]
    ):
        model_hash = _model_hash(env)
        self.started = _now()
        session = {
            "started": self.started,
            "argv": sys.argv,
            "versions": versions(),
            "git": git_state(),
            "model_sha256": model_hash,
            "device": env.device.type,
        }
        earlier: list[Any] = []
        if resume and path is not None:
            self.path = Path(path)
            try:
                earlier = read_config(self.path)["sessions"]
            except SdpgError:  # the checkpoint that the run goes on from has its options, too
                warn(f"'{self.path / CONFIG}' can't be read: it is written anew, without its earlier sessions")
            if earlier and earlier[-1].get("model_sha256") != model_hash:
                warn("the task's scene is not the one this run was started with")
            device = earlier[-1].get("device", "cpu") if earlier else env.device.type
            if device != env.device.type:
                warn(f"this run was on {device} and goes on on {env.device.type}: not the same to the last bit")
        else:
            self.path = _new_folder(path, cfg)
        self._sessions = [*earlier, session]
        self._config = self._encoded(cfg)
        try:
            self._locked = _lock(self.path)
            checkpoint.clean(self.checkpoints)
            self.mend()
        except OSError as error:
            raise cant_write(self.path, error) from error

    def close(self) -> None:
        self._locked.close()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _encoded(self, cfg: TrainCfg) -> bytes:
        return json.dumps({"cfg": dataclasses.asdict(cfg), "sessions": self._sessions}, indent=1).encode() + b"\n"

    def record(self, cfg: TrainCfg) -> None:
        """Put what became known of the run's options into config.json."""
        self._config = self._encoded(cfg)
        checkpoint.write_atomic(self.path / CONFIG, self._config)

    def mend(self) -> None:
        """Write config.json; again, too, if someone removed the folder while the run went on."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomic(self.path / CONFIG, self._config)

    @property
    def whole(self) -> bool:
        return (self.path / CONFIG).is_file()

    def status(self, state: State, facts: Mapping[str, Any], message: str = "") -> None:
        """For those who look from outside (`sdpg runs`); that it can't be written is no reason to stop."""
        status = {"state": state, "pid": os.getpid(), "host": socket.gethostname(), "started": self.started}
        with suppress(OSError):
            text = json.dumps({**status, "updated": _now(), **facts, "message": message}, indent=1)
            checkpoint.write_atomic(self.path / STATUS, text.encode() + b"\n")


def _now() -> str:
    return datetime.datetime.now().isoformat(timespec="seconds")


def _new_folder(run_dir: Path | str | None, cfg: TrainCfg) -> Path:
    if run_dir is not None:
        folder = Path(run_dir)
        refuse_what_is_there(folder)
    else:
        stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        parent = home(cfg)
        names = (stamp if i == 1 else f"{stamp}-{i}" for i in range(1, 1000))
        folder = next(parent / name for name in names if not (parent / name).exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cant_write(folder, error) from error
    return folder


def refuse_what_is_there(folder: Path) -> None:
    """A new run begins in a folder of its own."""
    if folder.is_dir() and any(folder.iterdir()):
        fix = f"go on by --resume {folder}, or " if (folder / CONFIG).exists() else ""
        raise SdpgError(f"run folder '{folder}' is not empty; {fix}give another --run")


def home(cfg: TrainCfg) -> Path:
    """Where the runs of a task go that are given no folder."""
    return Path("runs") / cfg.task.replace(":", ".").replace("/", ".") / cfg.algorithm


def to_go_on_with(cfg: TrainCfg, run: str | None) -> str | None:
    """What `--resume auto` means: `run`, or the newest run of this task, algorithm and kind of observations, if it has
    a checkpoint to go on from; else None. If `run` was killed before its first checkpoint, it is set aside under
    another name, and begins anew."""
    if run is not None:
        if any((Path(run) / "checkpoints").glob("[0-9]*")):
            return run
        if (Path(run) / CONFIG).is_file():
            _set_aside(Path(run))
        return None
    for path in sorted(home(cfg).glob("*"), reverse=True):  # names are dates
        with suppress(SdpgError):
            saved = saved_options(path)
            same = (saved.get("task"), saved.get("obs")) == (cfg.task, cfg.obs)
            if same and any((path / "checkpoints").glob("[0-9]*")):
                return str(path)
    return None


def _set_aside(path: Path) -> None:
    names = (path.with_name(f"{path.name}-unsaved{i}") for i in range(1, 1000))
    with _lock(path):
        path.rename(next(name for name in names if not name.exists()))


def _lock(folder: Path) -> IO[bytes]:
    """Held as long as it is open: two processes in one folder would overwrite each other."""
    file = open(folder / LOCK, "ab")  # noqa: SIM115
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not on this system
        pass
    except OSError:
        file.close()
        raise SdpgError(f"another process trains in '{folder}'; stop it first, or start a new run") from None
    return file


def cant_write(folder: Path, error: OSError) -> SdpgError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = "free some space, or give another --run" if full else "give --run a folder that can be written"
    return SdpgError(f"can't write the run folder '{folder}': {error.strerror or error}; {fix}")


# --- options of a run that was saved ----------------------------------------------------------------------------------

# What may differ when a run goes on; anything else would make it another run.
RESUMABLE = frozenset(
    "iterations minutes threads device checkpoint_every keep_checkpoints max_failed max_value memory_gb track "
    "track_project".split()
)


def saved_options(run: Path) -> dict[str, Any]:
    """Of a run: from config.json, or, if that can't be read, from its newest sound checkpoint."""
    try:
        return read_config(run)["cfg"]
    except SdpgError as refusal:
        try:
            return checkpoint.newest_sound(run, lambda message: None).cfg
        except SdpgError:
            raise refusal from None


def cfg_from_dict(values: Mapping[str, Any], task: str | None = None) -> TrainCfg:
    """The inverse of dataclasses.asdict after a trip through JSON and a file that may be a stranger's: every value is
    of the type that it must have, and a task that is not registered by name is the `task` that the user gave, too."""
    cfg = _build(TrainCfg, values, "")
    named_in_file(cfg.task, task)
    cfg.validate()
    return cfg


def _build(cls: Any, values: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise SdpgError(f"the saved config has options that this sdpg does not know: {', '.join(sorted(unknown))}")
    made = {name: _typed(value, hints[name], prefix + name.replace("_", "-")) for name, value in values.items()}
    try:
        return cls(**made)
    except TypeError as error:
        raise SdpgError(f"the saved config is not one of sdpg: {error}") from error


def _typed(value: Any, kind: Any, option: str) -> Any:
    """`value` of JSON as a `kind`: what fields of configurations are annotated with."""
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return _build(kind, value, f"{option}.")
    if not _fits(value, kind):
        raise SdpgError(f"the saved config has {option} {str(value)[:40]!r}; it must be {_described(kind)}")
    return tuple(value) if isinstance(value, list) else value


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        kinds = parts[:1] * len(value) if isinstance(value, list | tuple) and parts[-1] is ... else parts
        return isinstance(value, list | tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind  # so that True is no number


def _described(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_described, parts))
    if origin is Literal:
        return f"one of {', '.join(parts)}"
    if origin is tuple:
        return f"a list: {', '.join('...' if part is ... else _described(part) for part in parts)}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    return names.get(kind, "an object")


def options(cfg: TrainCfg) -> dict[str, Any]:
    """Every option by the name it has on the command line."""

    def walk(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in values.items():
            key = prefix + name.replace("_", "-")
            flat |= walk(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
        return flat

    return walk(dataclasses.asdict(cfg), "")


def engine_of(saved: TrainCfg) -> Literal["cpu", "warp"]:
    """The engine of a run; those that do not name theirs are from before there was another than cpu."""
    return "cpu" if saved.sim == "auto" else saved.sim


def refuse_another(saved: TrainCfg, cfg: TrainCfg) -> None:
    """A run goes on with the options it was started with; what differs is told, old and new."""
    old, new = options(saved), options(cfg)
    old["sim"] = engine_of(saved) if cfg.sim != "auto" else "auto"  # auto: whatever it was
    free = {name.replace("_", "-") for name in RESUMABLE}
    changed = [name for name in new if old[name] != new[name] and name not in free]
    if changed:
        diff = ", ".join(f"{name} {old[name]} -> {new[name]}" for name in changed)
        raise SdpgError(f"a run can't change when it goes on: {diff}; leave these options out, or start a new run")


# --- provenance -------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    return {
        "sdpg": sdpg.__version__,
        "python": sys.version.split()[0],
        "mujoco": mujoco.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "mujoco-warp": importlib.metadata.version("mujoco-warp"),
        "warp-lang": importlib.metadata.version("warp-lang"),
        "safetensors": importlib.metadata.version("safetensors"),
    }


def git_state() -> dict[str, Any] | None:
    """Commit of the repository that the run was started in, and whether it had changes; None outside of one."""

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _model_hash(env: BranchedEnv) -> str:
    """SHA-256 of the compiled scene; empty for engines without one."""
    model = getattr(env.sim, "model", None)
    if not isinstance(model, mujoco.MjModel):
        return ""
    return hashlib.sha256(model_bytes(model)).hexdigest()
