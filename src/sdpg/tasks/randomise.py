"""What differs from row to row, and what disturbs: ranges that a task declares, and what is drawn from them.

Differences between machines (friction, masses, gains, looks) are model parameters, drawn when an episode begins.
Disturbances (noise, pushes) are drawn after every step and kept in memory until they are used. All of it is drawn per
row, so that its branches share it: what tells them apart is their actions alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.tasks.terms import random_tilt
from sdpg.types import Memory, Physics

Range = tuple[float, float]
"""Drawn uniformly between the two."""

# Names in memory.
OFFSET, LATENCY, ACTIONS, NOISE = "motor_offset", "latency", "past_actions", "noise"
PUSH, UNTIL_PUSH = "push", "until_push"

_FACTORS = "friction mass stiffness damping strength light".split()
_PARAMS = {  # what is drawn -> the model fields that it changes
    "friction": ("geom_friction",),
    "mass": ("body_mass", "body_inertia"),
    "payload": ("body_mass",),
    "centre": ("body_ipos",),
    "stiffness": ("actuator_gainprm", "actuator_biasprm"),
    "damping": ("actuator_biasprm",),
    "strength": ("actuator_gainprm", "actuator_biasprm"),
    "camera_shift": ("cam_pos",),
    "camera_tilt": ("cam_quat",),
    "light": ("light_diffuse",),
    "colour": ("geom_rgba",),
}


class Drawn(NamedTuple):
    """Parts of a Start."""

    params: dict[str, Tensor]  # model field -> (n, ...)
    memory: Memory  # name -> (n, ...)


@dataclass(frozen=True)
class Randomise:
    """Ranges; what is None stays as the scene has it. Factors are of the scene's values."""

    base: str = ""  # the body that `payload` and `centre` are of
    friction: Range | None = None  # factor, one for all geoms: a contact has the larger friction of its two
    mass: Range | None = None  # factor of each body's mass and inertia
    payload: Range | None = None  # kg added at the base's centre of mass
    centre: Range | None = None  # metres added to each coordinate of that
    stiffness: Range | None = None  # factor of the kp of each position actuator
    damping: Range | None = None  # factor of its kd
    strength: Range | None = None  # factor of each actuator's whole force, before its limits
    offset: Range | None = None  # added to each control by `offset_control`
    latency: tuple[int, int] | None = None  # control steps by which `delayed` actions come late
    noise: tuple[float, ...] = ()  # of each number that `noisy` is given: uniform between minus and plus this
    push_every: tuple[int, int] | None = None  # control steps from one push to the next
    push: Range | None = None  # metres a second, for x and for y; `pushed` makes a change of velocities of it
    camera_shift: Range | None = None  # metres added to each coordinate of each camera
    camera_tilt: float | None = None  # radians at most, about any axis
    light: Range | None = None  # factor of each light's diffuse colour
    colour: Range | None = None  # added to red, green and blue of each geom

    def __post_init__(self) -> None:
        for sentence, holds in self.rules().items():
            if not holds:
                raise SdpgError(sentence)

    def rules(self) -> dict[str, bool]:
        """A sentence -> whether it holds."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        ranges = {k: v for k, v in given.items() if isinstance(v, tuple) and k != "noise"}
        return {
            **{f"{name} must be a lower and an upper bound, not {v}": v[0] <= v[1] for name, v in ranges.items()},
            **{
                f"{name} is a factor and must be positive, not {v}": v[0] > 0
                for name, v in ranges.items()
                if name in _FACTORS
            },
            f"latency must be at least 0, not {self.latency}": self.latency is None or self.latency[0] >= 0,
            f"push_every must be at least 1, not {self.push_every}": self.push_every is None or self.push_every[0] >= 1,
            "push and push_every need each other": (self.push is None) == (self.push_every is None),
            "payload and centre need the name of their body: base": bool(self.base)
            or (self.payload is None and self.centre is None),
        }

    @property
    def params(self) -> tuple[str, ...]:
        """The model fields that `draw` gives values to: for the task's `params`."""
        fields = [field for name, changed in _PARAMS.items() if getattr(self, name) is not None for field in changed]
        return tuple(dict.fromkeys(fields))

    def draw(self, rng: RowRng, n: int, model: mujoco.MjModel, action_size: int | None = None) -> Drawn:
        """For fresh episodes of n rows of the task's scene; actions have as many numbers as controls, unless told."""
        values = {name: _rows(getattr(model, name), n, rng) for name in self.params}
        self._draw_bodies(values, rng, model)
        self._draw_actuators(values, rng, model)
        self._draw_looks(values, rng, model)
        return Drawn(values, self._begin(rng, n, model, model.nu if action_size is None else action_size))

    def advance(self, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        """This library's part of the memory after a step: (N, K, A) actions -> name -> (N, K, ...). Every row draws in
        every step, whether it needs it or not: what it draws later does not depend on it."""
        after = {name: memory[name] for name in (OFFSET, LATENCY) if name in memory}
        if ACTIONS in memory:
            after[ACTIONS] = torch.cat((action[..., None, :], memory[ACTIONS][..., :-1, :]), dim=-2)
        grid = action.shape[:2]
        if self.noise:
            after[NOISE] = self._noise(rng)[:, None].expand(*grid, -1).contiguous()  # (N, K, size)
        if self.push is not None:
            wait, push = self._wait(rng)[:, None], rng.uniform(*self.push, 2)[:, None]  # (N, 1), (N, 1, 2)
            left = memory[UNTIL_PUSH] - 1  # (N, K)
            due = left <= 0
            after[UNTIL_PUSH] = torch.where(due, wait, left)
            after[PUSH] = torch.where(due[..., None], push, 0.0)
        return after

    def _draw_bodies(self, values: dict[str, Tensor], rng: RowRng, model: mujoco.MjModel) -> None:
        if self.friction is not None:
            values["geom_friction"][:, :, 0] *= rng.uniform(*self.friction, 1)
        if self.mass is not None:
            factor = rng.uniform(*self.mass, model.nbody)  # (n, bodies); the world's mass is 0
            values["body_mass"] *= factor
            values["body_inertia"] *= factor[..., None]
        if self.payload is None and self.centre is None:
            return
        base = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, self.base)
        if base < 0:
            raise SdpgError(f"the scene has no body '{self.base}' to be the base of payload and centre")
        if self.payload is not None:
            least = model.body_mass[base] * (1.0 if self.mass is None else self.mass[0]) + self.payload[0]
            if least <= 0.0:
                raise SdpgError(f"payload {self.payload} can leave '{self.base}' without mass: {least:.3g} kg")
            values["body_mass"][:, base] += rng.uniform(*self.payload, 1)[:, 0]
        if self.centre is not None:
            values["body_ipos"][:, base] += rng.uniform(*self.centre, 3)

    def _draw_actuators(self, values: dict[str, Tensor], rng: RowRng, model: mujoco.MjModel) -> None:
        """A position actuator's force is gain[0] * control + bias[1] * length + bias[2] * velocity."""
        if self.stiffness is not None or self.damping is not None:
            fixed = model.actuator_gaintype == mujoco.mjtGain.mjGAIN_FIXED
            affine = model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
            if not (fixed & affine).all():
                name = model.actuator(int(np.flatnonzero(~(fixed & affine))[0])).name
                raise SdpgError(f"actuator '{name}' has no kp and kd to draw stiffness and damping of; draw strength")
        if self.stiffness is not None:
            factor = rng.uniform(*self.stiffness, model.nu)  # (n, nu)
            values["actuator_gainprm"][:, :, 0] *= factor
            values["actuator_biasprm"][:, :, 1] *= factor
        if self.damping is not None:
            values["actuator_biasprm"][:, :, 2] *= rng.uniform(*self.damping, model.nu)
        if self.strength is not None:
            factor = rng.uniform(*self.strength, model.nu)[..., None]
            for name in ("actuator_gainprm", "actuator_biasprm"):
                values[name] *= factor

    def _draw_looks(self, values: dict[str, Tensor], rng: RowRng, model: mujoco.MjModel) -> None:
        if self.camera_shift is not None:
            values["cam_pos"] += rng.uniform(*self.camera_shift, model.ncam, 3)
        if self.camera_tilt is not None:
            tilts = [random_tilt(rng, self.camera_tilt) for _ in range(model.ncam)]
            values["cam_quat"] = _product(values["cam_quat"], torch.stack(tilts, dim=1).double())  # (n, cameras, 4)
        if self.light is not None:
            values["light_diffuse"] *= rng.uniform(*self.light, model.nlight, 1)
        if self.colour is not None:
            rgb = values["geom_rgba"][..., :3] + rng.uniform(*self.colour, model.ngeom, 3)
            plain = torch.from_numpy(model.geom_matid < 0).to(rgb.device)[:, None]  # a material has its own colour
            values["geom_rgba"][..., :3] = torch.where(plain, rgb.clamp(0.0, 1.0), values["geom_rgba"][..., :3])

    def _begin(self, rng: RowRng, n: int, model: mujoco.MjModel, action_size: int) -> Memory:
        memory: Memory = {}
        if self.offset is not None:
            memory[OFFSET] = rng.uniform(*self.offset, model.nu)
        if self.latency is not None:
            least, most = self.latency
            memory[LATENCY] = least + rng.integers(most - least + 1, 1)[:, 0]
            memory[ACTIONS] = torch.zeros(n, max(most, 1), action_size, device=rng.rows.device)  # newest first
        if self.noise:
            memory[NOISE] = self._noise(rng)
        if self.push is not None:
            memory[UNTIL_PUSH] = self._wait(rng)
            memory[PUSH] = torch.zeros(n, 2, device=rng.rows.device)
        return memory

    def _noise(self, rng: RowRng) -> Tensor:
        return rng.uniform(-1.0, 1.0, len(self.noise)) * torch.tensor(self.noise, device=rng.rows.device)

    def _wait(self, rng: RowRng) -> Tensor:
        """(n,) control steps until a push."""
        assert self.push_every is not None
        least, most = self.push_every
        return least + rng.integers(most - least + 1, 1)[:, 0]


def delayed(memory: Memory, action: Tensor) -> Tensor:
    """The action that acts now: the one of `latency` steps ago, 0 before the first. (N, K, A) -> (N, K, A)"""
    if LATENCY not in memory:
        return action
    known = torch.cat((action[..., None, :], memory[ACTIONS]), dim=-2)  # (N, K, 1 + most, A), newest first
    which = memory[LATENCY][..., None, None].expand(*action.shape[:-1], 1, action.shape[-1])
    return known.gather(-2, which)[..., 0, :]


def offset_control(memory: Memory, ctrl: Tensor) -> Tensor:
    """Controls (N, K, nu) as motors that are not quite calibrated understand them."""
    return ctrl + memory[OFFSET] if OFFSET in memory else ctrl


def pushed(x: Physics, memory: Memory, *joints: str) -> Tensor | None:
    """(N, K, nv) for the task's push(): x and y of a push are added to the first two velocities of `joints`, which are
    a free joint, or slides along x and y; not given, to the first two of the scene."""
    if PUSH not in memory:
        return None
    numbers = torch.arange(x.qvel.shape[-1], device=x.qvel.device)
    if joints:
        assert x.names is not None
        numbers = numbers[x.names.qvel(*joints)]
    change = torch.zeros_like(x.qvel)
    change[..., numbers[:2]] = memory[PUSH]
    return change


def noisy(memory: Memory, values: Tensor) -> Tensor:
    """What is measured of `values` (N, K, size): the same twice in a step, and the same error for a row's branches."""
    if NOISE not in memory:
        return values
    if memory[NOISE].shape[-1] != values.shape[-1]:
        raise SdpgError(f"noise has {memory[NOISE].shape[-1]} numbers for {values.shape[-1]} that are observed")
    return values + memory[NOISE]


def _rows(nominal: np.ndarray, n: int, rng: RowRng) -> Tensor:
    """(n, ...) copies in double precision, in which a factor of 1 changes nothing."""
    values = torch.tensor(nominal, dtype=torch.float64, device=rng.rows.device)
    return values.expand(n, *values.shape).clone()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Of quaternions (..., 4): the rotation b, in the frame that a turns to."""
    (w, x, y, z), (p, q, r, s) = a.unbind(-1), b.unbind(-1)
    parts = (
        w * p - x * q - y * r - z * s,
        w * q + x * p + y * s - z * r,
        w * r - x * s + y * p + z * q,
        w * s + x * r - y * q + z * p,
    )
    return torch.stack(parts, dim=-1)
