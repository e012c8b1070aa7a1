"""The N x K grid of worlds: nominal worlds (column 0), each with its M auxiliary branches (columns 1..M).

Ordinary reinforcement learning is K = 1. Nothing here names a task, an engine or an algorithm.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sdpg.distributed import Group
from sdpg.errors import SdpgError
from sdpg.names import Names
from sdpg.render.stack import Eyes
from sdpg.rng import RowRng
from sdpg.sim.api import Simulator
from sdpg.tasks.base import Task
from sdpg.types import MOCAP, Memory, Obs, Physics, Step

WINDOW = 100  # finished nominal episodes that the running averages look back on
MAX_VALUE = 1e5  # no part of a robot is 100 km away, turns 100,000 radians a second or earns that much in a step

Watch = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], None]
"""Told of every step: `column(0)` before it, action (N, K, A), controls (N, K, nu), failed (N, K)."""


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
        eyes: Eyes | None = None,
        max_value: float = MAX_VALUE,
    ):
        self.task, self.sim, self.eyes, self.seed = task, sim, eyes, seed
        self.max_value = max_value  # a world with a larger number in its state, observation or reward has failed
        self.watch: Watch | None = None
        self.num_nominal, self.num_branches = num_nominal, sim.num_worlds // num_nominal  # N, K
        self.device = sim.device
        self._names = Names(sim.model, sim.device)
        self._worlds = torch.arange(sim.num_worlds, device=self.device).view(self.grid)  # (N, K) flat ids, only here
        rows = first_row + torch.arange(num_nominal, device=self.device)
        self.rows = rows  # (N,) global: what a row draws does not depend on how rows are spread over processes
        self._start_rng, self._step_rng = RowRng(seed, rows, stream=1), RowRng(seed, rows, stream=2)
        self._memory: Memory = {}  # nobody else holds these tensors: restarts write into them
        self._views: dict[str, Tensor] | None = None  # what the task shows of now, until it is handed out
        self._known: dict[str, Tensor] = {}  # what `looks` has looked up since an episode began
        self._clock = torch.zeros(num_nominal, dtype=torch.int64, device=self.device)  # (N,) branches share it
        self._apart = torch.zeros(self.grid, dtype=torch.int64, device=self.device)  # (N, K)
        self._episode_return = torch.zeros(num_nominal, device=self.device)  # (N,) of the running nominal episodes
        self._finished: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # return, length; of all ranks
        self._episodes = 0  # nominal episodes that went through `_finished`
        # What the other ranks have not heard of: step, row, return, length; how many, and steps since they last heard.
        self._news: deque[tuple[int, int, float, int]] = deque(maxlen=WINDOW)
        self._unshared = self._steps = 0
        # Since the eyes last looked: whether steps were made, whether episodes began, and in which rows (N,).
        self._moved = self._begun = False
        self._new = torch.zeros(num_nominal, dtype=torch.bool, device=self.device)
        self._begin(torch.arange(num_nominal, device=self.device))

    @property
    def grid(self) -> tuple[int, int]:
        return self.num_nominal, self.num_branches

    @property
    def clock(self) -> Tensor:
        """(N,) control steps into the episode."""
        return self._clock

    @property
    def apart(self) -> Tensor:
        """(N, K) control steps since a branch was last its nominal; 0 for the nominals themselves."""
        return self._apart

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
        views = self._views or self.task.observe(x, self._memory)
        self._views = None  # what is handed out is the caller's
        state = self._own(views["state"])
        sources = {name: state[:, 0] if name == "state" else self._own(view[:, 0]) for name, view in views.items()}
        if self.eyes is not None:
            if self._moved or self._begun:
                self.eyes.look(x.qpos[:, 0], self._new, self._moved, self.looks(self.eyes.renderer.varied))
                self._moved, self._begun, self._new = False, False, torch.zeros_like(self._new)
            sources |= self.eyes.frames()
        return Obs(state, sources)

    def looks(self, fields: Sequence[str]) -> dict[str, Tensor]:
        """What the nominal worlds have of their own of model fields, or of "mocap_pos" and "mocap_quat": (N, ...) each.
        It changes when an episode begins and at no other time."""
        for name in fields:
            if name not in self._known:
                self._known[name] = self.sim.params(name, self._worlds[:, 0])
        return {name: self._known[name] for name in fields}

    def branch(self) -> None:
        """Column 0 -> columns 1..M, all rows."""
        self._views = None
        self._branch(torch.arange(self.num_nominal, device=self.device))

    def step(self, action: Tensor, ctrl: Tensor | None = None) -> Step:
        """(N, K, A) in [-1, 1]. Rewards and terminations are of the state after the step and of the action.

        `ctrl` (N, K, nu): apply these controls, and not what the task makes of the action.
        """
        task, memory = self.task, self._memory
        before = self.column(0) if self.watch is not None else {}
        if ctrl is None:
            ctrl = task.control(self.physics(), memory, action)
        failed = self.sim.step(ctrl.flatten(0, 1), task.substeps).view(self.grid)
        self._clock += 1
        self._steps += 1
        self._apart[:, 1:] += 1
        self._moved = True
        x = self.physics()
        self.terms = {name: self._own(term) for name, term in task.reward(x, memory, action).items()}  # for the logs
        # One addition after the other: a reduction rounds some columns differently, and branches would not be equal.
        reward = functools.reduce(torch.add, self.terms.values())
        terminated = task.terminated(x, memory)
        self._memory = self._taken_over(task.advance(x, memory, action, self._step_rng), action)
        self._views = views = task.observe(x, self._memory)
        numbers = [torch.cat((x.qpos, x.qvel), dim=-1), *(view for view in views.values() if view.is_floating_point())]
        # A maximum with NaN in it is NaN, which is not below any bound.
        failed = failed | ~(functools.reduce(torch.maximum, map(_largest, numbers), reward.abs()) <= self.max_value)
        if self.watch is not None:
            self.watch(before, action, ctrl, failed)
        # Without a look at whether there are any: on a GPU it would be a wait.
        reward = torch.where(failed, 0.0, reward)
        state = torch.where(failed[..., None], 0.0, views["state"])
        terminated = terminated | failed
        self._episode_return += reward[:, 0]
        truncated = (self._clock >= task.episode_steps)[:, None].expand(self.grid)
        return Step(reward, terminated, truncated & ~terminated, failed, state)

    def restart(self, step: Step) -> Tensor:
        """Mend what ended. (N, K) bool: the branches whose trajectory was cut here."""
        done = step.terminated | step.truncated
        row_done = done[:, 0]  # (N,) a finished nominal takes its whole row along
        copied = done & ~row_done[:, None]
        any_row, any_copied = torch.stack((row_done.any(), copied.any())).tolist()  # one wait for the device, not two
        if any_row or any_copied:
            self._views = None
        if any_copied:
            row, branch = copied.nonzero().unbind(1)
            self.sim.copy(self._worlds[row, 0], self._worlds[row, branch])
            for values in self._memory.values():
                values[row, branch] = values[row, 0]
            self._apart.masked_fill_(copied, 0)
        if any_row:
            rows = row_done.nonzero()[:, 0]
            self._finish(rows)
            self._begin(rows)
        return done | row_done[:, None]

    def mean_episode(self) -> tuple[float, float]:
        """Mean return and length of the last finished nominal episodes; NaN before the first."""
        finished = self._last_episodes()
        if not finished:
            return float("nan"), float("nan")
        returns, lengths = zip(*finished, strict=True)
        return sum(returns) / len(returns), sum(lengths) / len(lengths)

    @property
    def episodes(self) -> int:
        """Nominal episodes finished so far."""
        return self._episodes + self._unshared

    def share_episodes(self, group: Group) -> None:
        """Tell the other ranks of the episodes that finished since the last call, and hear of theirs. From here on
        every rank averages over all of them, in the order in which one process would have seen them."""
        every = group.everyones((list(self._news), self._unshared))
        news = sorted(episode for theirs, _ in every for episode in theirs)
        self._finished.extend((total, length) for _, _, total, length in news)
        self._episodes += sum(count for _, count in every)
        self._forget_news()

    def _forget_news(self) -> None:
        self._news.clear()
        self._unshared = self._steps = 0

    def _last_episodes(self) -> list[tuple[float, int]]:
        mine = ((total, length) for _, _, total, length in self._news)
        return [*self._finished, *mine][-WINDOW:]

    def column(self, branch: int) -> dict[str, Tensor]:
        """What decides how the worlds of a column go on, given their actions: name -> (N, ...)."""
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
        self._apart.zero_()
        self._moved, self._views, self._known = True, None, {}

    def complaint(self, row: int, branch: int) -> str:
        """What the engine said of a world in the last step; "" if nothing."""
        return self.sim.complaint(int(self._worlds[row, branch]))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that decides how the environment goes on from the next `branch`, and so the nominal worlds only;
        `join_rows` puts those of several ranks together."""
        mine = self.column(0) | {
            "episode_return": self._episode_return.clone(),
            "start_rng": self._start_rng.counter.clone(),
            "finished": torch.tensor(self._last_episodes(), dtype=torch.float64).view(-1, 2),
            "episodes": torch.tensor(self.episodes),
        }
        if self.eyes is not None:
            mine |= {f"eyes.{name}": values for name, values in self.eyes.frames().items()}
            mine |= {"seen": torch.tensor(not self._moved), "new": self._new.clone()}
        return mine

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse, with every row branched."""
        self._episode_return.copy_(state["episode_return"])
        self._start_rng.counter.copy_(state["start_rng"])
        self._finished = deque(((float(r), int(n)) for r, n in state["finished"].tolist()), maxlen=WINDOW)
        self._episodes = int(state["episodes"])
        self._forget_news()
        self.load_column({name: self._of_nominals(name, values) for name, values in state.items()})
        if self.eyes is not None:
            self.eyes.load({name: state[f"eyes.{name}"] for name in self.eyes.frames()})
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

    def _own(self, view: Tensor) -> Tensor:
        """A copy if `view` is live physics or memory, which the next step or restart overwrites."""
        live = {_storage(values) for values in (*self.sim.fields.values(), *self._memory.values())}
        return view.clone() if _storage(view) in live else view

    def _taken_over(self, memory: Memory, action: Tensor) -> Memory:
        """What `advance` returned, as tensors that restarts may write into: copies of those that are live physics or
        the caller's action, that go by two names, or in which one number stands for several worlds."""
        others = {_storage(values) for values in (*self.sim.fields.values(), action)}
        mine = {}
        for name, values in memory.items():
            shared = _storage(values) in others or not values.is_contiguous()
            others.add(_storage(values))
            mine[name] = values.clone(memory_format=torch.contiguous_format) if shared else values
        return mine

    def _begin(self, rows: Tensor) -> None:
        """Fresh episodes in `rows` (n,), every branch of them."""
        start = self.task.start(self._start_rng.select(rows), len(rows))
        mocap = {name: poses for name in MOCAP if (poses := getattr(start, name)) is not None}
        for name, values in {"qpos": start.qpos, "qvel": start.qvel, **mocap, **start.params, **start.memory}.items():
            if values.shape[0] != len(rows):
                raise SdpgError(
                    f"start() of {type(self.task).__name__} drew '{name}' with leading size {values.shape[0]} "
                    f"for {len(rows)} rows; draw one value per row: branches share it"
                )
        nominal = self._worlds[rows, 0]
        self._refuse_unknown(start.params, mocap)
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

    def _refuse_unknown(self, params: Mapping[str, Tensor], mocap: Mapping[str, Tensor]) -> None:
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
        self._apart[rows] = 0
        if self.num_branches == 1:
            return
        dst = self._worlds[rows, 1:]  # (n, M)
        src = self._worlds[rows, :1].expand_as(dst)
        self.sim.copy(src.flatten(), dst.flatten())
        for values in self._memory.values():
            values[rows, 1:] = values[rows, :1]

    def _finish(self, rows: Tensor) -> None:
        ended = torch.stack((self.rows[rows].double(), self._episode_return[rows].double(), self._clock[rows].double()))
        for row, total, length in zip(*ended.tolist(), strict=True):
            self._news.append((self._steps, int(row), total, int(length)))
        self._unshared += len(rows)


_OF_ALL = ("finished", "episodes", "seen")  # in a state: alike on every rank; all else has an axis of rows


def join_rows(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """`state_dict`s of all ranks -> that of one process with all rows."""
    if len(states) == 1:
        return states[0]
    return {
        name: values if name in _OF_ALL else torch.cat([state[name] for state in states])
        for name, values in states[0].items()
    }


def part_of_rows(state: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """The inverse: what a rank takes of it."""

    def part(values: Tensor) -> Tensor:
        return values[rank * len(values) // size : (rank + 1) * len(values) // size]

    return {name: values if name in _OF_ALL else part(values) for name, values in state.items()}


def _largest(values: Tensor) -> Tensor:
    """(N, K, ...) -> (N, K): the largest absolute number of a world, NaN if there is one."""
    return values.reshape(*values.shape[:2], -1).abs().amax(-1)


def _storage(values: Tensor) -> int:
    """The same number for all tensors that share memory."""
    return values.untyped_storage().data_ptr()
