"""The nouns. Letters: T horizon, N nominal worlds, M auxiliaries per nominal, K = M + 1 branches
(branch 0 is the nominal), E = N * K flat worlds, A action size, D state size.

Time comes first, then N and K, then features: `(T, N, K, D)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from sdpg.camera import Camera as Camera
from sdpg.camera import Pipeline as Pipeline
from sdpg.camera import Sensor as Sensor
from sdpg.errors import SdpgError
from sdpg.names import FIELDS, Names

MOCAP = ("mocap_pos", "mocap_quat")  # where bodies are that are placed from outside

Memory = dict[str, Tensor]
"""What a task remembers of a world beyond its physics: name -> (N, K, ...)."""

Terms = dict[str, Tensor]
"""Named terms of a reward: name -> (N, K). The environment sums them, once."""


@dataclass(frozen=True)
class Physics:
    """What a task may read of the simulator: float32 tensors with leading axes `(N, K)`.

    Read-only by contract; a task that writes here is caught by `sdpg check`.
    """

    qpos: Tensor  # (N, K, nq)
    qvel: Tensor  # (N, K, nv)
    derived: Mapping[str, Tensor] = field(default_factory=dict)  # the fields named in Task.reads
    names: Names | None = None  # of the parts of the scene

    def __getitem__(self, name: str) -> Tensor:
        """A field of MjData (N, K, ...), by its name there."""
        if name not in self.derived:
            raise SdpgError(f"x['{name}'] is not there: name it in the task's reads, which has {_list(self.derived)}")
        return self.derived[name]

    def body(self, *names: str) -> Part:
        return Part(self, "body", names)

    def geom(self, *names: str) -> Part:
        return Part(self, "geom", names)

    def site(self, *names: str) -> Part:
        return Part(self, "site", names)

    def joint(self, *names: str) -> Part:
        return Part(self, "joint", names)

    def actuator(self, *names: str) -> Part:
        return Part(self, "actuator", names)

    def sensor(self, *names: str) -> Tensor:
        """(N, K, size) what they measure, one after the other."""
        return Part(self, "sensor", names).field("data")


class Part:
    """Parts of the scene by name, with MuJoCo's names for what can be asked of them: `x.body("torso").xpos`.

    Poses are (N, K, 3) of one part and (N, K, n, 3) of several; numbers of joints and actuators are (N, K, size), those
    of several one after the other.
    """

    __slots__ = ("_kind", "_names", "_x")

    def __init__(self, x: Physics, kind: str, names: tuple[str, ...]):
        self._x, self._kind, self._names = x, kind, names

    def field(self, name: str) -> Tensor:
        known, x = FIELDS[self._kind], self._x
        if name not in known:
            raise SdpgError(f"a {self._kind} has no '{name}' that can be read; it has {_list(known)}")
        if x.names is None:
            raise SdpgError("this physics was made without the names of its scene")
        source, where = known[name]
        index = getattr(x.names, where)(*self._names)
        values = getattr(x, source) if source in ("qpos", "qvel") else x[source]
        return values[:, :, index]

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.field(name)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


@dataclass(frozen=True)
class Start:
    """Fresh episodes for n rows. Drawn per row, never per branch: branches share them."""

    qpos: Tensor  # (n, nq)
    qvel: Tensor  # (n, nv)
    memory: Memory = field(default_factory=dict)  # name -> (n, ...)
    params: Mapping[str, Tensor] = field(default_factory=dict)  # model field -> (n, ...)
    mocap_pos: Tensor | None = None  # (n, nmocap, 3) of the scene's mocap bodies; None: where the scene has them
    mocap_quat: Tensor | None = None  # (n, nmocap, 4)


@dataclass(frozen=True)
class Ended:
    """How the last episodes of n rows went: what a curriculum goes by. Of the nominal worlds."""

    memory: Memory  # name -> (n, ...) after the last step
    length: Tensor  # (n,) control steps
    terminated: Tensor  # (n,) bool: by the task's own rule, or because the world failed
    failed: Tensor  # (n,) bool: non-finite, exploded or refused by the engine

    @property
    def truncated(self) -> Tensor:
        """(n,) bool: the time was up."""
        return ~self.terminated


@dataclass(frozen=True)
class Encoder:
    """How networks take in one source, where a task says so; None: as the algorithm's options say."""

    widths: tuple[int, ...] | None = None  # vectors: of an MLP; none: passed through
    normalized: bool = True  # vectors: by running mean and variance, and clipped
    features: int | None = None  # images: how many they are encoded into


@dataclass(frozen=True)
class ObservedTerm:
    """A named part of a vector that is observed, as a robot has to provide it: scale * (what is measured - offset)."""

    name: str
    size: int
    unit: str = ""  # of what is measured
    about: str = ""  # what it is, and in which frame
    order: tuple[str, ...] = ()  # the joints or axes of its numbers
    scale: float | tuple[float, ...] = 1.0
    offset: float | tuple[float, ...] = 0.0
    command: bool = False  # told by somebody, not measured


@dataclass(frozen=True)
class VectorLayout:
    """What the numbers of a vector source are: frames of terms, one after the other, the oldest frame first."""

    terms: tuple[ObservedTerm, ...]
    history: int = 1  # frames, one for each control step
    begins: Literal["first", "zeros"] = "first"  # what a history is filled with when an episode begins
    clip: tuple[float, float] | None = None  # of every number, after its scale
    latency: int = 0  # control steps by which the newest frame is late


@dataclass(frozen=True)
class ActionLayout:
    """What an action asks of the actuators: target = offset + scale * action."""

    unit: str
    order: tuple[str, ...]  # names of the actuators
    scale: float | tuple[float, ...]
    offset: tuple[float, ...]


@dataclass(frozen=True)
class Obs:
    """What can be seen now. `state` is for the critic; a policy reads what its sources name."""

    state: Tensor  # (N, K, D)
    sources: Mapping[str, Tensor]  # name -> (N, ...): the nominal worlds only


@dataclass(frozen=True)
class Step:
    """The outcome of one control step, before any restart."""

    reward: Tensor  # (N, K)
    terminated: Tensor  # (N, K) bool: no bootstrapping beyond
    truncated: Tensor  # (N, K) bool: time limit, bootstraps from `state`
    failed: Tensor  # (N, K) bool: non-finite, exploded or refused by the engine; terminated too, reward 0
    state: Tensor  # (N, K, D) after the step and before the restart
    terms: Terms = field(default_factory=dict)  # the named parts of the reward; those of failed worlds mean nothing


@dataclass(frozen=True)
class Counts:
    """What an environment has done since its counts were last taken."""

    steps: int  # control steps
    world_steps: int  # of all worlds
    images: int  # rendered
    reward: float  # summed over the steps of the nominal worlds
    failed_nominal: int  # world-steps that failed
    failed_auxiliary: int
    sound: int  # steps of nominal worlds that did not fail
    terms: Mapping[str, float]  # reward terms, summed over the sound steps


@dataclass(frozen=True)
class Rollout:
    """One segment of T steps."""

    state: Tensor  # (T, N, K, D) before the step
    sources: Mapping[str, Tensor]  # name -> (T, N, ...) what the policy saw; the next segment is written there
    mean: Tensor  # (T, N, A) of the Gaussian, within its bounds
    log_std: Tensor  # (T, N, A)
    noise: Tensor  # (T, N, K, A) standard normal, 0 for the nominal
    reward: Tensor  # (T, N, K)
    next_state: Tensor  # (T, N, K, D) after the step and before the restart
    terminated: Tensor  # (T, N, K) bool: no value beyond
    done: Tensor  # (T, N, K) bool: the branch was restarted after the step, or the segment ended
    failed: Tensor  # (T, N, K) bool
    searched: Tensor | None = None  # (T, N, A) where further search led the mean; None: there was none


Progress = Callable[[range], Iterable[int]]
"""Passes on the steps of something that takes time, and may show how far it is."""

Metrics = dict[str, float]
"""What an algorithm reports of an iteration; documented in docs/metrics.md."""
