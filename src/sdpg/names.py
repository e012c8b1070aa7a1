"""Parts of a scene by their names: where their numbers are in MuJoCo's arrays. Looked up once, then remembered."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import NamedTuple

import mujoco
import torch
from torch import Tensor

from sdpg.errors import SdpgError

Index = int | slice | Tensor
"""Selects along an axis of a tensor: of one part a whole number, of neighbours a slice, of others their places (n,)."""

_KINDS = {
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "joint": mujoco.mjtObj.mjOBJ_JOINT,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "sensor": mujoco.mjtObj.mjOBJ_SENSOR,
}
_JOINT_SIZES = {  # numbers in qpos and in qvel
    int(mujoco.mjtJoint.mjJNT_FREE): (7, 6),
    int(mujoco.mjtJoint.mjJNT_BALL): (4, 3),
    int(mujoco.mjtJoint.mjJNT_SLIDE): (1, 1),
    int(mujoco.mjtJoint.mjJNT_HINGE): (1, 1),
}
_DOF_FIELDS = (
    "qacc qacc_smooth qfrc_smooth qfrc_constraint qfrc_actuator qfrc_bias qfrc_passive qfrc_spring qfrc_damper "
    "qfrc_gravcomp qfrc_fluid".split()
)
_BODY_FIELDS = "xpos xquat xmat xipos ximat subtree_com cvel cinert".split()

# kind -> what a part is asked for -> the field of MjData, and the method of Names that tells where in it.
FIELDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "body": {name: (name, "body") for name in _BODY_FIELDS},
    "geom": {"xpos": ("geom_xpos", "geom"), "xmat": ("geom_xmat", "geom")},
    "site": {"xpos": ("site_xpos", "site"), "xmat": ("site_xmat", "site")},
    "joint": {
        "qpos": ("qpos", "qpos"),
        "xanchor": ("xanchor", "joint"),
        "xaxis": ("xaxis", "joint"),
        **{name: (name, "qvel") for name in ("qvel", *_DOF_FIELDS)},
    },
    "actuator": {
        name: (field, "actuator")
        for name, field in {
            "ctrl": "ctrl",
            "force": "actuator_force",
            "length": "actuator_length",
            "velocity": "actuator_velocity",
        }.items()
    },
    "sensor": {"data": ("sensordata", "sensor")},
}


class _Place(NamedTuple):
    begin: int
    size: int


class Names:
    """Where named parts are in the arrays of MjData and MjModel.

    `body`, `joint`, `geom` and `site` count parts: they index arrays that have a row for each, `xpos` or `body_mass`.
    `qpos`, `qvel` (of joints), `actuator` and `sensor` are ranges of numbers; several names give theirs one after the
    other.
    """

    def __init__(self, model: mujoco.MjModel, device: torch.device | str = "cpu"):
        self._model, self._device = model, torch.device(device)
        self._known: dict[tuple[str, tuple[str, ...]], Index] = {}

    def body(self, *names: str) -> Index:
        return self._index("body", names)

    def joint(self, *names: str) -> Index:
        return self._index("joint", names)

    def geom(self, *names: str) -> Index:
        return self._index("geom", names)

    def site(self, *names: str) -> Index:
        return self._index("site", names)

    def qpos(self, *joints: str) -> Index:
        return self._index("qpos", joints)

    def qvel(self, *joints: str) -> Index:
        return self._index("qvel", joints)

    def actuator(self, *names: str) -> Index:
        return self._index("actuator", names)

    def sensor(self, *names: str) -> Index:
        return self._index("sensor", names)

    def _index(self, what: str, names: tuple[str, ...]) -> Index:
        key = what, names
        if key not in self._known:
            self._known[key] = self._find(what, names)
        return self._known[key]

    def _find(self, what: str, names: tuple[str, ...]) -> Index:
        if not names:
            raise SdpgError(f"which? {what}() needs the name of a part of the scene")
        kind = "joint" if what in ("qpos", "qvel") else what
        places = [self._place(what, self._id(kind, name)) for name in names]
        if len(names) == 1 and what in ("body", "joint", "geom", "site"):
            return places[0].begin
        numbers = [number for begin, size in places for number in range(begin, begin + size)]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return slice(numbers[0], numbers[0] + len(numbers))  # a view, where others are gathered
        return torch.tensor(numbers, device=self._device)

    def _place(self, what: str, part: int) -> _Place:
        model = self._model
        if what == "sensor":
            return _Place(int(model.sensor_adr[part]), int(model.sensor_dim[part]))
        if what in ("qpos", "qvel"):
            sizes = _JOINT_SIZES[int(model.jnt_type[part])]
            address = model.jnt_qposadr if what == "qpos" else model.jnt_dofadr
            return _Place(int(address[part]), sizes[what == "qvel"])
        return _Place(part, 1)

    def _id(self, kind: str, name: str) -> int:
        found = mujoco.mj_name2id(self._model, _KINDS[kind], name)
        if found >= 0:
            return found
        count = {"body": "nbody", "joint": "njnt", "actuator": "nu"}.get(kind, f"n{kind}")
        every = (mujoco.mj_id2name(self._model, _KINDS[kind], i) for i in range(getattr(self._model, count)))
        known = [other for other in every if other]
        near = difflib.get_close_matches(name, known, 3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(known[:20]) or 'none'}"
        raise SdpgError(f"the scene has no {kind} '{name}'; {hint}")
