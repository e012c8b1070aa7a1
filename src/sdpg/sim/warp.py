"""Physics by `mujoco_warp`: every world at once, in float32, on a GPU or on Warp's CPU device.

The same code runs on both. Warp's CPU device works through a launch world by world on one core: it is there to test
what a GPU will do, and for scenes that are wanted in the same arithmetic, not for speed.

What decides how a world goes on (promise 1) are the arrays of `_STATE`: those that MuJoCo calls the integration state,
and all that `mujoco_warp.get_state` knows. Everything else in its `Data` is computed anew in every step; only sleeping
bodies would be an exception, so scenes with sleep are refused.

Control steps are recorded once, as a graph of launches, and replayed: by CUDA on a GPU, by a loop in C on the CPU,
where Python would take far longer to launch a hundred kernels than they take to run on a few worlds.

Contacts and constraints have room for a fixed number. It is taken from a trial with plain MuJoCo; where a step needs
more, the step is taken back, the room enlarged, and the step made again. Nothing is lost, and nothing is silent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.sim.cpu import silence_mujoco_log
from sdpg.sim.reads import stage_of
from sdpg.types import MOCAP
from sdpg.warp_engine import engine, in_order, numbered

# The integration state in MuJoCo's order (mjtState), by the names of `Data`; plugins are not supported by mujoco_warp.
_STATE = (
    "time qpos qvel act history qacc_warmstart ctrl qfrc_applied xfrc_applied eq_active mocap_pos mocap_quat userdata "
    "plastic".split()
)
_WATCHED = ("qpos", "qvel", "act", "qacc_warmstart", "ctrl")  # what goes wrong when a world does
_MAX_VALUE = 1e10  # MuJoCo's mjMAXVAL: beyond it the engine on the CPU warns of a bad state

# Model constants that `mujoco_warp.set_const` derives from others, and the fields of which only some groups depend.
_CONSTANTS = {
    "FIXED": ("body_subtreemass", "geom_aabb", "geom_rbound", "geom_size"),
    "KIN0": ("tendon_length0", "eq_data", "cam_pos0", "cam_poscom0", "cam_mat0", "light_pos0", "light_poscom0")
    + ("light_dir0",),
    "INERT0": ("dof_invweight0", "body_invweight0", "tendon_invweight0", "actuator_acc0"),
}
_NO_CONSTANTS = frozenset("geom_margin geom_gap geom_pos geom_quat geom_adhesion geom_surfacevel body_gravcomp".split())
_GROUPS = {
    "cam_pos": ("KIN0",),
    "cam_quat": ("KIN0",),
    "light_pos": ("KIN0",),
    "light_dir": ("KIN0",),
    "eq_data": ("KIN0",),
    "body_inertia": ("INERT0",),
    "dof_armature": ("INERT0",),
}

_MARGIN = 1.5  # room for contacts and constraints, compared with what the trial needed
_MOST = 8192  # contacts and constraints of a world: more is not a robot
_TRIALS, _TRIAL_STEPS = 8, 50


class WarpSim:
    """See `sim.api.Simulator` for what each method promises.

    `room`: contacts and constraints of a world to begin with; not given, a trial tells.
    """

    threads = 1  # a launch is serial on the CPU; a GPU has its own
    qpos_at = 1  # behind the time

    def __init__(
        self,
        model: mujoco.MjModel,
        num_worlds: int,
        reads: tuple[str, ...] = (),
        device: str | torch.device = "cpu",
        deterministic: bool = False,
        room: tuple[int, int] | None = None,
    ):
        self.model, self.num_worlds, self.deterministic, self._reads = model, num_worlds, deterministic, reads
        self.nq, self.nv, self.nu = model.nq, model.nv, model.nu
        self.device = numbered(device)
        self._wp, self._mjw = engine()
        self._where = self._wp.device_from_torch(self.device)
        self._stage = stage_of(model, reads)
        self._graphs: dict[int, Any] = {}  # substeps -> recorded launches; 0: only the derived fields
        self.enlarged = 0  # how often the room had to be
        with in_order(self.device):
            self._m = self._put_model()
            contacts, constraints = room or trial(model)
            self._d = self._mjw.make_data(model, num_worlds, naconmax=contacts * num_worlds, njmax=constraints)
            self._peaks = self._wp.zeros(2, dtype=int)  # constraints of a world, contacts of all, since last looked at
            self._note_peaks = _peak_kernel(self._wp)
        self._state = {name: self._bind(name).view(num_worlds, -1) for name in _STATE}  # (E, size) each
        self._overflow = self._wp.to_torch(self._d.overflow)  # (E,) bits
        self._fresh = {name: values[:1].clone() for name, values in self._state.items()}  # (1, size) a world at rest
        self._fields = {name: self._field(name) for name in ("qpos", "qvel", *reads)}
        self._derived = {name: self._fields[name] for name in reads if name not in _STATE}
        self._params: dict[str, Tensor] = {}  # model fields of which every world has its own: (E, ...)
        self._defaults: dict[str, Tensor] = {}  # their values in the model: (1, ...)
        self._wrong = torch.zeros(len(_WATCHED), num_worlds, dtype=torch.bool, device=self.device)
        self._flags = torch.zeros_like(self._overflow)
        self._refresh()

    @property
    def fields(self) -> Mapping[str, Tensor]:
        return self._fields

    def step(self, ctrl: Tensor, substeps: int) -> Tensor:
        self._state["ctrl"].copy_(ctrl)
        self._run(substeps)
        # NaN is not below any bound.
        self._wrong = torch.stack([~(_largest(self._state[name]) <= _MAX_VALUE) for name in _WATCHED])
        self._flags = self._overflow & ~self._harmless
        return self._wrong.any(0) | (self._flags != 0)

    def write(
        self,
        worlds: Tensor,
        qpos: Tensor,
        qvel: Tensor,
        mocap_pos: Tensor | None = None,
        mocap_quat: Tensor | None = None,
    ) -> None:
        given = {"qpos": qpos, "qvel": qvel, "mocap_pos": mocap_pos, "mocap_quat": mocap_quat}
        for name, values in self._state.items():
            new = given.get(name)
            values[worlds] = self._fresh[name] if new is None else new.to(values).flatten(1)  # (n, size)
        self._refresh()

    def add_velocity(self, worlds: Tensor, change: Tensor) -> None:
        self._state["qvel"][worlds] += change.to(self._state["qvel"])
        pushed = self._saved()
        self._refresh()
        self._restore(pushed)

    def copy(self, src: Tensor, dst: Tensor) -> None:
        for values in (*self._state.values(), *self._derived.values(), *self._params.values()):
            values[dst] = values[src]  # gathered first: src and dst may overlap

    def set_params(self, worlds: Tensor, params: Mapping[str, Tensor]) -> None:
        groups: set[str] = set()
        for name, values in params.items():
            mine = self._expand(name)
            self._require_still_scenery(name, values.to(mine))
            mine[worlds] = values.to(mine)
            if name in mujoco.MjModel._setconst_inputs and name not in _NO_CONSTANTS:
                groups |= set(_GROUPS.get(name, _CONSTANTS))
        if groups:
            self._set_constants(worlds, groups)

    def params(self, field: str, worlds: Tensor | None = None) -> Tensor:
        if field in MOCAP:
            values = self._field(field)
        elif field in self._params:
            values = self._params[field]
        else:
            default = self._default(field)
            values = default.expand(self.num_worlds, *default.shape[1:])
        return values.clone() if worlds is None else values[worlds]

    def failure_reason(self, world: int) -> str:
        wrong = zip(_WATCHED, self._wrong[:, world].tolist(), strict=True)
        said = [f"{name} is not finite or beyond {_MAX_VALUE:.0e}" for name, bad in wrong if bad]
        if flags := int(self._flags[world]):
            said.append(f"mujoco_warp ran out of room: {self._mjw.OverflowType(flags)!r}")
        return "; ".join(said)

    def state_dict(self, worlds: Tensor | None = None) -> dict[str, Tensor]:
        ids = torch.arange(self.num_worlds, device=self.device) if worlds is None else worlds
        states = torch.cat([values[ids].float() for values in self._state.values()], dim=1)
        derived = {f"fields.{name}": values[ids] for name, values in self._derived.items()}
        return {"state": states} | derived | {f"params.{name}": values[ids] for name, values in self._params.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        # Parameters and the constants that follow from them, as they were: nothing is derived again.
        names = {name.removeprefix("params.") for name in state if name.startswith("params.")}
        for name in names | self._params.keys():
            self._expand(name).copy_(state[f"params.{name}"] if name in names else self._defaults[name])
        sizes = [values.shape[1] for values in self._state.values()]
        if state["state"].shape != (self.num_worlds, sum(sizes)):
            size = tuple(state["state"].shape)
            raise ValueError(f"states {size} are not {self.num_worlds} worlds of {sum(sizes)} numbers")
        for values, part in zip(self._state.values(), state["state"].split(sizes, dim=1), strict=True):
            values.copy_(part)
        for name, values in self._derived.items():
            values.copy_(state[f"fields.{name}"])

    def another(self, num_worlds: int) -> WarpSim:
        return WarpSim(self.model, num_worlds, self._reads, self.device, self.deterministic)

    # --- running the engine -------------------------------------------------------------------------------------------

    def _run(self, substeps: int) -> None:
        """Once, however much room it takes: a step that runs out of it is taken back and made again."""
        before = self._saved()
        peaks = self._wp.to_torch(self._peaks)
        while True:
            self._overflow.zero_()
            peaks.zero_()
            self._launch(substeps)
            flags = (self._overflow & self._curable).amax()
            constraints, contacts, short = torch.stack((*peaks, flags)).tolist()  # the one wait for the device
            if constraints <= self._d.njmax and contacts <= self._d.naconmax and not short:
                return
            self._restore(before)
            self._enlarge(constraints, contacts)

    def _launch(self, substeps: int) -> None:
        """Replay the launches, which are recorded when they are needed first."""
        wp = self._wp
        if self._where.is_cuda and not wp.is_mempool_enabled(self._where):  # a driver that can't allocate in a graph
            with in_order(self.device):
                self._program(substeps)
            return
        if substeps not in self._graphs:
            before = self._saved()
            with in_order(self.device):  # a recording must not compile, so they are made once before
                self._program(substeps)
            self._restore(before)
            with wp.ScopedDevice(self._where), wp.ScopedCapture() as capture:  # CUDA can't record torch's own stream
                self._program(substeps)
            self._graphs[substeps] = capture.graph
        with in_order(self.device):
            wp.capture_launch(self._graphs[substeps])

    def _saved(self) -> list[Tensor]:
        return [values.clone() for values in self._state.values()]

    def _restore(self, saved: list[Tensor]) -> None:
        for mine, values in zip(self._state.values(), saved, strict=True):
            mine.copy_(values)

    def _program(self, substeps: int) -> None:
        """`substeps` steps, then what makes the derived fields those of the new state; the warm start stays."""
        mjw, m, d = self._mjw, self._m, self._d
        for _ in range(substeps):
            mjw.step(m, d)
        history = self._wp.clone(d.history) if self._stage != "state" and self.model.nhistory else None
        if self._stage == "position":
            mjw.fwd_kinematics(m, d)
        elif self._stage == "velocity":
            mjw.fwd_position(m, d, factorize=False)
            self._note(m, d)
            d.sensordata.zero_()
            mjw.sensor_pos(m, d)
            mjw.fwd_velocity(m, d)
            mjw.sensor_vel(m, d)
        elif self._stage == "acceleration":
            mjw.forward(m, d)
        if history is not None:  # sensors with a delay were read once too often
            self._wp.copy(d.history, history)

    def _note(self, m: Any, d: Any) -> None:
        """How much room was needed; the engine calls this in every evaluation of the dynamics."""
        self._wp.launch(self._note_peaks, dim=d.nworld, inputs=[d.nefc, d.nacon, d.ncollision], outputs=[self._peaks])

    def _enlarge(self, constraints: int, contacts: int) -> None:
        old, kinds = self._d, self._mjw.OverflowType

        def short(*names: str) -> bool:
            return any(bool((self._overflow & int(kinds[name])).any()) for name in names)

        njmax, naconmax = old.njmax, old.naconmax
        if constraints > njmax or short("NEFC", "NJMAX_NNZ"):
            njmax = max(2 * njmax, round(_MARGIN * constraints))
        if contacts > naconmax or short("BROADPHASE", "NARROWPHASE", "CCD"):
            naconmax = max(2 * naconmax, round(_MARGIN * contacts))
        if short("CONTACT_MATCH"):
            self._m.opt.contact_sensor_maxmatch *= 2
        if max(njmax, naconmax / self.num_worlds, self._m.opt.contact_sensor_maxmatch) > _MOST:
            raise SdpgError(
                f"mujoco_warp needs room for {constraints} constraints of a world and {contacts} contacts of "
                f"{self.num_worlds}, more than {_MOST} a world: give geoms that need not touch contype 0 and "
                "conaffinity 0, or --sim cpu"
            )
        with in_order(self.device):
            new = self._mjw.make_data(self.model, self.num_worlds, naconmax=naconmax, njmax=njmax)
        for spec in dataclasses.fields(new):  # whatever does not depend on the room stays where it is, fields too
            mine, theirs = getattr(old, spec.name), getattr(new, spec.name)
            if isinstance(mine, self._wp.array) and mine.shape == theirs.shape:
                setattr(new, spec.name, mine)
        self._d = new
        self._graphs.clear()
        self.enlarged += 1

    def _refresh(self) -> None:
        if self._stage != "state":
            self._run(0)

    # --- the model ----------------------------------------------------------------------------------------------------

    def _put_model(self) -> Any:
        mjw, flags = self._mjw, self._mjw.OverflowType
        if self.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise SdpgError("mujoco_warp: this scene lets bodies sleep, which branches can't copy; disable it")
        try:
            m = mjw.put_model(self.model)
        except NotImplementedError as error:
            raise SdpgError(f"mujoco_warp can't simulate this scene: {error}; give --sim cpu") from error
        m.opt.warn_overflow = False  # `step` tells
        m.opt.deterministic = int(mjw.DeterminismType.ALL if self.deterministic else mjw.DeterminismType.NONE)
        if self._where.is_cuda:
            m.opt.graph_conditional = self._wp.is_conditional_graph_supported()
        m.callback.control = self._note
        # What more room cures; and what MuJoCo does not warn of either: a solver that stopped at its limit.
        self._curable = int(flags.NEFC | flags.NJMAX_NNZ | flags.BROADPHASE | flags.NARROWPHASE | flags.CCD)
        self._curable |= int(flags.CONTACT_MATCH)
        self._harmless = int(flags.ITERATIONS | flags.LS_ITERATIONS)
        return m

    def _default(self, name: str) -> Tensor:
        """(1, ...) the model's value of a field that worlds may have their own of."""
        spec = next((f.type for f in dataclasses.fields(self._m) if f.name == name), None)
        if not hasattr(self.model, name) or getattr(spec, "shape", ())[:1] != ("*",):
            raise SdpgError(f"mujoco_warp has no '{name}' for every world; draw another field in start(), or --sim cpu")
        if name in self._defaults:
            return self._defaults[name]
        return self._wp.to_torch(getattr(self._m, name)).view(1, *getattr(self.model, name).shape)

    def _expand(self, name: str) -> Tensor:
        """(E, ...) live values, of every world its own."""
        if name not in self._params:
            default, shared = self._default(name).clone(), getattr(self._m, name)
            mine = self._wp.empty((self.num_worlds, *shared.shape[1:]), dtype=shared.dtype, device=self._where)
            setattr(self._m, name, mine)
            self._graphs.clear()  # they know the old array
            self._defaults[name] = default
            self._params[name] = self._wp.to_torch(mine).view(self.num_worlds, *default.shape[1:])
            self._params[name].copy_(default.expand_as(self._params[name]))
        return self._params[name]

    def _set_constants(self, worlds: Tensor, groups: set[str]) -> None:
        """Derive the constants of `worlds`. Those of the others, which are the model's in double precision, stay."""
        names = [name for group in groups for name in _CONSTANTS[group] if getattr(self.model, name).size]
        before = {name: self._expand(name).clone() for name in names}
        bits = sum(int(self._mjw.SetConstGroup[group]) for group in groups)
        with in_order(self.device):
            self._mjw.set_const(self._m, self._d, bits)
        for name, values in before.items():
            values[worlds] = self._params[name][worlds]
            self._params[name].copy_(values)

    def _require_still_scenery(self, name: str, values: Tensor) -> None:
        """mujoco_warp places what is fixed to the world once and for all."""
        if name not in ("body_pos", "body_quat", "geom_pos", "geom_quat"):
            return
        body = np.arange(self.model.nbody) if name.startswith("body") else self.model.geom_bodyid
        fixed = (self.model.body_weldid[body] == 0) & (self.model.body_mocapid[self.model.body_rootid[body]] < 0)
        ids = torch.from_numpy(np.flatnonzero(fixed)).to(self.device)
        if (values[:, ids] != self._defaults[name][:, ids]).any():
            raise SdpgError(f"mujoco_warp can't move what is fixed to the world by '{name}'; use a mocap body")

    def _bind(self, name: str) -> Tensor:
        """An array of `Data` as a tensor that shares its memory: (E, ...)."""
        return self._wp.to_torch(getattr(self._d, name))

    def _field(self, name: str) -> Tensor:
        """The same with the shape that MuJoCo gives it."""
        return self._bind(name).view(self.num_worlds, *getattr(mujoco.MjData(self.model), name).shape)


def trial(model: mujoco.MjModel) -> tuple[int, int]:
    """Contacts and constraints of a world to make room for: the most that plain MuJoCo meets from random poses, and a
    margin."""
    silence_mujoco_log()
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    contacts = constraints = 0
    for i in range(_TRIALS):
        mujoco.mj_resetData(model, data)
        mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.2 * i)
        for _ in range(_TRIAL_STEPS):
            data.ctrl[:] = rng.uniform(-1.0, 1.0, model.nu)
            mujoco.mj_step(model, data)
            contacts, constraints = max(contacts, data.ncon), max(constraints, data.nefc)
    return max(4, round(_MARGIN * contacts)), max(8, round(_MARGIN * constraints))


def world_bytes(model: mujoco.MjModel) -> int:
    """Memory that the engine takes for each world."""
    wp, mjw = engine()
    contacts, constraints = trial(model)
    with wp.ScopedDevice("cpu"):
        one = mjw.make_data(model, 1, naconmax=contacts, njmax=constraints)
    return _array_bytes(wp, one)


def _array_bytes(wp: Any, data: Any) -> int:
    values = [getattr(data, spec.name) for spec in dataclasses.fields(data)]
    nested = sum(_array_bytes(wp, value) for value in values if dataclasses.is_dataclass(value))
    return nested + sum(value.capacity for value in values if isinstance(value, wp.array))


def _largest(values: Tensor) -> Tensor:
    """(E, size) -> (E,) the largest absolute number, NaN if there is one."""
    return values.abs().amax(1) if values.shape[1] else values.new_zeros(values.shape[0])


def _peak_kernel(wp: Any) -> Any:
    def note_peaks(nefc, nacon, ncollision, peaks):  # type: ignore[no-untyped-def]
        world = wp.tid()
        wp.atomic_max(peaks, 0, nefc[world])
        if world == 0:
            wp.atomic_max(peaks, 1, wp.max(nacon[0], ncollision[0]))

    note_peaks.__annotations__ = dict.fromkeys(("nefc", "nacon", "ncollision", "peaks"), wp.array(dtype=int))
    return wp.kernel(note_peaks, enable_backward=False)
