"""Remembers what led to a failed world, and writes it to a file that `sdpg replay` plays back.

A dump must begin at a state that is known to the last bit, and the states of all N x K worlds for 50 steps would take
hundreds of megabytes. But physics is deterministic, and every auxiliary was its nominal when it was last branched or
copied: the states of the N nominals, and the actions and controls of all worlds, lead to each of them.

    <run>/bad/<iteration>-<row>-<branch>.safetensors     tensors, the model in MuJoCo's binary format, and a JSON text

Nothing here is ever unpickled, and `sdpg replay` imports and loads nothing that the file alone asks for.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sdpg.build import model_bytes
from sdpg.distributed import ALONE, Group
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.run.checkpoint import write_atomic
from sdpg.types import Terms

STEPS = 50  # that a dump looks back on
MAX_DUMPS = 10  # of a run, one an iteration at most; the one that the run stops with comes on top
FORMAT, VERSION = "sdpg-dump", 1
FOLDER, SUFFIX = "bad", ".safetensors"


@dataclass(frozen=True)
class Moment:
    """What is remembered of one control step."""

    nominal: Mapping[str, Tensor]  # name -> (N, ...): BranchedEnv.column(0) before the step
    action: Tensor  # (N, K, A)
    control: Tensor  # (N, K, nu)
    fingerprint: Tensor  # (N, K) of the physics after the step: a replay is compared with it


@dataclass(frozen=True)
class Dump:
    """The last B control steps of a world that failed in the last of them; on the CPU, wherever it was simulated."""

    about: dict[str, Any]  # task, sim, seed, iteration, row, branch, apart, max_value, what, versions
    start: dict[str, Tensor]  # name -> (1, ...): BranchedEnv.column(0) before the first step
    states: Tensor  # (B or fewer, S) integration states before each step, as long as it was its nominal
    action: Tensor  # (B, A)
    control: Tensor  # (B, nu)
    fingerprint: Tensor  # (B,)
    end: Tensor  # (S,) integration state after the last step
    model: bytes


class FailureRecorder:
    """Listens to an environment's steps; `write` puts an iteration's first failure into the run's folder.

    Several ranks write what one process with all rows would have written."""

    def __init__(
        self,
        env: BranchedEnv,
        run: Path,
        about: Mapping[str, Any],
        horizon: int,
        iteration: int,
        warn: Callable[[str], None],
        group: Group = ALONE,
    ):
        """`about`: the task's name and what else a dump should tell; `iteration`: the one that the run goes on from."""
        self._env, self._folder, self._about, self._warn, self._group = env, run / FOLDER, about, warn, group
        # An auxiliary can be traced back to its nominal as long as the branching is still remembered.
        self._history: deque[Moment] = deque(maxlen=max(STEPS, horizon))
        self._caught: Dump | None = None
        self._what: list[str] = []  # is wrong with the first world that failed in this iteration
        self._steps, self._when = 0, 0  # seen so far; until then
        found = sorted(self._folder.glob(f"*{SUFFIX}"))
        # A run that is resumed writes those of its later iterations again.
        self.dumps = [path for path in found if path.name.split("-")[0] <= f"{iteration:08}"]
        env.on_step = self._on_step

    def write(self, iteration: int, stops: bool = False) -> list[str]:
        """Write what was caught in this iteration, on whatever rank. Returns what was wrong, [] if nothing was.

        Every rank must call it. A full disk costs a warning."""
        mine = (self._when, self._group.rank, self._what, self._caught)
        self._what, self._caught = [], None
        caught = [theirs for theirs in self._group.all_gather(mine) if theirs[2]]
        if not caught:
            return []
        _, _, what, dump = min(caught, key=lambda theirs: theirs[:2])  # the earliest; of those, the lowest row
        if dump is not None and self._group.rank == 0 and (stops or len(self.dumps) < MAX_DUMPS):
            path = self._folder / f"{iteration:08}-{dump.about['row']}-{dump.about['branch']}{SUFFIX}"
            try:
                self._folder.mkdir(exist_ok=True)
                write_atomic(path, encode(dump, iteration))
                self.dumps.append(path)
            except OSError as error:
                self._warn(f"can't write {path}: {error.strerror or error}; the run goes on without this dump")
        return what

    def _on_step(
        self, nominal: Mapping[str, Tensor], action: Tensor, control: Tensor, failed: Tensor, terms: Terms
    ) -> None:
        mine = action.clone()  # the caller's may change
        control = mine if control is action else control.clone()
        self._history.append(Moment(nominal, mine, control, fingerprint(self._env)))
        self._steps += 1
        if self._what or not failed.any():
            return
        row, branch = failed.nonzero()[0].tolist()
        self._when = self._steps
        self._what = blame(self._env, action, terms, row, branch)
        self._caught = self._dump(row, branch)

    @functools.cached_property
    def _model(self) -> bytes:
        """Of the engine; empty if it has none."""
        model = getattr(self._env.sim, "model", None)
        return model_bytes(model) if isinstance(model, mujoco.MjModel) else b""

    def _dump(self, row: int, branch: int) -> Dump | None:
        env = self._env
        since_branch = int(env.steps_since_branch[row, branch])
        steps = min(len(self._history), int(env.clock[row]), max(STEPS, since_branch))
        if since_branch > steps or not self._model:
            return None  # nowhere to begin, or nothing to begin with
        past = list(self._history)[-steps:]
        shared = steps - since_branch  # steps in which it was still its nominal
        column = [0] * shared + [branch] * since_branch
        about = {
            **self._about,
            "seed": env.seed,
            "row": int(env.rows[row]),
            "branch": branch,
            "apart": since_branch,
            "max_value": env.max_value,
            "what": self._what,
        }
        trail = list(zip(past, column, strict=True))
        return Dump(
            about=about,
            start={name: values[row : row + 1].to("cpu", copy=True) for name, values in past[0].nominal.items()},
            states=torch.stack([moment.nominal["sim.state"][row] for moment in past[: shared + 1]]).cpu(),
            action=torch.stack([moment.action[row, k] for moment, k in trail]).cpu(),
            control=torch.stack([moment.control[row, k] for moment, k in trail]).cpu(),
            fingerprint=torch.stack([moment.fingerprint[row, k] for moment, k in trail]).cpu(),
            end=env.column(branch)["sim.state"][row].to("cpu", copy=True),
            model=self._model,
        )


def fingerprint(env: BranchedEnv) -> Tensor:
    """(N, K) of every bit of the float32 positions and velocities; a sum of integers is exact in any order."""
    x = env.physics()
    return torch.cat((x.qpos, x.qvel), dim=-1).view(torch.int32).sum(-1)


def blame(env: BranchedEnv, action: Tensor, terms: Terms, row: int, branch: int) -> list[str]:
    """What is wrong with a world that failed in the last step (N, K, A): clauses, the nearest to the cause first."""
    x = env.physics()
    failure_reason = env.failure_reason(row, branch)
    rewards = {f"reward term '{name}'": term for name, term in terms.items()}
    rewards["the reward"] = functools.reduce(torch.add, terms.values())
    observed = {f"observation '{name}'": source for name, source in env.task.observe(x, env.memory).items()}
    physics = {"qpos": x.qpos, "qvel": x.qvel}
    engine = [f"the engine says: {failure_reason}"] if failure_reason else []
    rest = _beyond(env, physics | rewards | observed, row, branch)
    return _beyond(env, {"action": action}, row, branch) + engine + rest or ["the engine gave no reason"]


def _beyond(env: BranchedEnv, numbers: Mapping[str, Tensor], row: int, branch: int) -> list[str]:
    """A clause for each of `numbers`, name -> (N, K, ...), that is not finite or is too large."""
    clauses = []
    for name, values in numbers.items():
        mine = values[row, branch].flatten().double()
        bad = (~(mine.abs() <= env.max_value)).nonzero().flatten().tolist()
        if bad:
            index = f"[{bad[0]}]" if values.dim() > 2 else ""
            beyond = f", beyond max-value {env.max_value:g}" if mine[bad[0]].isfinite() else ""
            clauses.append(f"{name}{index} is {mine[bad[0]].item():.3g}{beyond}")
    return clauses


# --- the file ---------------------------------------------------------------------------------------------------------

_ABOUT: dict[str, tuple[type, ...]] = {  # the least that a dump tells
    "task": (str,),
    "max_value": (int, float),
    "what": (list,),
    **dict.fromkeys(("iteration", "seed", "row", "branch", "apart"), (int,)),
}
_RENAMED = {"rows": "states", "start.sim.rows": "start.sim.state"}  # by earlier versions
_PARTS = ("states", "action", "control", "fingerprint", "end")  # the tensors of a dump beside its start


def encode(dump: Dump, iteration: int) -> bytes:
    """One safetensors file, its JSON text among the metadata."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        **dump.about,
        "iteration": iteration,
        "model_sha256": hashlib.sha256(dump.model).hexdigest(),
    }
    tensors = {name: getattr(dump, name) for name in _PARTS} | {f"start.{k}": v for k, v in dump.start.items()}
    tensors["model"] = torch.frombuffer(bytearray(dump.model), dtype=torch.uint8)
    return save({name: values.cpu().contiguous() for name, values in tensors.items()}, {"about": json.dumps(about)})


def load(path: Path) -> Dump:
    """Read and verify; every refusal is one line."""
    if not path.is_file():
        raise SdpgError(
            f"no dump '{path}'; give a file of a run's folder {FOLDER}/ (<iteration>-<row>-<branch>{SUFFIX})"
        )
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {_RENAMED.get(name, name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}")
        if about["version"] != VERSION:
            raise SdpgError(
                f"dump '{path}' has version {about['version']!r}, this sdpg reads {VERSION}; use the newer one"
            )
        if missing := [name for name, kinds in _ABOUT.items() if type(about.get(name)) not in kinds]:
            raise ValueError(f"it does not tell {', '.join(missing)}")
        model = tensors["model"].numpy().tobytes()
        if hashlib.sha256(model).hexdigest() != about["model_sha256"]:
            raise ValueError("its model has another SHA-256 than it says")
        start = {name.removeprefix("start."): v for name, v in tensors.items() if name.startswith("start.")}
        return Dump(about, start, model=model, **{name: tensors[name] for name in _PARTS})
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | TypeError) else str(error)
        raise SdpgError(f"'{path}' is no dump of sdpg, or a damaged one: {reason}; give another") from error
