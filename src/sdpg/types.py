"""The nouns. Letters: T horizon, N nominal worlds, M auxiliaries per nominal, K = M + 1 branches
(branch 0 is the nominal), E = N * K flat worlds, A action size, D state size.

Time comes first, then N and K, then features: `(T, N, K, D)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

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

    def __getitem__(self, name: str) -> Tensor:
        return self.derived[name]  # (N, K, ...)


@dataclass(frozen=True)
class Start:
    """Fresh episodes for n rows. Drawn per row, never per branch: branches share them."""

    qpos: Tensor  # (n, nq)
    qvel: Tensor  # (n, nv)
    memory: Memory = field(default_factory=dict)  # name -> (n, ...)
    params: Mapping[str, Tensor] = field(default_factory=dict)  # model field -> (n, ...)


@dataclass(frozen=True)
class Camera:
    """Pictures of one of the scene's cameras as a source: the last `stack` frames, the newest last."""

    name: str
    width: int = 84
    height: int = 84
    depth: bool = False  # metres (N, stack, H, W) float32 in place of colours (N, 3 * stack, H, W) uint8
    stack: int = 3
    groups: tuple[int, ...] = (0, 1, 2)  # the geom groups that it sees
    far: float = 5.0  # metres that a depth camera measures; to a policy, what lies beyond is as far as this


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


Watch = Callable[[range], Iterable[int]]
"""Passes the steps of something that takes time on as they are made, and may show how far it is."""

Metrics = dict[str, float]
"""What an algorithm reports of an iteration; documented in docs/metrics.md."""
