"""Checkpoints: a folder of safetensors and JSON, written so that a crash at any moment leaves the older ones whole.

    checkpoints/last                        text: the name of the newest complete folder
    checkpoints/best                        text: the name of the one with the highest score
    checkpoints/00000050/tensors.safetensors
                         state.json         format, version, iteration, plain numbers, names of the tensors, config
                         manifest.json      size and SHA-256 of the two

Nothing here is ever unpickled, and what a checkpoint says is checked before it is used (`resume.cfg_from_dict`): a
stranger's checkpoint can't run code.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from sdpg.errors import SdpgError

FORMAT, VERSION = "sdpg-checkpoint", 1
TENSORS, STATE, MANIFEST, LAST, BEST = "tensors.safetensors", "state.json", "manifest.json", "last", "best"
_NAME = re.compile(r"\d{8}")
_TEMPORARY = ".tmp-"

# What systems say that can't sync a folder, such as some network drives.
_CANT_SYNC = (errno.EACCES, errno.EISDIR, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

Tree = Mapping[str, Any]
"""Nested mappings whose leaves are tensors, numbers, strings or None."""


class Damaged(SdpgError):
    """A checkpoint, or the pointer to it, can't be used: `what` is wrong. Another one of the run may be sound."""

    def __init__(self, what: str, fix: str):
        super().__init__(f"{what}; {fix}")
        self.what = what


@dataclass(frozen=True)
class Checkpoint:
    iteration: int
    cfg: dict[str, Any]
    state: dict[str, Any]  # the tree that was saved; keys are strings, tensors are on the CPU
    score: float | None = None  # how good it was when it was saved; what "best" goes by

    @property
    def seconds(self) -> float:
        """Of training until then."""
        try:
            return float(self.state["run"]["seconds"])
        except (KeyError, TypeError, ValueError):
            raise SdpgError(f"the checkpoint of iteration {self.iteration} does not tell its seconds") from None


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a/b": 1}. Empty mappings vanish."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if "/" in str(key):
            raise ValueError(f"'{name}' has a slash in a key")
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}/")
        else:
            flat[name] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, key = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[key] = value
    return tree


# --- writing ----------------------------------------------------------------------------------------------------------


def save(
    root: Path, iteration: int, state: Tree, cfg: Mapping[str, Any], keep: int = 3, score: float | None = None
) -> Path:
    """Write `root`/<iteration>, point `last` to it, and `best` if none scored higher; then drop all but the newest
    `keep` and the best. OSError: nothing changed."""
    flat = flatten(state)
    tensors = {name: _plain(value) for name, value in flat.items() if isinstance(value, Tensor)}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "iteration": iteration,
        "score": score,
        "scalars": {name: value for name, value in flat.items() if not isinstance(value, Tensor)},
        "tensors": sorted(tensors),
        "cfg": cfg,
    }
    files = {TENSORS: save_tensors(tensors), STATE: _json(header)}
    manifest = {name: {"size": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    files[MANIFEST] = _json({"files": manifest})

    target = root / f"{iteration:08d}"
    temporary = root / f"{_TEMPORARY}{iteration:08d}-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        for name, data in files.items():
            _write_synced(temporary / name, data)
        _sync_folder(temporary)
        if target.exists():  # a run that was resumed from before it comes here again
            os.replace(target, root / f"{_TEMPORARY}old-{target.name}-{os.getpid()}")
        os.replace(temporary, target)
        _sync_folder(root)
        write_atomic(root / LAST, target.name.encode() + b"\n")
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):  # the new one is safe; a folder that can't be removed harms nobody
        best = best_score(root)
        if score is not None and (best is None or score >= best):
            write_atomic(root / BEST, target.name.encode() + b"\n")
        clean(root)
        for old in _numbered(root)[:-keep]:
            if old.name not in (target.name, _pointer(root, BEST)):
                shutil.rmtree(old)
    return target


def best_score(root: Path) -> float | None:
    """The score of the checkpoint that `best` names, if there is one."""
    name = _pointer(root, BEST)
    if not _NAME.fullmatch(name):
        return None
    try:
        score = json.loads((root / name / STATE).read_bytes())["score"]
        return float(score) if score is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clean(root: Path) -> None:
    """Remove what a crash left behind."""
    for stale in root.glob(f"{_TEMPORARY}*"):
        if stale.is_dir():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it has its old content or the new one, never a part."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}-{os.getpid()}")
    try:
        _write_synced(temporary, data)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _plain(tensor: Tensor) -> Tensor:
    """Contiguous and with memory of its own, as safetensors asks, from whatever device."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=_number).encode() + b"\n"


def _number(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} can't be saved in a checkpoint")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Makes a rename survive a power cut; some systems can't, and lose nothing but that."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _CANT_SYNC:
            raise


# --- reading ----------------------------------------------------------------------------------------------------------


def _numbered(root: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in root.glob("*") if _NAME.fullmatch(path.name) and path.is_dir())


def find(run: Path | str, which: str | int = "last") -> Path:
    """The checkpoint folder of a run (or `run` itself, if it is one): the last, the best, or that of an iteration."""
    run = Path(run)
    if (run / MANIFEST).is_file() or (run / STATE).is_file():
        return run
    known = [path.name for path in _of_run(run)]
    root, listed = run / "checkpoints", ", ".join(known)
    if which in (LAST, BEST):
        name = _pointer(root, str(which))
        if not name and which == BEST:
            raise SdpgError(f"'{run}' has no best checkpoint yet: no episode had ended; give last")
        name = name or known[-1]  # killed between the first rename and its pointer
        if not _NAME.fullmatch(name):
            raise Damaged(
                f"'{root / str(which)}' names {name[:40]!r}, not a checkpoint", f"write one of {listed} there"
            )
    elif str(which).isdecimal():
        name = f"{int(which):08d}"
    else:
        raise SdpgError(f"checkpoint '{which}' is not last, best or an iteration; known: {listed}")
    if name not in known:
        raise Damaged(f"'{run}' has no checkpoint {name}", f"known: {listed}")
    return root / name


def newest_sound(run: Path, warn: Callable[[str], None]) -> Checkpoint:
    """What a run goes on from: its last checkpoint, or the newest that is not damaged, with a warning."""
    known = _of_run(run)
    try:
        return load(find(run))
    except Damaged as error:
        refusal = error
    for folder in reversed(known):
        with contextlib.suppress(Damaged):
            saved = load(folder)
            warn(f"{refusal.what}; going on from iteration {saved.iteration}, the newest that is sound")
            return saved
    raise refusal


def _of_run(run: Path) -> list[Path]:
    """Its checkpoints, oldest first: at least one."""
    if not run.is_dir():
        raise SdpgError(f"no run folder '{run}'; give the folder that `sdpg train` printed (runs/TASK/ALGORITHM/DATE)")
    known = _numbered(run / "checkpoints")
    if not known:
        raise SdpgError(f"'{run}' holds no checkpoint; give a folder that `sdpg train` wrote, with checkpoints/ in it")
    return known


def _pointer(root: Path, name: str) -> str:
    """What `last` or `best` says; empty if it is not there."""
    try:
        return (root / name).read_text(errors="replace").strip()
    except OSError:
        return ""


def load(folder: Path) -> Checkpoint:
    """Read and verify; every refusal is one line that says what is wrong and what to do."""
    manifest = _read_json(folder, MANIFEST).get("files")
    if not isinstance(manifest, dict) or set(manifest) != {TENSORS, STATE}:  # so no other path is ever opened
        raise _refuse(folder, f"{MANIFEST} does not list exactly {STATE} and {TENSORS}")
    files = {name: _verified(folder, name, entry) for name, entry in manifest.items()}
    header = _parse(folder, STATE, files[STATE])
    if header.get("format") != FORMAT:
        raise _refuse(folder, f"{STATE} is not of an sdpg checkpoint")
    if header.get("version") != VERSION:
        raise SdpgError(
            f"checkpoint '{folder}' has format version {header.get('version')!r}, this sdpg reads {VERSION}; "
            "use the sdpg version that wrote it (config.json of the run names it)"
        )
    try:
        tensors: dict[str, torch.Tensor] = load_tensors(files[TENSORS])
        if sorted(tensors) != header["tensors"]:
            raise _refuse(folder, "its tensors are not those that its state.json lists")
        flat = {**header["scalars"], **tensors}
        return Checkpoint(int(header["iteration"]), dict(header["cfg"]), unflatten(flat), header.get("score"))
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refuse(folder, f"{type(error).__name__}: {error}") from error


def _verified(folder: Path, name: str, entry: Any) -> bytes:
    data = _read(folder, name)
    size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if len(data) != size:
        raise _refuse(folder, f"{name} has {len(data)} bytes in place of {size}")
    if _sha256(data) != digest:
        raise _refuse(folder, f"{name} has another SHA-256 than its manifest says")
    return data


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise _refuse(folder, f"{name} is missing") from None
    except OSError as error:
        raise _refuse(folder, f"{name} can't be read: {error.strerror}") from error


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    return _parse(folder, name, _read(folder, name))


def _parse(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise _refuse(folder, f"{name} is not JSON") from error
    if not isinstance(value, dict):
        raise _refuse(folder, f"{name} is not a JSON object")
    return value


def _refuse(folder: Path, reason: str) -> Damaged:
    others = [path.name for path in _numbered(folder.parent) if path.name != folder.name]
    fix = f"older ones: {', '.join(others)} (write a name into {folder.parent / LAST})" if others else "train anew"
    return Damaged(f"checkpoint '{folder}' is damaged or foreign: {reason}", fix)
