"""The folder of a run: config.json says what was run and by which versions, status.json how it stands.

config.json      options and one entry per session: when, command, versions, git state, hash of the scene
status.json      running, finished, interrupted or failed; written at the start, at checkpoints and at the end
metrics.jsonl, events.out.tfevents.*, checkpoints/
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sdpg.config import TrainCfg
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.run import checkpoint
from sdpg.run.listing import CONFIG, STATUS, State, read_config
from sdpg.run.provenance import git_state, model_hash, versions

LOCK = ".lock"


class RunFolder:
    """Made, or taken up with `resume`; `path` holds config.json from here on."""

    def __init__(
        self, path: Path | str | None, cfg: TrainCfg, env: BranchedEnv, resume: bool, warn: Callable[[str], None]
    ):
        scene = model_hash(env)
        self.started = _now()
        session = {
            "started": self.started,
            "argv": sys.argv,
            "versions": versions(),
            "git": git_state(),
            "model_sha256": scene,
            "device": env.device.type,
        }
        earlier: list[Any] = []
        if resume and path is not None:
            self.path = Path(path)
            try:
                earlier = read_config(self.path)["sessions"]
            except SdpgError:  # the checkpoint that the run goes on from has its options, too
                warn(f"'{self.path / CONFIG}' can't be read: it is written anew, without its earlier sessions")
            if earlier and earlier[-1].get("model_sha256") != scene:
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
            self.write_config()
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
        """Write options that became known during the run to config.json."""
        self._config = self._encoded(cfg)
        checkpoint.write_atomic(self.path / CONFIG, self._config)

    def write_config(self) -> None:
        """Write config.json, and make the folder anew if someone removed it while the run went on."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomic(self.path / CONFIG, self._config)

    @property
    def exists(self) -> bool:
        return (self.path / CONFIG).is_file()

    def status(self, state: State, facts: Mapping[str, Any], message: str = "") -> None:
        """Write status.json, for those who look from outside (`sdpg runs`). A run does not stop if it can't."""
        status = {"state": state, "pid": os.getpid(), "host": socket.gethostname(), "started": self.started}
        with suppress(OSError):
            text = json.dumps({**status, "updated": _now(), **facts, "message": message}, indent=1)
            checkpoint.write_atomic(self.path / STATUS, text.encode() + b"\n")


def _now() -> str:
    return datetime.datetime.now().isoformat(timespec="seconds")


def _new_folder(run_dir: Path | str | None, cfg: TrainCfg) -> Path:
    if run_dir is not None:
        folder = Path(run_dir)
        require_empty(folder)
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


def require_empty(folder: Path) -> None:
    """A new run begins in a folder of its own."""
    if folder.is_dir() and any(folder.iterdir()):
        fix = f"go on by --resume {folder}, or " if (folder / CONFIG).exists() else ""
        raise SdpgError(f"run folder '{folder}' is not empty; {fix}give another --run")


def home(cfg: TrainCfg) -> Path:
    """Where runs go that are given no folder."""
    return Path("runs") / cfg.task.replace(":", ".").replace("/", ".") / cfg.algorithm


def set_aside(path: Path) -> None:
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
