"""Poses and velocities of bodies from the joints alone, batched.

An engine would repeat the position stage of a step for them: a seventh of the physics of the Allegro hand and of the
Panda, a quarter of the Shadow hand's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import mujoco
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.tasks.terms import axes_of, rotate


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The rotation b, then a: quaternions (..., 4), (..., 4) -> (..., 4)."""
    (aw, av), (bw, bv) = ((q[..., :1], q[..., 1:]) for q in torch.broadcast_tensors(a, b))
    vector = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat((aw * bw - (av * bv).sum(-1, keepdim=True), vector), dim=-1)


class Chains:
    """F bodies at the ends of chains of hinges that begin at the world. Chains have L links each; shorter ones begin
    with links of no length."""

    def __init__(self, model: mujoco.MjModel, bodies: Sequence[str]):
        chains = [_chain(model, model.body(name).id) for name in bodies]
        longest = max(len(chain) for chain in chains)
        shape = longest, len(chains)
        self._offset, self._turn, self._axis = torch.zeros(*shape, 3), torch.zeros(*shape, 4), torch.zeros(*shape, 3)
        self._joint = torch.zeros(shape, dtype=torch.int64)  # (L, F): where in qpos
        self._speed = torch.zeros(shape, dtype=torch.int64)  # and where in qvel
        self._turn[..., 0] = 1.0
        for f, chain in enumerate(chains):
            for link, body in enumerate(chain, longest - len(chain)):
                self._offset[link, f] = torch.from_numpy(model.body_pos[body])
                self._turn[link, f] = torch.from_numpy(model.body_quat[body])
                if model.body_jntnum[body]:
                    joint = model.body_jntadr[body]
                    self._axis[link, f] = torch.from_numpy(model.jnt_axis[joint])
                    self._joint[link, f] = int(model.jnt_qposadr[joint])
                    self._speed[link, f] = int(model.jnt_dofadr[joint])

    @functools.cached_property
    def _turns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of every link the rotation from the link before, and what a hinge adds to it times the sine of its angle and
        times one less its cosine: (L, F, 3, 3) each."""
        x, y, z = self._axis.unbind(-1)
        none = torch.zeros_like(x)
        cross = torch.stack((none, -z, y, z, none, -x, -y, x, none), dim=-1).unflatten(-1, (3, 3))
        turn = axes_of(self._turn)
        return turn, turn @ cross, turn @ cross @ cross

    def poses(self, qpos: Tensor) -> tuple[Tensor, Tensor]:
        """(..., nq) -> positions (..., F, 3) in the world's frame, and axes there (..., F, 3, 3), as columns."""
        # Worlds are the last axis here, so that arithmetic goes along them: ten times as quick as along axes of 3.
        turn, once, twice, offset = (part.to(qpos.device)[..., None] for part in (*self._turns, self._offset))
        angle = qpos.reshape(-1, qpos.shape[-1]).T[self._joint.to(qpos.device), None, None]  # (L, F, 1, 1, B)
        local = turn + angle.sin() * once + (1.0 - angle.cos()) * twice  # (L, F, 3, 3, B) Rodrigues
        place, axes = offset[0], local[0]  # (F, 3, 1), (F, 3, 3, B)
        for link in range(1, len(offset)):
            place = place + _dot(axes, offset[link][..., None, :])[..., 0, :]
            axes = _dot(axes, local[link])
        grid = qpos.shape[:-1]
        return place.movedim(-1, 0).reshape(*grid, -1, 3), axes.movedim(-1, 0).reshape(*grid, -1, 3, 3)

    def motions(self, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(..., nq), (..., nv) -> positions (..., F, 3), quaternions (..., F, 4), linear and angular velocities
        (..., F, 3), all in the world's frame."""
        device = qpos.device
        offset, turn, axis = (part.to(device) for part in (self._offset, self._turn, self._axis))
        half = 0.5 * qpos[..., self._joint.to(device)] * axis.any(-1)  # (..., L, F)
        bend = torch.cat((half.cos()[..., None], half.sin()[..., None] * axis), dim=-1)  # (..., L, F, 4)
        local = multiply(turn, bend)  # a joint is at its body's origin
        speed = qvel[..., self._speed.to(device)][..., None]
        spin = rotate(turn, axis) * speed  # (..., L, F, 3) in the frame of the link before
        place, quat = offset[0].expand_as(spin[..., 0, :, :]), local[..., 0, :, :]
        angular = spin[..., 0, :, :]
        linear = torch.zeros_like(angular)
        for link in range(1, len(offset)):
            arm = rotate(quat, offset[link])  # (..., F, 3)
            place = place + arm
            linear = linear + torch.linalg.cross(angular, arm)
            angular = angular + rotate(quat, spin[..., link, :, :])
            quat = multiply(quat, local[..., link, :, :])
        return place, quat, linear, angular


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices: (..., 3, 3, B), (..., 3, n, B or 1) -> (..., 3, n, B)."""
    first, second, third = (a[..., :, i : i + 1, :] * b[..., i : i + 1, :, :] for i in range(3))
    return first + second + third


def _chain(model: mujoco.MjModel, body: int) -> list[int]:
    """From the body at the world's end to `body`."""
    chain: list[int] = []
    while body:
        joints = range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
        hinges = [model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE and not model.jnt_pos[j].any() for j in joints]
        if len(hinges) > 1 or not all(hinges):
            raise SdpgError(f"body '{model.body(body).name}' is moved by other than one hinge at its origin")
        chain.insert(0, body)
        body = int(model.body_parentid[body])
    return chain
