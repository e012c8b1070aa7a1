"""Which run to resume, and the options it was saved with. They are read from files that may be a stranger's."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from sdpg.algos.registry import ALGORITHMS
from sdpg.config import TrainCfg
from sdpg.errors import SdpgError
from sdpg.run import checkpoint
from sdpg.run.folder import home, set_aside
from sdpg.run.listing import CONFIG, read_config
from sdpg.tasks.base import named_in_file, task_class


def resume_target(cfg: TrainCfg, run: str | None) -> str | None:
    """The run that `--resume auto` goes on with; None if there is none with a checkpoint.

    It is `run` or, if that is None, the newest run of this task, algorithm and kind of observations. A `run` that was
    killed before its first checkpoint is set aside under another name, and begins anew."""
    if run is not None:
        if any((Path(run) / "checkpoints").glob("[0-9]*")):
            return run
        if (Path(run) / CONFIG).is_file():
            set_aside(Path(run))
        return None
    for path in sorted(home(cfg).glob("*"), reverse=True):  # names are dates
        with suppress(SdpgError):
            saved = saved_options(path)
            same = (saved.get("task"), saved.get("obs")) == (cfg.task, cfg.obs)
            if same and any((path / "checkpoints").glob("[0-9]*")):
                return str(path)
    return None


# What may differ when a run goes on; anything else would make it another run.
RESUMABLE = frozenset(
    "iterations minutes threads device checkpoint_every keep_checkpoints max_failed max_value memory_gb track "
    "track_project".split()
)


def saved_options(run: Path) -> dict[str, Any]:
    """The options of a run, from config.json or, if that can't be read, from its newest sound checkpoint."""
    try:
        return read_config(run)["cfg"]
    except SdpgError as refusal:
        try:
            return checkpoint.newest_sound(run, lambda message: None).cfg
        except SdpgError:
            raise refusal from None


_RENAMED = {"picture_origin": "image_origin", "picture_motion": "image_motion"}  # by earlier versions
_GONE = {"average": 0.0, "kl_limit": None}  # options that did not pay, and what they were when they were off


def cfg_from_dict(values: Mapping[str, Any], task: str | None = None) -> TrainCfg:
    """The inverse of dataclasses.asdict, after a trip through JSON. The file may be a stranger's: every value must have
    its option's type, and a task that is not registered must be the `task` that the user gave."""
    algo, algorithm = values.get("algo"), values.get("algorithm", "sdpg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS.targets():
        known = ", ".join(sorted(ALGORITHMS.targets()))
        raise SdpgError(f"unknown algorithm '{str(algorithm)[:40]}' in the saved config; known: {known}")
    kinds = {"algo": ALGORITHMS.load(algorithm), "task_cfg": task_class(named_in_file(values.get("task"), task)).Cfg}
    values = {"algo": {}, **values}  # the oldest name none
    if isinstance(algo, Mapping):
        kept = {name: value for name, value in algo.items() if name not in _GONE or value != _GONE[name]}
        values = {**values, "algo": {_RENAMED.get(name, name): value for name, value in kept.items()}}
    cfg = _build(TrainCfg, values, "", kinds)
    cfg.validate()
    return cfg


def _build(cls: Any, values: Mapping[str, Any], prefix: str, kinds: Mapping[str, Any] = {}) -> Any:
    """`kinds`: the classes of fields that are annotated with a base class."""
    hints = typing.get_type_hints(cls) | dict(kinds)
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
            key = prefix + ("task" if name == "task_cfg" else name.replace("_", "-"))
            flat |= walk(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
        return flat

    return walk(dataclasses.asdict(cfg), "")


def engine_of(saved: TrainCfg) -> Literal["cpu", "warp"]:
    """The engine of a run. Runs that name none are older than the second engine: cpu."""
    return "cpu" if saved.sim == "auto" else saved.sim


def require_same_options(saved: TrainCfg, cfg: TrainCfg) -> None:
    """A run goes on with the options it was started with; what differs is told, old and new."""
    old, new = options(saved), options(cfg)
    old["sim"] = engine_of(saved) if cfg.sim != "auto" else "auto"  # auto: whatever it was
    free = {name.replace("_", "-") for name in RESUMABLE}
    changed = [name for name in new if old[name] != new[name] and name not in free]
    if changed:
        diff = ", ".join(f"{name} {old[name]} -> {new[name]}" for name in changed)
        raise SdpgError(f"a run can't change when it goes on: {diff}; leave these options out, or start a new run")
