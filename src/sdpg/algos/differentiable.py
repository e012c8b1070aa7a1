"""The nominal worlds of an environment as a differentiable function of the actions.

The environment steps, restarts and counts as it always does, without gradients. Beside it runs a graph: positions,
velocities and derived fields by the Jacobian of the control step, and the task's own functions of them, control,
reward, memory and observation, which autograd sees through because they are pure.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sdpg.env import BranchedEnv
from sdpg.sim.jacobian import StepJacobian
from sdpg.types import Memory, Physics, Step


class DifferentiableWorlds:
    """Graphs begin anew with every segment, and in a row with every episode. `perturbed` counts control steps of
    the copies that Jacobians are measured with, `unknown` steps whose Jacobian was not known and counts as 0."""

    def __init__(self, env: BranchedEnv):
        self.env, self.jacobian = env, StepJacobian(env.sim)
        self.begin()

    def begin(self) -> None:
        """A segment begins: nothing depends on what was done before."""
        env = self.env
        self.perturbed = self.unknown = 0
        self._fields = {name: values.clone() for name, values in env.sim.fields.items()}  # (N, ...)
        self._memory: Memory = env.memory
        self._tangent = torch.zeros(env.num_nominal, self.jacobian.tangent.size, device=env.device)

    def _physics(self) -> Physics:
        fields = {name: values[:, None] for name, values in self._fields.items()}  # (N, 1, ...)
        return Physics(fields.pop("qpos"), fields.pop("qvel"), fields, self.env.physics().names)

    def observe(self) -> dict[str, Tensor]:
        """What the task observes, by source: (N, ...)."""
        return {name: values[:, 0] for name, values in self.env.task.observe(self._physics(), self._memory).items()}

    def step(self, action: Tensor) -> tuple[Step, Tensor, Tensor]:
        """(N, A) in [-1, 1] -> the step as the environment sees it; its reward (N,) and the state (N, D) after it as
        functions of this and earlier actions."""
        env, task, memory, acted = self.env, self.env.task, self._memory, action[:, None]
        ctrl = task.control(self._physics(), memory, acted)
        before, rng = env.sim.state_dict(), env.step_rng()
        step = env.step(acted.detach(), ctrl.detach())
        tangent, fields, known = self.jacobian.step(before, self._tangent, ctrl[:, 0], task.substeps)
        self.perturbed += len(known) * self.jacobian.copies
        failed = step.failed[:, 0]
        self.unknown += int((~known & ~failed).sum())
        # A world that failed has numbers that no gradient survives, and is left out: those of the step before will do.
        self._fields = {
            name: torch.where(_along(failed, now), self._fields[name].detach(), now) for name, now in fields.items()
        }
        self._tangent = torch.where(failed[:, None], 0.0, tangent)
        x = self._physics()
        reward = functools.reduce(torch.add, task.reward(x, memory, acted).values())[:, 0]
        self._memory = task.advance(x, memory, acted, rng)
        if task.push(x, self._memory) is not None:  # to the gradient a push is a constant
            live = env.sim.fields
            self._fields = {
                name: now + torch.where(_along(failed, now), 0.0, (live[name] - now).detach())
                for name, now in self._fields.items()
            }
            x = self._physics()
        state = task.observe(x, self._memory)["state"][:, 0]
        return step, torch.where(failed, 0.0, reward), torch.where(failed[:, None], 0.0, state)

    def restart(self, step: Step) -> Tensor:
        """Restarts what ended, (N,) bool: new episodes do not depend on old actions."""
        done = self.env.restart(step)[:, 0]
        if done.any():
            now, memory = self.env.sim.fields, self.env.memory
            self._fields = {name: torch.where(_along(done, old), now[name], old) for name, old in self._fields.items()}
            self._memory = {
                name: torch.where(_along(done, old), memory[name], old) for name, old in self._memory.items()
            }
            self._tangent = torch.where(done[:, None], 0.0, self._tangent)
        return done


def _along(rows: Tensor, values: Tensor) -> Tensor:
    """(N,) as (N, 1, ...), to choose among `values` (N, ...)."""
    return rows.view(-1, *(1,) * (values.dim() - 1))
