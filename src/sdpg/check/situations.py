"""Situations that a task is asked about, apart from any environment or in a small one: what `sdpg check` works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sdpg.env import BranchedEnv
from sdpg.rng import RowRng
from sdpg.tasks.base import Task
from sdpg.types import Memory, Physics, Step

ROWS, AUXILIARIES, STEPS = 4, 2, 64
EnvFactory = Callable[..., BranchedEnv]  # (task, num_nominal, num_auxiliary, seed) -> environment


@dataclass(frozen=True)
class Situation:
    """Arguments of a task's functions, apart from any environment."""

    x: Physics
    memory: Memory
    action: Tensor  # (N, K, A)
    rows: Tensor  # (N,)

    def select(self, rows: Tensor, branches: Tensor) -> Situation:
        """The same of some rows (n,) and branches (k,)."""

        def part(values: Tensor) -> Tensor:
            return values[rows][:, branches]

        derived = {name: part(value) for name, value in self.x.derived.items()}
        x = replace(self.x, qpos=part(self.x.qpos), qvel=part(self.x.qvel), derived=derived)
        memory = {name: part(value) for name, value in self.memory.items()}
        return Situation(x, memory, part(self.action), self.rows[rows])


def situation(env: BranchedEnv, action: Tensor) -> Situation:
    """Of an environment's present state, as copies."""
    x, grid = env.physics(), (torch.arange(env.num_nominal), torch.arange(env.num_branches))
    return Situation(x, env.memory, action, env.rows).select(*grid)


def two_situations(task: Task, env_factory: EnvFactory) -> tuple[Situation, Situation]:
    """Two different situations."""
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    found = []
    for t in range(2):
        env.step(actions(task, env, t))
        found.append(situation(env, actions(task, env, t)))
    return found[0], found[1]


def visited(task: Task, env_factory: EnvFactory) -> Iterator[Situation]:
    """The situations of STEPS steps, in which no two worlds are alike."""
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS):
        action = actions(task, env, t)
        step = env.step(action)
        yield situation(env, action)
        env.restart(step)


def answers_to(task: Task, s: Situation) -> dict[str, Tensor]:
    """All that a task says of a situation, by what it is called: (N, K, ...)."""
    rng = RowRng(0, s.rows)
    memory = task.advance(s.x, s.memory, s.action, rng)
    return {
        "what control() gives": task.control(s.x, s.memory, s.action),
        **{f"the reward term '{name}'": term for name, term in task.reward(s.x, s.memory, s.action).items()},
        "the termination": task.terminated(s.x, s.memory),
        **{f"the memory '{name}'": value for name, value in memory.items()},
        "how much advance() draws": rng.counter,  # (N,)
        **_push(task, s),
        **{f"the observation '{name}'": source for name, source in task.observe(s.x, s.memory).items()},
    }


def calls(task: Task) -> list[tuple[str, Callable[[Situation], Any]]]:
    """The functions that must be pure, in the order in which a step calls them."""
    return [
        ("control", lambda s: task.control(s.x, s.memory, s.action)),
        ("reward", lambda s: task.reward(s.x, s.memory, s.action)),
        ("terminated", lambda s: task.terminated(s.x, s.memory)),
        ("advance", lambda s: task.advance(s.x, s.memory, s.action, RowRng(0, torch.arange(ROWS)))),
        ("push", lambda s: _push(task, s)),
        ("observe", lambda s: task.observe(s.x, s.memory)),
    ]


def _push(task: Task, s: Situation) -> dict[str, Tensor]:
    change = task.push(s.x, s.memory)
    return {} if change is None else {"what push() gives": change}


def arguments(s: Situation) -> dict[str, Tensor]:
    memory = {f"memory['{name}']": value for name, value in s.memory.items()}
    derived = {f"x['{name}']": value for name, value in s.x.derived.items()}
    return {"x.qpos": s.x.qpos, "x.qvel": s.x.qvel, "action": s.action} | derived | memory


def rollout(task: Task, env_factory: EnvFactory, auxiliary_seed: int) -> Iterator[Step]:
    """STEPS steps; the nominal's actions do not depend on `auxiliary_seed`, the auxiliaries' do."""
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS):
        action = actions(task, env, t)
        action[:, 1:] = actions(task, env, t + 1000 * (1 + auxiliary_seed))[:, 1:]
        step = env.step(action)
        yield step
        env.restart(step)


def actions(task: Task, env: BranchedEnv, t: int) -> Tensor:
    """(N, K, A) uniform in [-1, 1], the same for the same t."""
    generator = torch.Generator().manual_seed(t)
    return torch.rand(*env.grid, task.action_size, generator=generator).mul_(2.0).sub_(1.0).to(env.device)
