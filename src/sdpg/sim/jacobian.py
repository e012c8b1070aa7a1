"""How the state after a control step depends on the state before it and on the control, exactly, world by world.

Engines have no gradients, but they have worlds to spare: beside each of N nominal worlds a copy of it is stepped for
every direction in which its state or its control can be moved a little. What comes out, less what comes out of the copy
that was not moved, is a column of the Jacobian. All copies are stepped in one call.

Positions live on a manifold: a free or ball joint has four numbers and three directions. States are therefore moved in
their tangent space, (2 nv + na) directions, as `mj_integratePos` moves them, and compared there, as
`mj_differentiatePos` does. Copies have the nominal's warm start, too: all solvers begin at the same guess, so that what
they leave unsolved is common to them and falls out of the difference. That the guess itself depends on the state before
does not count: a solver that converges forgets it.

This file sees the contract of simulators (sim/api.py) and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import mujoco
import torch
from torch import Tensor

from sdpg.sim.api import Simulator

# Steps in the tangent space: rounding / EPS and EPS are both far below what matters, in the precision of the states.
EPS = {torch.float64: 1e-6, torch.float32: 1e-3}


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Quaternions (..., 4) times quaternions."""
    w, u, x, v = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    real = w * x - (u * v).sum(-1, keepdim=True)
    return torch.cat((real, w * v + x * u + torch.linalg.cross(u, v)), dim=-1)


class Tangent:
    """The directions in which a state can go: positions nv, velocities nv, actuators na."""

    def __init__(self, sim: Simulator):
        model, free, ball = sim.model, int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
        self.at, self.nq, self.nv, self.na = sim.qpos_at, sim.nq, sim.nv, int(model.na)
        plain, turned = [], []  # (place in qpos, place among the directions) of numbers and of quaternions
        for kind, q, v in zip(model.jnt_type, model.jnt_qposadr, model.jnt_dofadr, strict=True):
            moves = {free: 3, ball: 0}.get(int(kind), 1)
            plain += [(int(q) + i, int(v) + i) for i in range(moves)]
            turned += [(int(q) + moves, int(v) + moves)] if int(kind) in (free, ball) else []
        if not model.njnt:  # a system without joints: its positions are their own directions
            plain = [(i, i) for i in range(self.nq)]
        self.positions = len(plain) + 3 * len(turned)  # nv, wherever there are joints
        self.size = self.positions + self.nv + self.na
        places = functools.partial(torch.tensor, dtype=torch.int64, device=sim.device)
        self._plain, self._plain_dof = places(plain).view(-1, 2).unbind(1)
        begin = places(turned).view(-1, 2, 1)  # of every quaternion
        self._quat = begin[:, 0] + torch.arange(4, device=sim.device)  # (quaternions, 4)
        self._quat_dof = begin[:, 1] + torch.arange(3, device=sim.device)  # (quaternions, 3)

    def moved(self, state: Tensor, step: Tensor) -> Tensor:
        """States (..., S), moved by steps (..., size)."""
        state = state.clone()
        end = self.at + self.nq
        state[..., self.at : end] = self.moved_positions(state[..., self.at : end], step[..., : self.positions])
        state[..., end : end + self.nv + self.na] += step[..., self.positions :]
        return state

    def moved_positions(self, qpos: Tensor, step: Tensor) -> Tensor:
        """As `mj_integratePos`: (..., nq), (..., positions) -> (..., nq)."""
        moved = qpos.clone()
        moved[..., self._plain] += step[..., self._plain_dof]
        if len(self._quat):
            turn = step[..., self._quat_dof]  # about axes of the body
            half = 0.5 * turn.norm(dim=-1, keepdim=True)
            by = torch.cat((half.cos(), 0.5 * turn * torch.sinc(half / torch.pi)), dim=-1)
            moved[..., self._quat] = multiply(qpos[..., self._quat], by)
        return moved

    def difference(self, state: Tensor, base: Tensor) -> Tensor:
        """The step (..., size) that leads from `base` (..., S) to `state` (..., S)."""
        end = self.at + self.nq
        qpos, other = state[..., self.at : end], base[..., self.at : end].expand_as(state[..., self.at : end])
        step = qpos.new_zeros(*qpos.shape[:-1], self.positions)
        step[..., self._plain_dof] = qpos[..., self._plain] - other[..., self._plain]
        if len(self._quat):
            back = other[..., self._quat] * other.new_tensor((1.0, -1.0, -1.0, -1.0))
            turn = multiply(back, qpos[..., self._quat])
            turn = torch.where(turn[..., :1] < 0.0, -turn, turn)  # the shorter way round
            sine = turn[..., 1:].norm(dim=-1, keepdim=True)
            angle = 2.0 * torch.atan2(sine, turn[..., :1])
            step[..., self._quat_dof] = turn[..., 1:] * torch.where(sine > 0.0, angle / sine, 2.0)
        rest = slice(end, end + self.nv + self.na)
        return torch.cat((step, state[..., rest] - base[..., rest]), dim=-1)

    def linear(self, qpos: Tensor, step: Tensor) -> Tensor:
        """`moved_positions` by steps whose values are 0: what matters is its gradient, which is exact there."""
        moved = qpos.clone()
        moved[..., self._plain] += step[..., self._plain_dof]
        if len(self._quat):
            half = 0.5 * step[..., self._quat_dof]
            moved[..., self._quat] += multiply(
                qpos[..., self._quat], torch.cat((torch.zeros_like(half[..., :1]), half), dim=-1)
            )
        return moved


class StepJacobian:
    """Control steps of N worlds with gradients; `sim` is the simulator that they are in, whose states it is given."""

    def __init__(self, sim: Simulator):
        self.tangent, self.nu, self.num = Tangent(sim), sim.nu, sim.num_worlds
        self.copies = 1 + self.tangent.size + sim.nu  # of each world: as it is, moved, and pushed
        self._sim = sim.another(self.num * self.copies)
        self.derived = tuple(name for name in sim.fields if name not in ("qpos", "qvel"))
        self._high = torch.full((sim.nu,), torch.inf, dtype=torch.float64, device=sim.device)
        if sim.model.nu == sim.nu:
            limited = torch.as_tensor(sim.model.actuator_ctrllimited, device=sim.device) != 0
            self._high[limited] = torch.as_tensor(sim.model.actuator_ctrlrange[:, 1], device=sim.device)[limited]

    def step(
        self, state: Mapping[str, Tensor], tangent: Tensor, ctrl: Tensor, substeps: int
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """One control step from `state` (of `sim.state_dict`) with `ctrl` (N, nu).

        `tangent` (N, size) has the value 0 and stands for the state in the graph. Returns the same of the next state;
        its fields (N, ...), "qpos", "qvel" and the derived ones, as functions of `tangent` and `ctrl`; and (N,) bool:
        worlds whose Jacobian is known. Where a copy failed it is 0, and numbers may not be finite.
        """
        values, qpos, qvel, known = _Step.apply(tangent, ctrl, self, state, substeps)
        sizes = [self.tangent.size] + [self._field(name)[0].numel() for name in self.derived]
        after, *derived = values.split(sizes, dim=1)
        fields = {name: x.view(-1, *self._field(name).shape[1:]) for name, x in zip(self.derived, derived, strict=True)}
        begin, end = self.tangent.positions, self.tangent.positions + self.tangent.nv
        fields |= {"qpos": self.tangent.linear(qpos, after[:, :begin]), "qvel": qvel + after[:, begin:end]}
        return after, fields, known

    def _field(self, name: str) -> Tensor:
        return self._sim.fields[name]

    def measure(
        self, state: Mapping[str, Tensor], ctrl: Tensor, substeps: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """After a control step: derived fields (N, F), qpos, qvel; d (state, fields) / d (state, control), transposed,
        (N, size + nu, size + F), in which 0 stands for what is not known; and where it is, (N,) bool."""
        t, sim, copies = self.tangent, self._sim, self.copies
        eps = EPS[state["state"].dtype]
        begun = {name: values.repeat_interleave(copies, dim=0) for name, values in state.items()}
        steps = torch.zeros(copies, t.size, dtype=begun["state"].dtype, device=sim.device)
        steps[1 : 1 + t.size].fill_diagonal_(eps)
        begun["state"] = t.moved(begun["state"], steps.repeat(self.num, 1))
        # Away from the limit of a control: what lies beyond it is the limit.
        push = torch.where(ctrl + eps > self._high, -eps, eps).to(begun["state"])  # (N, nu)
        pushed = ctrl.to(push)[:, None].repeat(1, copies, 1)  # (N, copies, nu)
        pushed[:, 1 + t.size :] += torch.diag_embed(push)
        sim.load_state_dict(begun)
        failed = sim.step(pushed.flatten(0, 1), substeps).view(self.num, copies)
        ended = sim.state_dict()["state"].unflatten(0, (self.num, copies))
        derived = [self._field(name).reshape(self.num, copies, -1) for name in self.derived]
        columns = [t.difference(ended[:, 1:], ended[:, :1]), *(x[:, 1:] - x[:, :1] for x in derived)]
        moved = torch.cat((torch.full_like(ctrl[:, :1], eps).expand(-1, t.size), push.to(ctrl)), dim=1)
        transposed = (torch.cat(columns, dim=2) / moved[..., None]).float()
        known = ~failed.any(1) & transposed.isfinite().flatten(1).all(1)
        transposed = torch.where(known[:, None, None], transposed, 0.0)
        values = torch.cat([x[:, 0] for x in derived], dim=1) if derived else ended.new_zeros(self.num, 0)
        qpos, qvel = ended[:, 0, t.at : t.at + t.nq + t.nv].float().split((t.nq, t.nv), dim=1)
        return values.float(), qpos, qvel, transposed, known


class _Step(torch.autograd.Function):
    """(tangent, ctrl) -> (next tangent and derived fields, qpos, qvel, known); the gradients of the first are exact,
    positions and velocities have theirs through the tangent."""

    @staticmethod
    def forward(
        ctx: Any, tangent: Tensor, ctrl: Tensor, jacobian: StepJacobian, state: Mapping[str, Tensor], substeps: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        derived, qpos, qvel, transposed, known = jacobian.measure(state, ctrl, substeps)
        ctx.save_for_backward(transposed)
        ctx.size = tangent.shape[1]
        ctx.mark_non_differentiable(qpos, qvel, known)
        return torch.cat((torch.zeros_like(tangent), derived), dim=1), qpos, qvel, known

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (transposed,) = ctx.saved_tensors
        back = torch.bmm(transposed, gradients[0][..., None])[..., 0]  # (N, size + nu)
        return back[:, : ctx.size], back[:, ctx.size :], None, None, None
