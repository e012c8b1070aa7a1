"""What rows may have of their own, and a picture shows: model fields, and the poses of mocap bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.types import MOCAP

LARGEST = 1e10  # mjMAXVAL: the engine calls a coordinate beyond this bad

POSES = frozenset(  # what kinematics reads
    "qpos0 body_pos body_quat jnt_pos jnt_axis geom_pos geom_quat cam_pos cam_quat light_pos light_dir".split()
)
LOOKS = frozenset(
    "geom_size geom_rgba mat_rgba mat_emission mat_specular mat_shininess mat_texrepeat cam_fovy cam_intrinsic "
    "light_active light_attenuation light_cutoff light_exponent light_ambient light_diffuse light_specular".split()
)
# Cameras and lights that follow something keep their distance to it in constants that the engine derives.
TRACKING = ("cam_pos0", "cam_poscom0", "cam_mat0", "light_pos0", "light_poscom0", "light_dir0")
MASSES = ("body_mass", "body_ipos", "body_subtreemass")  # seen by what follows a centre of mass
_ALIKE = frozenset(  # seen, and the same in all rows; so are all that begin with _ASSETS
    "geom_type geom_dataid geom_matid geom_group geom_bodyid body_parentid body_rootid body_mocapid jnt_type cam_mode "
    "cam_bodyid cam_targetbodyid cam_projection cam_sensorsize light_type light_mode light_bodyid light_targetbodyid "
    "mat_texid mat_texuniform flex_vert flex_node flex_radius flex_rgba flex_matid flex_texcoord".split()
)
_ASSETS = ("tex_", "mesh_", "hfield_")


def varied(model: mujoco.MjModel, params: Iterable[str]) -> tuple[str, ...]:
    """Those fields of which a renderer wants each row's own values, if a task varies `params`. SdpgError if one of them
    is seen and can't be varied."""
    found = {name for name in params if name in POSES | LOOKS | set(TRACKING)}
    for name in params:
        if name in _ALIKE or name.startswith(_ASSETS):
            raise SdpgError(f"'{name}' can't be drawn differently in each row: leave it out of the task's params")
    modes = {*model.cam_mode.tolist(), *model.light_mode.tolist()}
    of_mass = {int(mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM), int(mujoco.mjtCamLight.mjCAMLIGHT_TARGETBODYCOM)}
    moved = any(name in POSES or name in MASSES for name in params)
    if modes & of_mass and moved:
        found |= set(MASSES)
    if modes != {int(mujoco.mjtCamLight.mjCAMLIGHT_FIXED)} and moved:
        found |= set(TRACKING)
    found = {name for name in found if getattr(model, name).size}
    return tuple(sorted(found)) + (MOCAP if model.nmocap else ())


class Rows:
    """What renderers make of the N states that they are given: float64 rows on `device`, by field."""

    def __init__(self, model: mujoco.MjModel, num: int, names: tuple[str, ...], device: torch.device):
        bodies = np.flatnonzero(model.body_mocapid >= 0)
        bodies = bodies[np.argsort(model.body_mocapid[bodies])]  # (nmocap,)
        shared = {"qpos": model.qpos0, "mocap_pos": model.body_pos[bodies], "mocap_quat": model.body_quat[bodies]}
        shared |= {name: getattr(model, name) for name in names if name not in MOCAP}
        self._shared = {
            name: torch.tensor(values, dtype=torch.float64, device=device)
            for name, values in shared.items()
            if values.size
        }
        self._num, self._state = num, (num, model.nq)

    def __call__(self, qpos: Tensor, own: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """qpos (N, nq), rows that are no state replaced by the reference pose; every other field (N, ...): what `own`
        has, else, and where that is no number, the model's."""
        if qpos.shape != self._state:
            raise ValueError(f"qpos is {tuple(qpos.shape)}; the renderer was made for {self._state}")
        given = {**(own or {}), "qpos": qpos}
        if unknown := given.keys() - self._shared.keys() - {"qpos"}:
            raise ValueError(f"the renderer was not made for rows that differ in {', '.join(sorted(unknown))}")
        return {name: self._mended(name, given.get(name)) for name in self._shared}

    def _mended(self, name: str, given: Tensor | None) -> Tensor:
        shared = self._shared[name].expand(self._num, *self._shared[name].shape)
        if given is None:
            return shared
        rows = given.detach().to(shared).reshape(shared.shape)
        number = rows.abs() < LARGEST  # NaN compares false
        return torch.where(number.all(-1, keepdim=True) if name == "qpos" else number, rows, shared)
