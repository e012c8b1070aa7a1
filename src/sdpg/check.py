"""`sdpg check TASK`: does a task keep the promises of `tasks.base.Task`?

Every check has a name and, where it fails, one plain sentence. The first three look at declarations and shapes, without
which nothing else can run; the others run the task in a small branched environment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.rng import RowRng
from sdpg.tasks.base import Task
from sdpg.types import Memory, Physics, Start, Step

ROWS, AUXILIARIES, STEPS = 4, 2, 64
EnvFactory = Callable[..., BranchedEnv]  # (task, num_nominal, num_auxiliary, seed) -> environment


@dataclass(frozen=True)
class Finding:
    name: str
    problem: str | None = None  # one sentence; None: the check passed

    @property
    def passed(self) -> bool:
        return self.problem is None


class _Problem(Exception):
    """A check failed; the message is the sentence."""


def check_task(task: Task, env_factory: EnvFactory = make_env) -> list[Finding]:
    """One finding per check, in order; it ends at a failed declaration, since the rest could not run."""
    findings = []
    for name, check, essential in CHECKS:
        finding = Finding(name)
        try:
            check(task, env_factory)
        except _Problem as problem:
            finding = Finding(name, str(problem))
        except Exception as error:  # a task under test may raise anything
            text = " ".join(str(error).split())
            finding = Finding(name, f"{type(task).__name__} raised {type(error).__name__}: {text}.")
        findings.append(finding)
        if essential and not finding.passed:
            break
    return findings


# Declarations and shapes


def _check_scene(task: Task, _: EnvFactory) -> None:
    for name in ("action_size", "state_size"):
        size = getattr(task, name, None)
        if not isinstance(size, int) or size < 1:
            _fail(f"{name} is {size}; it must be a positive whole number.")
    scene = task.scene()
    if not isinstance(scene, mujoco.MjSpec):
        _fail(f"scene() returned {type(scene).__name__}; return a mujoco.MjSpec.")
    try:
        model = scene.compile()
    except Exception as error:  # the compiler's own exception types vary
        _fail(f"the scene does not compile: {' '.join(str(error).split())}.")
    cameras = [model.camera(i).name for i in range(model.ncam)]
    for camera in (task.camera, *(source.name for source in task.cameras.values())):
        if camera not in cameras:
            _fail(f"the camera '{camera}' is not in the scene; it has {', '.join(cameras) or 'none'}.")
    data = mujoco.MjData(model)
    for name in task.reads:
        if not isinstance(getattr(data, name, None), np.ndarray):
            _fail(f"reads names '{name}', which is not a field of MjData.")
    for name in task.params:
        if not isinstance(getattr(model, name, None), np.ndarray):
            _fail(f"params names '{name}', which is not a field of MjModel.")


def _check_start(task: Task, _: EnvFactory) -> None:
    model = task.scene().compile()
    everyone = task.start(RowRng(0, torch.arange(ROWS), stream=1), ROWS)
    if not isinstance(everyone, Start):
        _fail(f"start() returned {type(everyone).__name__}; return a Start.")
    values = _start_values(everyone)
    for name, size in (("qpos", model.nq), ("qvel", model.nv)):
        _expect(f"start() gave {name}", values[name], (ROWS, size), torch.float32)
        if not torch.isfinite(values[name]).all():
            _fail(f"start() gave {name} that is not finite.")
    for name, value in values.items():
        if value.dim() == 0 or value.shape[0] != ROWS:
            _fail(f"start() gave '{name}' with shape {tuple(value.shape)} for {ROWS} rows; give one value per row.")
    if set(everyone.params) != set(task.params):
        _fail(f"start() gave params {sorted(everyone.params)} but the task declares {sorted(task.params)}.")
    # Row 2 asked alone must be row 2 asked among others.
    alone = _start_values(task.start(RowRng(0, torch.arange(ROWS), stream=1).select(torch.tensor([2])), 1))
    for name, value in alone.items():
        if not torch.equal(value[0], values[name][2]):
            _fail(f"start() is not drawn per row: '{name}' of a row depends on the other rows or on unseeded numbers.")


def _check_shapes(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    x, memory, grid = env.physics(), env.memory, env.grid
    action = _actions(task, env, 0)
    _expect("control() gave controls", task.control(x, memory, action), (*grid, env.sim.nu), torch.float32)
    terms = task.reward(x, memory, action)
    if not isinstance(terms, dict) or not terms:
        _fail("reward() must return a dict with at least one named term.")
    for name, term in terms.items():
        _expect(f"reward() gave the term '{name}'", term, grid, torch.float32)
    _expect("terminated() gave its answer", task.terminated(x, memory), grid, torch.bool)
    views = task.observe(x, memory)
    if not isinstance(views, dict) or "state" not in views:
        _fail("observe() must return a dict with 'state'.")
    _expect("observe() gave 'state'", views["state"], (*grid, task.state_size), torch.float32)
    for name, view in views.items():
        if tuple(view.shape[:2]) != grid:
            _fail(f"observe() gave '{name}' with shape {tuple(view.shape)}; its first axes must be (N, K) = {grid}.")
    after = task.advance(x, memory, action, RowRng(0, env.rows))
    if set(after) != set(memory):
        _fail(f"advance() returned the memory {sorted(after)} but start() began with {sorted(memory)}.")
    for name, value in after.items():
        _expect(f"advance() gave '{name}'", value, memory[name].shape, memory[name].dtype)


# Behaviour


def _check_writes(task: Task, env_factory: EnvFactory) -> None:
    sample, _ = _samples(task, env_factory)
    for name, call in _calls(task):
        before = _inputs(sample)
        versions = {key: value._version for key, value in before.items()}
        copies = {key: value.clone() for key, value in before.items()}
        call(sample)
        for key, value in _inputs(sample).items():
            if value is not before.get(key) or value._version != versions[key] or not _same(value, copies[key]):
                _fail(f"{name}() writes to its argument {key}; return new tensors instead.")
        if _inputs(sample).keys() != before.keys():
            _fail(f"{name}() adds to or removes from its argument memory; return new tensors instead.")


def _check_views(task: Task, env_factory: EnvFactory) -> None:
    sample, _ = _samples(task, env_factory)
    live = {value.untyped_storage().data_ptr(): key for key, value in _inputs(sample).items() if "memory" not in key}
    for name, call in _calls(task):
        answer = call(sample)
        for value in answer.values() if isinstance(answer, dict) else [answer]:
            key = live.get(value.untyped_storage().data_ptr())
            if name in ("reward", "advance") and key is not None:  # what others return is used or copied at once
                _fail(f"{name}() returns a view of {key}, which the next step overwrites; return a copy.")


def _check_randomness(task: Task, env_factory: EnvFactory) -> None:
    sample, _ = _samples(task, env_factory)
    start = ("start", lambda _: task.start(RowRng(0, torch.arange(ROWS)), ROWS))
    for name, call in [start, *_calls(task)]:
        before = _global_generators()
        call(sample)
        if before != _global_generators():
            _fail(f"{name}() draws random numbers of its own; draw from the rng argument of start() or advance().")


def _check_hidden_state(task: Task, env_factory: EnvFactory) -> None:
    first, second = _samples(task, env_factory)
    calls = _calls(task)
    answers = {name: call(first) for name, call in calls}
    before = {name: _frozen(value) for name, value in vars(task).items()}
    for _, call in calls:
        call(second)
    task.start(RowRng(1, torch.arange(ROWS)), ROWS)
    # Backwards, so that nothing which a function left behind for a later one is there yet.
    for name, call in reversed(calls):
        if not _same(call(first), answers[name]):
            changed = [key for key, value in vars(task).items() if _frozen(value) != before.get(key)]
            hint = f" (the attribute '{changed[0]}' changed)" if changed else ""
            _fail(f"{name}() answers differently when asked again{hint}: what a task remembers must be in memory.")


def _check_finite(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS):
        step = env.step(_actions(task, env, t))
        x = env.physics()
        physical = torch.isfinite(x.qpos.sum(-1) + x.qvel.sum(-1))  # (N, K)
        for name, term in env.terms.items():
            if not torch.isfinite(term[physical]).all():
                _fail(f"the reward term '{name}' is not finite at step {t + 1}, in a state that is.")
        if not torch.isfinite(env.observe().state[physical]).all():
            _fail(f"'state' is not finite at step {t + 1}, where the physics is.")
        env.restart(step)


def _check_branches(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS // 4):  # leave the start, where branches are alike anyway
        env.restart(env.step(_actions(task, env, t)))
    env.branch()
    for t in range(STEPS):
        step = env.step(_actions(task, env, t)[:, :1].expand(-1, env.num_branches, -1))
        for name in ("reward", "terminated", "state"):
            value = getattr(step, name)
            if not _same(value, value[:, :1].expand_as(value)):
                _fail(
                    f"branches that took equal actions differ in {name} at step {t + 1}; draw per row, not per branch."
                )
        env.restart(step)


def _check_nominal(task: Task, env_factory: EnvFactory) -> None:
    for a, b in zip(_rollout(task, env_factory, 0), _rollout(task, env_factory, 1), strict=True):
        for name in ("reward", "terminated", "state"):
            if not _same(getattr(a, name)[:, 0], getattr(b, name)[:, 0]):
                _fail(f"what auxiliaries do changes the nominal world's {name}: keep worlds apart along the axis K.")


def _check_seed(task: Task, env_factory: EnvFactory) -> None:
    for a, b in zip(_rollout(task, env_factory, 0), _rollout(task, env_factory, 0), strict=True):
        if not _same(a.reward, b.reward) or not _same(a.state, b.state):
            _fail("the same seed and actions gave two different rollouts: draw only from the rng argument.")


def _check_observe(task: Task, env_factory: EnvFactory) -> None:
    seen, unseen = (env_factory(task, ROWS, AUXILIARIES, seed=0) for _ in range(2))
    for t in range(STEPS // 4):
        first, again = seen.observe(), seen.observe()
        if not _same(first.state, again.state) or not _same(dict(first.sources), dict(again.sources)):
            _fail("observe() answers differently when asked twice.")
        steps = [env.step(_actions(task, env, t)) for env in (seen, unseen)]
        if not _same(steps[0].state, steps[1].state):
            _fail("observing changes what happens next; observe() must only look.")
        for env, step in zip((seen, unseen), steps, strict=True):
            env.restart(step)


def _check_restart(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    step = env.step(_actions(task, env, 0))
    ended = torch.zeros_like(step.terminated)
    ended[0, 0] = ended[1, 1] = True  # a nominal, and another row's auxiliary
    before = env.observe().state.clone()
    env.restart(replace(step, terminated=ended, truncated=torch.zeros_like(ended)))
    after = env.observe().state
    if not _same(after[0], after[0, :1].expand_as(after[0])) or env.clock[0] != 0:
        _fail("after a nominal world ended, its row does not start anew with equal branches.")
    if not _same(after[1, 1], before[1, 0]):
        _fail("after an auxiliary ended, its state is not its nominal's: is all that matters in memory?")
    untouched = ~ended
    untouched[0] = False
    if not _same(after[untouched], before[untouched]):
        _fail("a restart of some worlds changes what others observe.")


CHECKS: list[tuple[str, Callable[[Task, EnvFactory], None], bool]] = [  # name, check, essential for what follows
    ("scene", _check_scene, True),
    ("start", _check_start, True),
    ("shapes", _check_shapes, True),
    ("writes", _check_writes, False),
    ("views", _check_views, False),
    ("randomness", _check_randomness, False),
    ("hidden state", _check_hidden_state, False),
    ("finite", _check_finite, False),
    ("branches", _check_branches, False),
    ("nominal", _check_nominal, False),
    ("seed", _check_seed, False),
    ("observe", _check_observe, False),
    ("restart", _check_restart, False),
]


@dataclass(frozen=True)
class _Sample:
    """Arguments of a task's functions, apart from any environment."""

    x: Physics
    memory: Memory
    action: Tensor  # (N, K, A)


def _samples(task: Task, env_factory: EnvFactory) -> tuple[_Sample, _Sample]:
    """Two different situations."""
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    found = []
    for t in range(2):
        env.step(_actions(task, env, t))
        x = env.physics()
        x = Physics(x.qpos.clone(), x.qvel.clone(), {name: value.clone() for name, value in x.derived.items()})
        memory = {name: value.clone() for name, value in env.memory.items()}
        found.append(_Sample(x, memory, _actions(task, env, t)))
    return found[0], found[1]


def _calls(task: Task) -> list[tuple[str, Callable[[_Sample], Any]]]:
    """The functions that must be pure, in the order in which a step calls them."""
    return [
        ("control", lambda s: task.control(s.x, s.memory, s.action)),
        ("reward", lambda s: task.reward(s.x, s.memory, s.action)),
        ("terminated", lambda s: task.terminated(s.x, s.memory)),
        ("advance", lambda s: task.advance(s.x, s.memory, s.action, RowRng(0, torch.arange(ROWS)))),
        ("observe", lambda s: task.observe(s.x, s.memory)),
    ]


def _inputs(s: _Sample) -> dict[str, Tensor]:
    memory = {f"memory['{name}']": value for name, value in s.memory.items()}
    derived = {f"x['{name}']": value for name, value in s.x.derived.items()}
    return {"x.qpos": s.x.qpos, "x.qvel": s.x.qvel, "action": s.action} | derived | memory


def _rollout(task: Task, env_factory: EnvFactory, auxiliary_seed: int) -> Iterator[Step]:
    """STEPS steps; the nominal's actions do not depend on `auxiliary_seed`, the auxiliaries' do."""
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS):
        action = _actions(task, env, t)
        action[:, 1:] = _actions(task, env, t + 1000 * (1 + auxiliary_seed))[:, 1:]
        step = env.step(action)
        yield step
        env.restart(step)


def _actions(task: Task, env: BranchedEnv, t: int) -> Tensor:
    """(N, K, A) uniform in [-1, 1], the same for the same t."""
    generator = torch.Generator().manual_seed(t)
    return torch.rand(*env.grid, task.action_size, generator=generator).mul_(2.0).sub_(1.0).to(env.device)


def _start_values(start: Start) -> dict[str, Tensor]:
    return {"qpos": start.qpos, "qvel": start.qvel, **start.memory, **start.params}


def _global_generators() -> tuple[bytes, str, object]:
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state(legacy=False)), random.getstate()  # noqa: NPY002 - watched, not used


def _frozen(value: Any) -> Any:
    """Something to compare an attribute by later."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value)


def _same(a: Any, b: Any) -> bool:
    """Bit for bit, NaN being equal to NaN; tensors or dicts of them."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _expect(what: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(value, Tensor):
        _fail(f"{what} as {type(value).__name__}; give a tensor.")
    if tuple(value.shape) != tuple(shape):
        _fail(f"{what} with shape {tuple(value.shape)}; it must be {tuple(shape)}.")
    if value.dtype != dtype:
        _fail(f"{what} as {value.dtype}; it must be {dtype}.")


def _fail(sentence: str) -> NoReturn:
    raise _Problem(sentence)
