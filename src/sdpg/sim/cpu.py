"""Physics on CPU cores: `mujoco.batch`, one integration state per world, stepped by a C thread pool."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor

from sdpg.sim.reads import stage_of
from sdpg.types import MOCAP

_STAGES = {
    "state": mujoco.mjtStage.mjSTAGE_NONE,
    "position": mujoco.mjtStage.mjSTAGE_POS,
    "velocity": mujoco.mjtStage.mjSTAGE_VEL,
    "acceleration": mujoco.mjtStage.mjSTAGE_ACC,
}
# No position depends on contacts and constraints, which are half of the position stage or more.
_FLAGS = "opt.disableflags"
_NO_CONSTRAINTS = int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)


def silence_mujoco_log() -> None:
    """Warnings are counted world by world; the engine need not print them and leave a log file behind as well."""
    config = mujoco.MjLogConfig.get()
    config.logto_console = config.logto_file = False
    mujoco.MjLogConfig.set(config)


class CpuSim:
    """See `sim.api.Simulator` for what each method promises."""

    device = torch.device("cpu")

    qpos_at = 1  # behind the time

    def __init__(
        self,
        model: mujoco.MjModel,
        num_worlds: int,
        threads: int = 0,
        reads: tuple[str, ...] = (),
        dtype: torch.dtype = torch.float32,  # of the fields
    ):
        self.model, self.num_worlds, self._reads = model, num_worlds, reads
        silence_mujoco_log()
        self.nq, self.nv, self.nu = model.nq, model.nv, model.nu
        self._batch = Batch(model, nsim=num_worlds, nthread=threads)
        self.threads = self._batch.nthread
        self._stage = int(_STAGES[stage_of(model, reads)])
        self._positions_only = self._stage == mujoco.mjtStage.mjSTAGE_POS
        self._fresh = self._batch.state[0].copy()  # (S,) the state of a world at rest: what write() starts from
        self._ctrl = self._batch.bind("ctrl")  # (E, nu) view of the states
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._bound = {"qpos": self._qpos, "qvel": self._qvel} | {name: self._batch.bind(name) for name in reads}
        self._fields = {name: torch.zeros(array.shape, dtype=dtype) for name, array in self._bound.items()}
        self._warnings = self._batch.warning[..., 1].copy()  # (E, kinds of warning) counts seen so far
        self._warned = np.zeros_like(self._warnings, bool)  # (E, kinds of warning) raised in the last step
        self._forward(None)

    @property
    def fields(self) -> Mapping[str, Tensor]:
        return self._fields

    def step(self, ctrl: Tensor, substeps: int) -> Tensor:
        self._ctrl[:] = ctrl.numpy()
        failed = np.zeros(self.num_worlds, bool)
        try:
            self._batch.step(nstep=substeps, stage=0 if self._positions_only else self._stage)
        except SimulationError as error:
            failed[error.ids] = True
        if self._positions_only:
            self._forward_positions(np.flatnonzero(~failed))  # of the others the error has to stay
        self._refresh(None)
        warnings = self._batch.warning[..., 1].copy()
        self._warned, self._warnings = warnings != self._warnings, warnings
        return torch.from_numpy(failed | self._warned.any(axis=1))

    def write(
        self,
        worlds: Tensor,
        qpos: Tensor,
        qvel: Tensor,
        mocap_pos: Tensor | None = None,
        mocap_quat: Tensor | None = None,
    ) -> None:
        ids = worlds.numpy()
        self._batch.state[ids] = self._fresh
        self._qpos[ids], self._qvel[ids] = qpos.numpy(), qvel.numpy()
        for name, poses in (("mocap_pos", mocap_pos), ("mocap_quat", mocap_quat)):
            if poses is not None:
                self._batch.bind(name)[ids] = poses.numpy()
        self._forward(ids)

    def add_velocity(self, worlds: Tensor, change: Tensor) -> None:
        ids = worlds.numpy()
        self._qvel[ids] += change.numpy()
        pushed = self._batch.state[ids]
        self._forward(ids)
        self._batch.state[ids] = pushed  # a forward pass may move the warm start

    def copy(self, src: Tensor, dst: Tensor) -> None:
        from_ids, to_ids = src.numpy(), dst.numpy()
        self._batch.state[to_ids] = self._batch.state[from_ids]
        for values in self._fields.values():
            values[dst] = values[src]
        params = {name: values[from_ids] for name, values in self._expanded().items()}
        self._set_params(to_ids, params)

    def set_params(self, worlds: Tensor, params: Mapping[str, Tensor]) -> None:
        self._set_params(worlds.numpy(), {name: values.numpy() for name, values in params.items()})

    def params(self, field: str, worlds: Tensor | None = None) -> Tensor:
        ids = np.arange(self.num_worlds) if worlds is None else worlds.numpy()
        if field in MOCAP:
            return torch.from_numpy(self._batch.bind(field)[ids])
        own = self._batch.expanded(field)
        if own is None:  # every world has the model's
            shared = getattr(self.model, field)[None]
            return torch.from_numpy(np.repeat(shared, len(ids), axis=0))
        return torch.from_numpy(own[ids])

    def failure_reason(self, world: int) -> str:
        last, kinds = self._batch.warning[world, :, 0], np.flatnonzero(self._warned[world])
        said = [self._batch.error(world), *(mujoco.mju_warningText(int(kind), int(last[kind])) for kind in kinds)]
        return "; ".join(" ".join(text.split()) for text in said if text)

    def state_dict(self, worlds: Tensor | None = None) -> dict[str, Tensor]:
        ids = np.arange(self.num_worlds) if worlds is None else worlds.numpy()
        # Fields are saved, not recomputed: a forward pass may move the warm start.
        fields = {f"fields.{name}": torch.from_numpy(values.numpy()[ids]) for name, values in self._fields.items()}
        params = {f"params.{name}": torch.from_numpy(values[ids]) for name, values in self._expanded().items()}
        return {"state": torch.from_numpy(self._batch.state[ids])} | fields | params

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        all_worlds = np.arange(self.num_worlds)
        params = {name.removeprefix("params."): v.numpy() for name, v in state.items() if name.startswith("params.")}
        self._set_params(all_worlds, params)
        self._batch.state[:] = state["state"].numpy()
        for name, values in self._fields.items():
            values.copy_(state[f"fields.{name}"])

    def another(self, num_worlds: int) -> CpuSim:
        return CpuSim(self.model, num_worlds, self.threads, self._reads, torch.float64)

    def _expanded(self) -> dict[str, np.ndarray]:
        """The fields that set_params() or params() gave per-world values."""
        return {name: values for name, values in self._batch._expanded.items() if name != _FLAGS}

    def _set_params(self, ids: np.ndarray, params: Mapping[str, np.ndarray]) -> None:
        changed = False
        for name, values in params.items():
            mine = self._batch.expand(name)
            if not np.array_equal(mine[ids], values):  # branches share their row's values: mostly nothing to do
                mine[ids] = values
                changed |= name in mujoco.MjModel._setconst_inputs
        if changed:
            self._batch.set_const(ids)

    def _forward(self, ids: np.ndarray | None) -> None:
        """Make the fields of worlds whose state was written current."""
        if self._positions_only:
            self._forward_positions(ids)
        elif self._stage != mujoco.mjtStage.mjSTAGE_NONE:
            with suppress(SimulationError):  # the next step reports these worlds
                self._batch.forward(ids, stage=self._stage)
        self._refresh(ids)

    def _forward_positions(self, ids: np.ndarray | None) -> None:
        flags = self._batch.expand(_FLAGS)  # (E,)
        before = flags.copy()
        flags |= _NO_CONSTRAINTS
        with suppress(SimulationError):  # the next step reports these worlds
            self._batch.forward(ids, stage=self._stage)
        flags[:] = before

    def _refresh(self, ids: np.ndarray | None) -> None:
        """float64 states -> fields of their type, once."""
        for name, values in self._fields.items():
            source = self._bound[name]
            if ids is None:
                values.numpy()[...] = source
            else:
                values.numpy()[ids] = source[ids]
