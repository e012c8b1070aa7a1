"""What a task is, and how tasks are found by name."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.names import Names
from sdpg.plugins import Plugins
from sdpg.rng import RowRng
from sdpg.tasks.registry import BUILT_IN, GROUP, canonical
from sdpg.types import ActionLayout, Camera, Encoder, Ended, Memory, Physics, Start, Terms, VectorLayout


@dataclass(frozen=True)
class TaskCfg:
    """Options of a task, given as --task.NAME and saved with the run."""

    def rules(self) -> dict[str, bool]:
        """What must hold of them: a sentence that names the option -> whether it does."""
        return {}


class Task(ABC):
    """A scene and pure batched functions of physics and memory. It knows nothing of who runs it.

    Every tensor has leading axes `(N, K)`: nominal worlds by branches. A task is a set of functions without hidden
    state: whatever influences the future beyond physics is in `memory`, which the environment copies when it branches.
    Randomness comes only from the `rng` argument, which draws per row, so that branches share it. `sdpg check TASK`
    tests all this.
    """

    Cfg: ClassVar[type[TaskCfg]] = TaskCfg  # a frozen dataclass of one's own, if the task has options
    action_size: ClassVar[int]  # A: actions are in [-1, 1]
    state_size: ClassVar[int]  # D: the privileged state, observe()["state"]
    timestep: ClassVar[float | None] = None  # seconds of one physics substep; None: as the scene says
    substeps: ClassVar[int] = 2  # per control step
    episode_steps: ClassVar[int] = 1000  # control steps until truncation
    reads: ClassVar[tuple[str, ...]] = ()  # derived MjData fields used, e.g. ("xpos", "sensordata"); sim/reads.py
    params: ClassVar[tuple[str, ...]] = ()  # MjModel fields that start() gives per row
    camera: ClassVar[str] = "track"  # the scene's camera for films
    cameras: ClassVar[Mapping[str, Camera]] = {"pixels": Camera("track")}  # source -> what it shows
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"state": ("state",), "pixels": ("pixels",)}
    """What the policy of each observation kind sees: sources of observe() and cameras, several are fused."""
    encoders: ClassVar[Mapping[str, Encoder]] = {}  # source -> how the policy takes it in
    state_parts: ClassVar[Mapping[str, int]] = {}  # part -> size, in order: what the state is made of, if of several
    state_encoders: ClassVar[Mapping[str, Encoder]] = {}  # part, or "state" -> how the critic takes it in
    # For robots: what `sdpg export` writes down of vectors and actions, so that others can provide and obey them.
    layouts: ClassVar[Mapping[str, VectorLayout]] = {}  # source -> what its numbers are
    action_layout: ClassVar[ActionLayout | None] = None
    # For people, who read them in `sdpg tasks NAME`.
    robot: ClassVar[str | None] = None  # the folder of MuJoCo Menagerie that its model is of
    licence: ClassVar[str] = "not told"  # of a scene that is not of Menagerie
    action_meaning: ClassVar[str] = ""  # what the numbers of an action are
    ends: ClassVar[str] = ""  # when terminated() holds
    randomised: ClassVar[Any] = None  # a Randomise, or name -> range: what differs from row to row

    def __init__(self, cfg: TaskCfg | None = None):
        self.cfg = self.Cfg() if cfg is None else cfg

    @functools.cached_property
    def names(self) -> Names:
        """Where named parts of the scene are in qpos, qvel, controls and parameters: for start() and control()."""
        return Names(self.scene().compile())

    @functools.cached_property
    def step_seconds(self) -> float:
        """Of a control step."""
        return self.substeps * float(self.scene().option.timestep if self.timestep is None else self.timestep)

    @property
    def action_latency(self) -> tuple[int, int]:
        """Control steps by which actions come late: at least, at most."""
        return 0, 0

    @abstractmethod
    def scene(self) -> mujoco.MjSpec:
        """The world: bodies, actuators, sensors, cameras, lights. A `timestep` of the class replaces the scene's."""

    @abstractmethod
    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        """Fresh episodes for n rows. `ended`: how their last ones went, for a curriculum; None for the first."""

    @abstractmethod
    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        """Actions in [-1, 1] (N, K, A) -> actuator controls (N, K, nu)."""

    @abstractmethod
    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        """Named terms (N, K) of the state after the step and the action; must not write anywhere."""

    @abstractmethod
    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        """(N, K) bool: the episode ended for good in the state after the step."""

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        """The memory after the step: new tensors, or those of `memory` that stay as they are. The environment owns them
        from here on, and restarts write into them. Draws from `rng` have the row first: (N, ...)."""
        return memory

    def push(self, x: Physics, memory: Memory) -> Tensor | None:
        """(N, K, nv) what is added to velocities now, after the step and its reward and before anything is observed; 0
        in worlds that are not pushed, None if none ever is. `memory` is that which advance() returned: what is drawn
        there is the same for all branches of a row."""
        return None

    @abstractmethod
    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        """ "state" (N, K, D) for the critic; further sources, such as "proprio", for policies."""

    def measure(self, x: Physics, memory: Memory) -> Terms:
        """How an episode went beside its return, told by its last state and memory: success, distance, level ...;
        name -> (N, K). Logged as Episode/<name>, averaged over episodes."""
        return {}


TASKS = Plugins("task", Task, GROUP, BUILT_IN)


def task_class(name: str) -> type[Task]:
    """By registered name, one of its aliases, or "my_package.my_module:MyTask"."""
    return TASKS.load(canonical(name))


def make_task(name: str, cfg: TaskCfg | None = None) -> Task:
    """With its own options, or with `cfg`."""
    kind = task_class(name)
    try:
        return kind() if cfg is None else kind(cfg)
    except Exception as error:  # a class of the user's may raise anything
        raise SdpgError(f"task '{name}' can't be made: {type(error).__name__}: {error}") from error


def named_in_file(name: Any, typed: str | None = None) -> str:
    """The task that a checkpoint, a run or a dump names, which may be a stranger's: a registered one, or a module:Class
    that the user has `typed` as well. Making a task imports its module: a file must not choose which."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w./-]+(:\w+)?", name):
        raise SdpgError(f"this file names {str(name)[:40]!r} as its task, which is neither a name nor module:Class")
    if typed is not None and canonical(typed) != name:
        raise SdpgError(f"this is of task '{name}', not '{typed}'; give that one, or another file")
    if ":" in name and typed is None:
        raise SdpgError(
            f"this is of task '{name}', and a file must not choose which code is imported; if you trust that module, "
            f"say so: --task {name}"
        )
    return name
