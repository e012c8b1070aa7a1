"""Poses and velocities of bodies from the joints alone, batched.

An engine would repeat the whole position stage of a step for them, collisions included: a seventh of the Allegro hand's
physics, a quarter of the Shadow hand's.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.tasks.terms import rotate


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The rotation b, then a: quaternions (..., 4), (..., 4) -> (..., 4)."""
    (aw, av), (bw, bv) = ((q[..., :1], q[..., 1:]) for q in torch.broadcast_tensors(a, b))
    vector = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat((aw * bw - (av * bv).sum(-1, keepdim=True), vector), dim=-1)


class Fingertips:
    """F bodies at the ends of chains of hinges that begin at the world. Chains have L links each; shorter ones begin
    with links of no length."""

    def __init__(self, model: mujoco.MjModel, bodies: Sequence[str]):
        chains = [_chain(model, model.body(name).id) for name in bodies]
        longest = max(len(chain) for chain in chains)
        shape = longest, len(chains)
        self._offset, self._turn, self._axis = torch.zeros(*shape, 3), torch.zeros(*shape, 4), torch.zeros(*shape, 3)
        self._joint = torch.zeros(shape, dtype=torch.int64)  # (L, F): where in qpos and in qvel
        self._turn[..., 0] = 1.0
        for f, chain in enumerate(chains):
            for link, body in enumerate(chain, longest - len(chain)):
                self._offset[link, f] = torch.from_numpy(model.body_pos[body])
                self._turn[link, f] = torch.from_numpy(model.body_quat[body])
                if model.body_jntnum[body]:
                    joint = model.body_jntadr[body]
                    self._axis[link, f] = torch.from_numpy(model.jnt_axis[joint])
                    self._joint[link, f] = int(model.jnt_qposadr[joint])

    def __call__(self, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(..., nq), (..., nv) -> positions (..., F, 3), quaternions (..., F, 4), linear and angular velocities
        (..., F, 3), all in the world's frame."""
        device = qpos.device
        offset, turn, axis = self._offset.to(device), self._turn.to(device), self._axis.to(device)
        joint = self._joint.to(device)
        moves = axis.any(-1)  # (L, F)
        half = 0.5 * qpos[..., joint] * moves  # (..., L, F)
        bend = torch.cat((half.cos()[..., None], half.sin()[..., None] * axis), dim=-1)  # (..., L, F, 4)
        local = multiply(turn, bend)  # a joint is at its body's origin
        spin = rotate(turn, axis) * qvel[..., joint][..., None]  # (..., L, F, 3) in the frame of the link before
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


def _chain(model: mujoco.MjModel, body: int) -> list[int]:
    """From the body at the world's end to `body`."""
    chain: list[int] = []
    while body:
        joints = range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
        hinges = [model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE and not model.jnt_pos[j].any() for j in joints]
        if len(hinges) > 1 or not all(hinges):
            raise SdpgError(f"body '{model.body(body).name}' is moved by other than one hinge at its origin")
        if hinges and model.jnt_qposadr[joints[0]] != model.jnt_dofadr[joints[0]]:
            raise SdpgError(f"joints before that of body '{model.body(body).name}' are no hinges or slides")
        chain.insert(0, body)
        body = int(model.body_parentid[body])
    return chain
