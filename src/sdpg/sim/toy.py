"""A linear system in plain torch, whose gradients are known: what estimators are tested against.

    s' = A s + B u        r = -(s'^T Q s' + u^T R u)        u = gain * action, or gain * atanh(action)

With `inverse=True` the task undoes the policy's tanh, so that the return is a quadratic function of the pre-activation.
Gaussian smoothing adds only a constant to a quadratic: its smoothed gradient is its gradient, whatever the noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import torch
from torch import Tensor

from sdpg.rng import RowRng
from sdpg.tasks.base import Task
from sdpg.types import Ended, Memory, Physics, Start, Terms


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """(E, n, m), (E, m) -> (E, n), one column after the other: a world's sum does not depend on its neighbours."""
    out = torch.zeros(vector.shape[0], matrix.shape[1], dtype=vector.dtype)
    for j in range(vector.shape[1]):
        out = out + matrix[:, :, j] * vector[:, j, None]
    return out


class ToySim:
    """See `sim.api.Simulator` for what each method promises. qpos is the state, qvel has size 0.

    Its model parameters are "A" (n, n) and "B" (n, m), one pair per world.
    """

    device = torch.device("cpu")
    threads = 1
    qpos_at = 0

    def __init__(self, a: Tensor, b: Tensor, num_worlds: int, dtype: torch.dtype = torch.float32):
        self.num_worlds = num_worlds
        self.model = mujoco.MjSpec().compile()  # without parts: this system has no scene
        self.nq, self.nv, self.nu = b.shape[0], 0, b.shape[1]
        self._params = {
            "A": a.double().expand(num_worlds, -1, -1).clone(),  # (E, n, n)
            "B": b.double().expand(num_worlds, -1, -1).clone(),  # (E, n, m)
        }
        self._states = torch.zeros(num_worlds, self.nq, dtype=torch.float64)  # (E, n)
        self._fields = {name: torch.zeros(num_worlds, n, dtype=dtype) for name, n in (("qpos", self.nq), ("qvel", 0))}

    @property
    def fields(self) -> Mapping[str, Tensor]:
        return self._fields

    def step(self, ctrl: Tensor, substeps: int) -> Tensor:
        push = _apply(self._params["B"], ctrl.double())  # (E, n)
        for _ in range(substeps):
            self._states = _apply(self._params["A"], self._states) + push
        self._refresh()
        return ~torch.isfinite(self._states).all(-1)

    def write(
        self,
        worlds: Tensor,
        qpos: Tensor,
        qvel: Tensor,
        mocap_pos: Tensor | None = None,
        mocap_quat: Tensor | None = None,
    ) -> None:
        self._states[worlds] = qpos.double()
        self._refresh()

    def add_velocity(self, worlds: Tensor, change: Tensor) -> None:
        """There is none to change."""

    def copy(self, src: Tensor, dst: Tensor) -> None:
        self._states[dst] = self._states[src]
        for values in self._params.values():
            values[dst] = values[src]
        self._refresh()

    def set_params(self, worlds: Tensor, params: Mapping[str, Tensor]) -> None:
        for name, values in params.items():
            self._params[name][worlds] = values.double()

    def params(self, field: str, worlds: Tensor | None = None) -> Tensor:
        return self._params[field].clone() if worlds is None else self._params[field][worlds]

    def failure_reason(self, world: int) -> str:
        return "" if torch.isfinite(self._states[world]).all() else "the state is not finite"

    def state_dict(self, worlds: Tensor | None = None) -> dict[str, Tensor]:
        ids = torch.arange(self.num_worlds) if worlds is None else worlds
        return {"state": self._states[ids]} | {name: values[ids] for name, values in self._params.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._states.copy_(state["state"])
        for name, values in self._params.items():
            values.copy_(state[name])
        self._refresh()

    def another(self, num_worlds: int) -> ToySim:
        return ToySim(self._params["A"][0], self._params["B"][0], num_worlds, torch.float64)

    def _refresh(self) -> None:
        self._fields["qpos"].copy_(self._states)


class ToyTask(Task):
    """Keep the state of a linear system small with little control. By default a damped double integrator."""

    substeps = 1

    def __init__(
        self,
        a: Tensor | None = None,  # (n, n)
        b: Tensor | None = None,  # (n, m)
        gain: float = 1.0,
        control_cost: float = 0.1,
        inverse: bool = False,  # undo the policy's tanh: the pre-activation is the control
        limit: float = float("inf"),  # a state with a larger number is terminal
        start_std: float = 1.0,
        episode_steps: int = 1000,
    ):
        super().__init__()
        self.a = torch.tensor([[1.0, 0.1], [0.0, 0.95]]) if a is None else a
        self.b = torch.tensor([[0.0], [0.1]]) if b is None else b
        self.state_size, self.action_size = self.b.shape  # type: ignore[misc]  # one class, systems of any size
        self.gain, self.control_cost, self.inverse = gain, control_cost, inverse
        self.limit, self.start_std = limit, start_std
        self.episode_steps = episode_steps  # type: ignore[misc]

    def sim(self, num_worlds: int) -> ToySim:
        return ToySim(self.a, self.b, num_worlds)

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec()  # nothing to see: `sim` gives its own physics

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        return Start(qpos=self.start_std * rng.normal(self.state_size), qvel=torch.zeros(n, 0))

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return self.gain * (torch.atanh(action) if self.inverse else action)

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        effort = self.control(x, memory, action).square().sum(-1)
        return {"state": -x.qpos.square().sum(-1), "effort": -self.control_cost * effort}

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return (x.qpos.abs() > self.limit).any(-1)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return {"state": x.qpos.clone()}


def toy_returns(task: ToyTask, start: Tensor, pre: Tensor, gamma: float) -> Tensor:
    """Discounted return-to-go J_t (T, N) from `start` (N, n) under pre-activations (T, N, A); differentiable."""
    state, rewards = start, []
    for u in task.gain * (pre if task.inverse else torch.tanh(pre)):
        state = state @ task.a.to(state).T + u @ task.b.to(state).T
        rewards.append(-state.square().sum(-1) - task.control_cost * u.square().sum(-1))
    to_go, following = [], torch.zeros_like(rewards[0])
    for reward in reversed(rewards):
        following = reward + gamma * following
        to_go.append(following)
    return torch.stack(to_go[::-1])


def toy_gradient(task: ToyTask, start: Tensor, pre: Tensor, gamma: float) -> Tensor:
    """dJ_t / d pre_t (T, N, A) in closed form: the adjoint of the linear system, and the chain rule through tanh.

        q_t = -2 s_{t+1} + gamma A^T q_{t+1}        dJ_t/du_t = -2 rho u_t + B^T q_t        (q_T = 0, rho: control cost)

    The gradient of the whole segment's discounted return is gamma^t times this: earlier rewards do not see u_t.
    """
    control = task.gain * (pre if task.inverse else torch.tanh(pre))  # (T, N, A)
    slope = task.gain * (torch.ones_like(pre) if task.inverse else 1.0 - torch.tanh(pre).square())  # du / d pre
    a, b = task.a.to(start), task.b.to(start)
    states = [start]
    for u in control:
        states.append(states[-1] @ a.T + u @ b.T)
    adjoint, gradient = torch.zeros_like(start), torch.empty_like(pre)
    for t in reversed(range(len(pre))):
        adjoint = -2.0 * states[t + 1] + gamma * adjoint @ a  # rows: A^T q is q @ A
        gradient[t] = (-2.0 * task.control_cost * control[t] + adjoint @ b) * slope[t]
    return gradient
