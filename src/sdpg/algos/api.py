"""The contract of algorithms: all that training, evaluation, films and memory plans know of one.

An algorithm is two classes. A frozen `AlgoCfg` holds its options and answers what must be known before anything is
built; its `build` makes the `Algorithm`, which collects, updates and hands out its policy.

Promises, each with a test that quotes it (tests/contract/test_algorithms.py):

1. The same seed gives the same numbers: nothing is drawn from global random generators.
2. `state_dict` has all that decides how the algorithm goes on. With `exact_resume`, k iterations, saved, loaded and k
   more are 2 k iterations, bit for bit.
3. `collect` leaves the environment ready for the next `collect`; `update` does not touch it.
4. `policy` is a module that maps sources to the deterministic action. It needs nothing of the environment.
5. Metrics are returned, never logged; docs/metrics.md has each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sdpg.distributed import ALONE, Group
from sdpg.env import BranchedEnv
from sdpg.types import Metrics

Carry = dict[str, Tensor]
"""What a recurrent policy remembers from one step to the next: name -> (N, ...). Empty for all others."""


class Policy(nn.Module):
    """Sources to the deterministic action: what is evaluated, filmed and learnt from."""

    def carry(self, num: int) -> Carry:
        """The memory of `num` worlds at the start of an episode."""
        return {}

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        """name -> (N, ...), memory -> action (N, A) in [-1, 1], memory after it."""
        raise NotImplementedError


def begin_where(policy: Policy, carry: Carry, began: Tensor) -> Carry:
    """`carry`, replaced by that of a new episode in the rows where `began` (N,) bool holds."""
    new = policy.carry(len(began))
    return {k: torch.where(began.view(-1, *(1,) * (old.dim() - 1)), new[k], old) for k, old in carry.items()}


@dataclass(frozen=True)
class ImageShape:
    """The shape of one image source, its frames stacked."""

    channels: int
    height: int
    width: int
    depth: bool  # float32 depths in place of uint8 colours
    features: int | None = None  # that the task wants it encoded into; None: as the options say
    frame_channels: int = 3  # of one frame of the stack

    @property
    def bytes(self) -> int:
        return self.channels * self.height * self.width * (4 if self.depth else 1)


@dataclass(frozen=True)
class Shapes:
    """The sizes of a run that memory depends on, for one rank."""

    num_nominal: int  # N
    branches: int  # K
    state: int  # D
    action: int  # A
    images: tuple[ImageShape, ...] = ()  # what the policy sees
    vectors: tuple[int, ...] = ()  # and of these
    vector_widths: tuple[tuple[int, ...] | None, ...] = ()  # of their MLPs, where the task says so
    state_mlps: tuple[tuple[int, ...], ...] = ()  # size and widths of each part of the critic's state, if it has parts
    directions: int = 0  # in which a step can be perturbed: 2 nv + na + nu
    world: int = 0  # bytes of a world's state

    def vector_mlps(self, widths: Sequence[int]) -> list[tuple[int, ...]]:
        """Size and widths of each vector of the policy; `widths`: of those of which the task says nothing."""
        own = self.vector_widths or (None,) * len(self.vectors)
        return [(n, *(widths if mine is None else mine)) for n, mine in zip(self.vectors, own, strict=True)]

    @property
    def critic_inputs(self) -> int:
        """Numbers that the critic's own MLP gets."""
        return sum(mlp[-1] for mlp in self.state_mlps) if self.state_mlps else self.state


@dataclass(frozen=True)
class Need:
    """Bytes by purpose: fixed ones, and those that each nominal world adds with its branches."""

    fixed: Mapping[str, int] = field(default_factory=dict)
    per_nominal: Mapping[str, int] = field(default_factory=dict)
    fix: str = "give fewer --num-auxiliary"  # for a user with whom not even one nominal fits


@dataclass(frozen=True)
class Work:
    """The work of one phase in one iteration on one rank, in multiply-adds unless the phase has another unit."""

    calls: float
    units: float
    messages: float = 0.0  # between ranks


@dataclass(frozen=True)
class GuidedSearch:
    """A policy gradient as guided search: trajectories are improved, then the policy is cloned from them."""

    how: str  # what improves them
    search_steps: int  # of them for a batch of rollouts
    cloning_steps: int  # and of the policy


@dataclass(frozen=True)
class Context:
    """What an algorithm is built from."""

    env: BranchedEnv
    sources: tuple[str, ...] = ("state",)  # what the policy sees
    seed: int = 0
    group: Group = ALONE
    # For algorithms that have a teacher; None where only the policy is wanted, for evaluation, films and teaching.
    load_policy: Callable[[str], Policy] | None = None  # the policy of a run folder
    seconds_of: Callable[[str], float] | None = None  # how long it was trained


@dataclass(frozen=True)
class AlgoCfg(ABC):
    """An algorithm's options, and what must be known of it before it is built."""

    name: ClassVar[str]  # its word on the command line, in run folders and checkpoints
    auxiliaries: ClassVar[tuple[int, int | None]] = (0, 0)  # the fewest and the most that it can use; None: any number
    ranks: ClassVar[bool] = False  # may run under torchrun
    exact_resume: ClassVar[bool] = True

    schedule_iterations: int = field(default=0, kw_only=True)
    """Length of all schedules; 0: the iterations of the run, or as many as --minutes will give."""
    schedule_from: int = field(default=0, kw_only=True)
    """Iteration at which that length became known, if not at the start; recorded by runs with --minutes."""

    @property
    def history(self) -> int:
        """How many control steps back the last branching may be; the record of a failure must reach it."""
        return 0

    def rules(self) -> dict[str, bool]:
        """What must hold of the options: a sentence that names the option -> whether it holds."""
        return {}

    def guided_search(self) -> GuidedSearch | None:
        """What one iteration is, seen as guided search; None for those that are not of this kind."""
        return None

    @abstractmethod
    def memory(self, shapes: Shapes) -> Need:
        """The memory that the algorithm takes beside the environment: an estimate, within 25 % of what is measured."""

    def work(self, shapes: Shapes, ranks: int) -> dict[str, Work]:
        """The phases of one iteration, for `sdpg bench scaling`; empty if there is no model of their cost."""
        return {}

    @abstractmethod
    def build(self, context: Context) -> Algorithm: ...


class Algorithm(ABC):
    """collect -> update, once an iteration."""

    iteration: int = 0  # finished so far
    warm: bool = True  # False while it only gathers: the time of such iterations says nothing about later ones
    cfg: AlgoCfg  # its options; a trainer replaces them once, when a run of some minutes knows its schedules' length

    @abstractmethod
    def collect(self, env: BranchedEnv) -> Any:
        """Experience for one update; nobody but the algorithm looks into it."""

    @abstractmethod
    def update(self, batch: Any) -> Metrics:
        """Learn from it, and count the iteration."""

    @abstractmethod
    def policy(self) -> Policy:
        """The policy as it is now; it follows later updates."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers, nested by name."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def phases(self) -> dict[str, tuple[object, str]]:
        """For benches: phase -> an object, and the names of the methods that make up the phase, separated by spaces."""
        return {}
