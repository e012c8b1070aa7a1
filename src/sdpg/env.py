"""The N x K grid of worlds: nominal worlds (column 0), each with its M auxiliary branches (columns 1..M).

Ordinary reinforcement learning is K = 1. Nothing here names a task, an engine or an algorithm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sdpg.episodes import Episodes, of_all_ranks
from sdpg.errors import SdpgError
from sdpg.names import Names
from sdpg.render.stack import FrameStacks
from sdpg.rng import RowRng
from sdpg.sim.api import Simulator
from sdpg.tasks.base import Task
from sdpg.types import MOCAP, Counts, Ended, Memory, Obs, Physics, Step, Terms

MAX_VALUE = 1e5  # no part of a robot is 100 km away, turns 100,000 radians a second or earns that much in a step

StepListener = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor, Terms], None]
"""Told of every step: `column(0)` before it, action (N, K, A), controls (N, K, nu), failed (N, K), reward terms."""


class BranchedEnv:
    """Owns one simulator, one task, the task's memory and the clock; all tensors are (N, K, ...).

    The reset rules of the paper ("Rollout and update procedure"): `branch` copies every nominal to its auxiliaries;
    `restart` starts a finished nominal anew and branches its row again, and copies a finished auxiliary from its
    nominal as it is now.
    """

    def __init__(
        self,
        task: Task,
        sim: Simulator,
        num_nominal: int,
        seed: int = 0,
        first_row: int = 0,
        frame_stacks: FrameStacks | None = None,
        max_value: float = MAX_VALUE,
    ):
        self.task, self.sim, self.frame_stacks, self.seed = task, sim, frame_stacks, seed
        self.max_value = max_value  # a world with a larger number in its state, observation or reward has failed
        self.on_step: StepListener | None = None
        self.num_nominal, self.num_branches = num_nominal, sim.num_worlds // num_nominal  # N, K
        self.device = sim.device
        self._names = Names(sim.model, sim.device)
        self._worlds = torch.arange(sim.num_worlds, device=self.device).view(self.grid)  # (N, K) flat ids, only here
        rows = first_row + torch.arange(num_nominal, device=self.device)
        self.rows = rows  # (N,) global: what a row draws does not depend on how rows are spread over processes
        self._start_rng, self._step_rng = RowRng(seed, rows, stream=1), RowRng(seed, rows, stream=2)
        self._camera_rng = RowRng(seed, rows, stream=5)
        self._memory: Memory = {}  # nobody else holds these tensors: restarts write into them
        self._observed: dict[str, Tensor] | None = None  # what the task observed of now, until it is handed out
        self._known: dict[str, Tensor] = {}  # what `looks` has looked up since an episode began
        self._clock = torch.zeros(num_nominal, dtype=torch.int64, device=self.device)  # (N,) branches share it
        self._steps_since_branch = torch.zeros(self.grid, dtype=torch.int64, device=self.device)  # (N, K)
        self._episode_return = torch.zeros(num_nominal, device=self.device)  # (N,) of the running nominal episodes
        self.episodes = Episodes()  # the nominal ones that have finished
        self._forget_counts()
        # Since cameras last looked: whether steps were made, whether episodes began, and in which rows (N,).
        self._moved = self._begun = False
        self._new = torch.zeros(num_nominal, dtype=torch.bool, device=self.device)
        self._begin(torch.arange(num_nominal, device=self.device), None)

    @property
    def grid(self) -> tuple[int, int]:
        return self.num_nominal, self.num_branches

    @property
    def clock(self) -> Tensor:
        """(N,) control steps into the episode."""
        return self._clock

    @property
    def steps_since_branch(self) -> Tensor:
        """(N, K) control steps since a branch was last its nominal; 0 for the nominals themselves."""
        return self._steps_since_branch

    def step_rng(self) -> RowRng:
        """What the task draws from in the next step: a copy, to draw the same."""
        rng = RowRng(self.seed, self.rows, stream=self._step_rng.stream)
        rng.counter.copy_(self._step_rng.counter)
        return rng

    @property
    def memory(self) -> Memory:
        """What the task remembers: a copy, to look at."""
        return {name: values.clone() for name, values in self._memory.items()}

    def physics(self) -> Physics:
        """The simulator's live fields seen as (N, K, ...)."""
        fields = {name: x.view(*self.grid, *x.shape[1:]) for name, x in self.sim.fields.items()}
        return Physics(fields.pop("qpos"), fields.pop("qvel"), fields, self._names)

    def observe(self) -> Obs:
        """What can be seen now; calling it twice changes nothing."""
        x = self.physics()
        observed = self._observed or self.task.observe(x, self._memory)
        self._observed = None  # what is handed out is the caller's
        state = self._copy_if_live(observed["state"])
        sources = {
            name: state[:, 0] if name == "state" else self._copy_if_live(source[:, 0])
            for name, source in observed.items()
        }
        if self.frame_stacks is not None:
            if self._moved or self._begun:
                self.frame_stacks.look(
                    x.qpos[:, 0],
                    self._new,
                    self._moved,
                    self.looks(self.frame_stacks.renderer.varied),
                    self._camera_rng,
                )
                self._images += self.num_nominal * len(self.frame_stacks.cameras)
                self._moved, self._begun, self._new = False, False, torch.zeros_like(self._new)
            sources |= self.frame_stacks.frames()
        return Obs(state, sources)

    def looks(self, fields: Sequence[str]) -> dict[str, Tensor]:
        """The nominal worlds' own values of model fields, or of "mocap_pos" and "mocap_quat": (N, ...) each.

        They change only when an episode begins."""
        for name in fields:
            if name not in self._known:
                self._known[name] = self.sim.params(name, self._worlds[:, 0])
        return {name: self._known[name] for name in fields}

    def branch(self) -> None:
        """Column 0 -> columns 1..M, all rows."""
        self._observed = None
        self._branch(torch.arange(self.num_nominal, device=self.device))

    def step(self, action: Tensor, ctrl: Tensor | None = None) -> Step:
        """(N, K, A) in [-1, 1]. Rewards and terminations are of the state after the step and of the action.

        `ctrl` (N, K, nu): apply these controls instead of those that the task makes of the action.
        """
        task, memory = self.task, self._memory
        before = self.column(0) if self.on_step is not None else {}
        if ctrl is None:
            ctrl = task.control(self.physics(), memory, action)
        failed = self.sim.step(ctrl.flatten(0, 1), task.substeps).view(self.grid)
        self._clock += 1
        self.episodes.tick()
        self._steps_since_branch[:, 1:] += 1
        self._moved = True
        x = self.physics()
        terms = {name: self._copy_if_live(term) for name, term in task.reward(x, memory, action).items()}
        # One addition after the other: a reduction rounds some columns differently, and branches would not be equal.
        reward = functools.reduce(torch.add, terms.values())
        terminated = task.terminated(x, memory)
        self._memory = self._taken_over(task.advance(x, memory, action, self._step_rng), action)
        self._push(x)
        self._observed = observed = task.observe(x, self._memory)
        numbers = [
            torch.cat((x.qpos, x.qvel), dim=-1),
            *(source for source in observed.values() if source.is_floating_point()),
        ]
        # A maximum with NaN in it is NaN, which is not below any bound.
        failed = failed | ~(functools.reduce(torch.maximum, map(_largest, numbers), reward.abs()) <= self.max_value)
        if self.on_step is not None:
            self.on_step(before, action, ctrl, failed, terms)
        # Without a look at whether there are any: on a GPU it would be a wait.
        reward = torch.where(failed, 0.0, reward)
        state = torch.where(failed[..., None], 0.0, observed["state"])
        terminated = terminated | failed
        self._episode_return += reward[:, 0]
        self._count(reward, failed, terms)
        truncated = (self._clock >= task.episode_steps)[:, None].expand(self.grid)
        return Step(reward, terminated, truncated & ~terminated, failed, state, terms)

    def _push(self, x: Physics) -> None:
        """Change velocities in mid-episode, where the task says so; `x` is live and follows."""
        change = self.task.push(x, self._memory)
        if change is None:
            return
        if change.shape != x.qvel.shape:
            raise SdpgError(
                f"push() of {type(self.task).__name__} gave {tuple(change.shape)}; velocities are {tuple(x.qvel.shape)}"
            )
        row, branch = change.any(-1).nonzero().unbind(1)  # (n,) each
        if len(row):
            self.sim.add_velocity(self._worlds[row, branch], change[row, branch])

    def restart(self, step: Step) -> Tensor:
        """Restarts what ended. Returns (N, K) bool: the branches whose trajectory was cut here."""
        done = step.terminated | step.truncated
        row_done = done[:, 0]  # (N,) a finished nominal takes its whole row along
        copied = done & ~row_done[:, None]
        any_row, any_copied = torch.stack((row_done.any(), copied.any())).tolist()  # one wait for the device, not two
        if any_row or any_copied:
            self._observed = None
        if any_row:
            rows = row_done.nonzero()[:, 0]
            ended = self._finish(rows, step)
        if any_copied:
            row, branch = copied.nonzero().unbind(1)
            self.sim.copy(self._worlds[row, 0], self._worlds[row, branch])
            for values in self._memory.values():
                values[row, branch] = values[row, 0]
            self._steps_since_branch.masked_fill_(copied, 0)
        if any_row:
            self._begin(rows, ended)
        return done | row_done[:, None]

    def measures(self) -> Terms:
        """How the nominals' episodes have gone so far, as the task measures it: name -> (N,)."""
        return {name: values[:, 0] for name, values in self.task.measure(self.physics(), self._memory).items()}

    def take_counts(self) -> Counts:
        """What was counted since the last call."""
        failed = self._failed.tolist()  # by branch
        names, steps = self._terms[0], self._counted
        worlds = self.num_nominal * self.num_branches
        counts = Counts(
            steps=steps,
            world_steps=steps * worlds,
            images=self._images,
            reward=self._reward.item(),
            failed_nominal=failed[0],
            failed_auxiliary=sum(failed[1:]),
            sound=steps * self.num_nominal - failed[0],
            terms=dict(zip(names, self._terms[1].tolist(), strict=True)) if steps else {},
        )
        self._forget_counts()
        return counts

    def _forget_counts(self) -> None:
        self._counted = self._images = 0
        self._failed = torch.zeros(self.num_branches, dtype=torch.int64, device=self.device)  # (K,) world-steps
        self._reward = torch.zeros((), dtype=torch.float64, device=self.device)
        self._terms: tuple[tuple[str, ...], Tensor] = ((), torch.zeros((), dtype=torch.float64, device=self.device))

    def _count(self, reward: Tensor, failed: Tensor, terms: Terms) -> None:
        """(N, K) each. Nothing here waits for a device."""
        self._counted += 1
        self._failed += failed.sum(0)
        self._reward += reward[:, 0].sum(dtype=torch.float64)
        of_nominals = torch.stack([term[:, 0] for term in terms.values()])  # (terms, N)
        sums = torch.where(failed[:, 0], 0.0, of_nominals).sum(1, dtype=torch.float64)
        self._terms = tuple(terms), self._terms[1] + sums

    def column(self, branch: int) -> dict[str, Tensor]:
        """All that decides how the worlds of a column go on, given their actions: name -> (N, ...)."""
        mine = {"clock": self._clock.clone(), "step_rng": self._step_rng.counter.clone()}
        memory = {f"memory.{name}": values[:, branch].clone() for name, values in self._memory.items()}
        sim = self.sim.state_dict(self._worlds[:, branch])
        return mine | memory | {f"sim.{name}": values for name, values in sim.items()}

    def load_column(self, state: Mapping[str, Tensor]) -> None:
        """The inverse, into column 0, with every row branched."""

        def branched(values: Tensor) -> Tensor:  # (N, ...) -> (E, ...), a copy
            return values.to(self.device).repeat_interleave(self.num_branches, dim=0)

        self._clock.copy_(state["clock"])
        self._step_rng.counter.copy_(state["step_rng"])
        memory = {name: branched(state[f"memory.{name}"]).unflatten(0, self.grid) for name in self._memory}
        for name, values in memory.items():
            if values.shape != self._memory[name].shape:
                raise ValueError(f"memory '{name}' is {tuple(values.shape)}, not {tuple(self._memory[name].shape)}")
        self._memory = memory
        self.sim.load_state_dict({name: branched(values) for name, values in self._of_sim(state).items()})
        self._steps_since_branch.zero_()
        self._moved, self._observed, self._known = True, None, {}

    def failure_reason(self, row: int, branch: int) -> str:
        """What the engine said of a world in the last step; "" if nothing."""
        return self.sim.failure_reason(int(self._worlds[row, branch]))

    def state_dict(self) -> dict[str, Tensor]:
        """All that decides how the environment goes on from the next `branch`, and so the nominal worlds only.

        `join_rows` joins the states of several ranks."""
        mine = self.column(0) | {
            "episode_return": self._episode_return.clone(),
            "start_rng": self._start_rng.counter.clone(),
            **self.episodes.state_dict(),
        }
        if self.frame_stacks is not None:
            mine |= self.frame_stacks.state_dict()
            if self.frame_stacks.random:
                mine["camera_rng"] = self._camera_rng.counter.clone()
            mine |= {"seen": torch.tensor(not self._moved), "new": self._new.clone()}
        return mine

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse, with every row branched."""
        state = {_as_today(name): values for name, values in state.items()}
        self._episode_return.copy_(state["episode_return"])
        self._start_rng.counter.copy_(state["start_rng"])
        self.episodes.load_state_dict(state)
        self.load_column({name: self._of_nominals(name, values) for name, values in state.items()})
        if self.frame_stacks is not None:
            self.frame_stacks.load_state_dict(state)
            if self.frame_stacks.random:
                self._camera_rng.counter.copy_(state["camera_rng"])
            self._moved, self._new = not state["seen"], state["new"].to(self.device, copy=True)
            self._begun = bool(self._new.any())

    def _of_nominals(self, name: str, values: Tensor) -> Tensor:
        """A part of a state -> (N, ...) of the nominal worlds. Older checkpoints have all worlds: (E, ...), memory
        (N, K, ...)."""
        if name.startswith("sim."):
            return values.reshape(self.num_nominal, -1, *values.shape[1:])[:, 0]
        all_worlds = name.startswith("memory.") and values.dim() == self._memory[name.removeprefix("memory.")].dim()
        return values[:, 0] if all_worlds else values

    def _of_sim(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The engine's part. A state may come from a stranger's file: of the model, it changes what the task gives
        values to, and nothing else. With indices that lead anywhere, an engine in C would crash."""
        mine = {name.removeprefix("sim."): values for name, values in state.items() if name.startswith("sim.")}
        known = self.sim.state_dict(self._worlds[:1, 0]).keys() | {f"params.{name}" for name in self.task.params}
        if strange := sorted(mine.keys() - known):
            raise ValueError(f"the engine's state has '{strange[0]}', which is not the task's")
        return mine

    def _copy_if_live(self, tensor: Tensor) -> Tensor:
        """A copy if `tensor` is live physics or memory, which the next step or restart overwrites."""
        live = {_storage(values) for values in (*self.sim.fields.values(), *self._memory.values())}
        return tensor.clone() if _storage(tensor) in live else tensor

    def _taken_over(self, memory: Memory, action: Tensor) -> Memory:
        """What `advance` returned, as tensors that restarts may write into.

        It copies those that are live physics or the caller's action, that go by two names, or in which one number
        stands for several worlds."""
        others = {_storage(values) for values in (*self.sim.fields.values(), action)}
        mine = {}
        for name, values in memory.items():
            shared = _storage(values) in others or not values.is_contiguous()
            others.add(_storage(values))
            mine[name] = values.clone(memory_format=torch.contiguous_format) if shared else values
        return mine

    def _begin(self, rows: Tensor, ended: Ended | None) -> None:
        """Fresh episodes in `rows` (n,), every branch of them."""
        start = self.task.start(self._start_rng.select(rows), len(rows), ended)
        mocap = {name: poses for name in MOCAP if (poses := getattr(start, name)) is not None}
        for name, values in {"qpos": start.qpos, "qvel": start.qvel, **mocap, **start.params, **start.memory}.items():
            if values.shape[0] != len(rows):
                raise SdpgError(
                    f"start() of {type(self.task).__name__} drew '{name}' with leading size {values.shape[0]} "
                    f"for {len(rows)} rows; draw one value per row: branches share it"
                )
        nominal = self._worlds[rows, 0]
        self._require_known(start.params, mocap)
        if start.params:
            self.sim.set_params(nominal, start.params)
        self.sim.write(nominal, start.qpos, start.qvel, **mocap)
        self._known = {}
        if not self._memory:
            self._memory = {
                name: torch.zeros(*self.grid, *values.shape[1:], dtype=values.dtype, device=self.device)
                for name, values in start.memory.items()
            }
        for name, values in start.memory.items():
            self._memory[name][rows, 0] = values
        self._clock[rows] = 0
        self._begun, self._new[rows] = True, True
        self._episode_return[rows] = 0.0
        self._branch(rows)

    def _require_known(self, params: Mapping[str, Tensor], mocap: Mapping[str, Tensor]) -> None:
        task = type(self.task).__name__
        if unknown := sorted(set(params) - set(self.task.params)):
            raise SdpgError(f"start() of {task} gave params {unknown}; name them in the task's `params`")
        for name, poses in mocap.items():
            bodies = tuple(self.sim.params(name, self._worlds[:0, 0]).shape[1:])
            if tuple(poses.shape[1:]) != bodies:
                need = f"(n, {bodies[0]}, {bodies[1]})"
                raise SdpgError(
                    f"start() of {task} gave '{name}' {tuple(poses.shape)}; the scene's mocap bodies need {need}"
                )

    def _branch(self, rows: Tensor) -> None:
        self._steps_since_branch[rows] = 0
        if self.num_branches == 1:
            return
        dst = self._worlds[rows, 1:]  # (n, M)
        src = self._worlds[rows, :1].expand_as(dst)
        self.sim.copy(src.flatten(), dst.flatten())
        for values in self._memory.values():
            values[rows, 1:] = values[rows, :1]

    def _finish(self, rows: Tensor, step: Step) -> Ended:
        """Count the episodes of `rows` (n,), which ended by `step`."""
        failed, length = step.failed[rows, 0], self._clock[rows].clone()
        # The numbers of a world that failed mean nothing.
        measures = {name: torch.where(failed, torch.nan, values[rows]) for name, values in self.measures().items()}
        self.episodes.add(self.rows[rows], self._episode_return[rows], length, measures)
        memory = {name: values[rows, 0].clone() for name, values in self._memory.items()}
        return Ended(memory, length, step.terminated[rows, 0], failed)


def _as_today(name: str) -> str:
    """The name of a part of a state, as this version calls it."""
    return "sim.state" if name == "sim.rows" else f"frames.{name[5:]}" if name.startswith("eyes.") else name


def _alike(name: str) -> bool:
    """Whether a part of a state is the same on every rank; all others have an axis of rows."""
    return name == "seen" or of_all_ranks(name)


def join_rows(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """`state_dict`s of all ranks -> that of one process with all rows."""
    if len(states) == 1:
        return states[0]
    return {
        name: values if _alike(name) else torch.cat([state[name] for state in states])
        for name, values in states[0].items()
    }


def part_of_rows(state: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """The inverse: what a rank takes of it."""

    def part(values: Tensor) -> Tensor:
        return values[rank * len(values) // size : (rank + 1) * len(values) // size]

    return {name: values if _alike(name) else part(values) for name, values in state.items()}


def _largest(values: Tensor) -> Tensor:
    """(N, K, ...) -> (N, K): the largest absolute number of a world, NaN if there is one."""
    return values.reshape(*values.shape[:2], -1).abs().amax(-1)


def _storage(values: Tensor) -> int:
    """The same number for all tensors that share memory."""
    return values.untyped_storage().data_ptr()
