"""The simulator's written contract. Flat worlds: it knows nothing of N, K, rewards or pixels.

Promises, each with a test that quotes it (tests/contract):

1. A world is its state: whatever can influence its future is in the integration state (solver warm start included)
   and in its model parameters.
2. `copy` makes dst indistinguishable from src: given equal controls, both go on bit-identically.
3. Worlds do not influence each other: what happens in one, failure included, leaves the others untouched bit for bit.
4. `write` starts a world anew: time, warm start, controls, applied forces and actuator state are cleared. Mocap bodies
   are where it is told, or else where the model has them, and stay there.
5. `fields` are current on return from `step`, `write`, `copy`, `add_velocity` and `load`: they belong to the state as
   it is then.
6. A world that the engine refuses or warns about is reported by `step`, never raised; the next `write` or `copy` cures
   it.
7. Nothing depends on the number of threads.
8. `add_velocity` changes velocities and nothing else of the state, in the worlds that it is told: the warm start stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import mujoco
import torch
from torch import Tensor


class Simulator(Protocol):
    num_worlds: int  # E
    nq: int
    nv: int
    nu: int
    qpos_at: int  # where a state has qpos; qvel and the actuators' state follow it
    device: torch.device
    threads: int  # engine threads in use
    model: mujoco.MjModel  # what is simulated; not to be written to

    @property
    def fields(self) -> Mapping[str, Tensor]:
        """Live float32 tensors (E, ...): "qpos", "qvel" and the derived fields asked for at construction."""
        ...

    def step(self, ctrl: Tensor, substeps: int) -> Tensor:
        """Advance every world by `substeps` with (E, nu) controls; (E,) bool: worlds that failed."""
        ...

    def write(
        self,
        worlds: Tensor,
        qpos: Tensor,
        qvel: Tensor,
        mocap_pos: Tensor | None = None,
        mocap_quat: Tensor | None = None,
    ) -> None:
        """Start `worlds` (n,) anew at qpos (n, nq), qvel (n, nv), mocap_pos (n, nmocap, 3), mocap_quat (n, nmocap,
        4)."""
        ...

    def add_velocity(self, worlds: Tensor, change: Tensor) -> None:
        """Push `worlds` (n,), in rising order: their velocities change by (n, nv), in mid-episode."""
        ...

    def copy(self, src: Tensor, dst: Tensor) -> None:
        """World dst[i] becomes world src[i]: the whole state, parameters and fields too. (n,), (n,)"""
        ...

    def set_params(self, worlds: Tensor, params: Mapping[str, Tensor]) -> None:
        """Give `worlds` their own values (n, ...) of model fields; dependent constants follow."""
        ...

    def params(self, field: str, worlds: Tensor | None = None) -> Tensor:
        """Values (n, ...) of a model field, constants that depend on others too, or of "mocap_pos" or "mocap_quat", of
        all worlds or of `worlds` (n,): a copy, to look at."""
        ...

    def failure_reason(self, world: int) -> str:
        """What the engine said of a world that the last `step` reported; "" if it did not."""
        ...

    def state_dict(self, worlds: Tensor | None = None) -> dict[str, Tensor]:
        """Everything needed to go on exactly from here, of all worlds or of `worlds` (n,): name -> (n, ...), with the
        integration state as "state"."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...

    def another(self, num_worlds: int) -> Simulator:
        """Another simulator of the same kind, for so many worlds, which takes states of this one; its fields have the
        engine's own precision."""
        ...
