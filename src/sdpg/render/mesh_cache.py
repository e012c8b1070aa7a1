"""Levels of detail on disk, by what they were made from: plain arrays, in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from sdpg.render.meshes import FLAT, LEAF, SMOOTH, UV, Level, Triangles

_VERSION = 1  # of the files, and of how levels are made
_TABLES = tuple(name for name in Level._fields if name != "error")
_WHOLE = {"skip": np.dtype(np.int32), "leaf": np.dtype(np.int32), "ends": np.dtype(np.int64)}


def folder() -> Path:
    """Where caches of this user are on this system; it need not exist."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        root = Path(given)
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path.home() / ".cache"
    return root / "sdpg" / "meshes"


def path_of(surface: Triangles) -> Path:
    digest = hashlib.sha256(f"{_VERSION} {LEAF}".encode())
    for part in surface:
        digest.update(b"none" if part is None else np.ascontiguousarray(part).tobytes())
    return folder() / f"{digest.hexdigest()[:40]}.npz"


def load(path: Path) -> list[Level] | None:
    """None if there is no such file, or if it is not what was written."""
    try:
        with np.load(path, allow_pickle=False) as file:
            errors, sizes = file["errors"], file["sizes"]  # (levels,), (levels, tables)
            tables = {name: file[name] for name in _TABLES}
        if sizes.shape != (len(errors), len(_TABLES)) or not len(errors) or (sizes < 0).any():
            return None
        ends = np.cumsum(sizes, axis=0)
        levels = []
        for k, error in enumerate(errors):
            parts = {name: tables[name][ends[k, t] - sizes[k, t] : ends[k, t]] for t, name in enumerate(_TABLES)}
            levels.append(Level(error=float(error), **parts))
        return levels if all(_sound(level) for level in levels) and (np.diff(errors) >= 0).all() else None
    except (OSError, ValueError, KeyError, EOFError, IndexError, TypeError, zipfile.BadZipFile):
        return None


def save(path: Path, levels: list[Level]) -> None:
    """At once or not at all; where the cache can't be written, nothing happens."""
    sizes = np.array([[len(getattr(level, name)) for name in _TABLES] for level in levels], np.int64)
    tables = {name: np.concatenate([getattr(level, name) for level in levels]) for name in _TABLES}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, errors=np.array([level.error for level in levels]), sizes=sizes, **tables)  # type: ignore[arg-type]
            os.replace(name, path)
        finally:
            with suppress(OSError):
                os.unlink(name)


def _sound(level: Level) -> bool:
    """Whether compiled code, which does not look where it reads, can be given these tables."""
    faces, nodes, leaves = len(level.normals), len(level.skip), len(level.ends) - 1
    shapes = {"boxes": (nodes, 6), "cones": (nodes, 4), "leaf": (nodes,)} | dict.fromkeys(
        ("xs", "ys", "zs"), (3 * faces,)
    )
    if any(getattr(level, name).shape != shape for name, shape in shapes.items()) or not nodes or leaves < 1:
        return False
    if any(getattr(level, name).dtype != _WHOLE.get(name, np.dtype(np.float32)) for name in _TABLES):
        return False
    if level.normals.shape not in ((faces, SMOOTH), (faces, FLAT)) or level.uvs.shape not in ((faces, UV), (0, UV)):
        return False
    steps = np.diff(level.ends)
    filled = level.ends[0] == 0 and level.ends[-1] == faces and (steps >= 0).all() and (steps <= LEAF).all()
    tree = (level.skip >= 1).all() and (level.leaf < leaves).all() and (level.leaf >= -1).all()
    return bool(filled and tree and np.isfinite(level.error))
