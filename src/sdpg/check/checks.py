"""`sdpg check TASK`: does a task keep the promises of `tasks.base.Task`?

Every check has a name and, where it fails, one plain sentence. Each relies on those before it, so that the first that
fails is the last: a task that remembers in an attribute is not blamed for branches that differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from sdpg import presets
from sdpg.algos.api import Shapes
from sdpg.build import compile_scene, image_shape, make_env
from sdpg.check.images import not_shown
from sdpg.check.situations import (
    AUXILIARIES,
    ROWS,
    STEPS,
    EnvFactory,
    Situation,
    actions,
    answers_to,
    arguments,
    calls,
    rollout,
    two_situations,
    visited,
)
from sdpg.declarations import check_inputs, check_sources
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.sim.reads import refuse
from sdpg.tasks.base import Task
from sdpg.types import MOCAP, Camera, Start

CALLS = 1000  # of every function, between two that must answer alike
ROUNDING = 1e-5
REMEMBER = "what a task remembers must be in memory"


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
    """One finding per check, in order, up to the first that fails."""
    findings: list[Finding] = []
    before = _attributes(task)
    for name, check in CHECKS:
        problem: str | None = None
        try:
            check(task, env_factory)
        except _Problem as found:
            problem = str(found)
        except SdpgError as error:
            problem = f"{_one_line(error)}."
        except (Exception, SystemExit) as error:  # a task under test may raise anything
            problem = _raised(task, error, before)
        findings.append(Finding(name, problem))
        if problem is not None:
            break
    return findings


def _raised(task: Task, error: BaseException, before: dict[str, Any]) -> str:
    who = type(task).__name__
    if isinstance(error, SystemExit):
        return f"{who} called exit({error.code!r}): raise an error, or let terminated() end episodes."
    said = f"{who} raised {type(error).__name__}: {_one_line(error)}"
    left = _changed(task, before)  # by a function for another one, which then found something else
    if isinstance(error, AttributeError) and isinstance(error.obj, Task):
        left = [str(error.name)]
    return f"{said} (the attribute '{left[0]}' is set on the way: {REMEMBER})." if left else f"{said}."


# Declarations and shapes


def _check_scene(task: Task, _: EnvFactory) -> None:
    model = compile_scene(task)
    for name in task.reads:
        refuse(name)
    cameras = [model.camera(i).name for i in range(model.ncam)]
    wanted = [task.camera] if task.camera != Task.camera else []
    for kind, sources in task.inputs.items():
        check_inputs(task, kind)
        used = {source: task.cameras[source] for source in sources if source in task.cameras}
        if task.cameras is Task.cameras and not {camera.name for camera in used.values()} & set(cameras):
            continue  # the default, which a scene without cameras need not have
        for source, camera in used.items():
            wanted.append(camera.name)
            _check_size(source, camera)
    for camera_name in wanted:
        if camera_name not in cameras:
            _fail(f"the camera '{camera_name}' is not in the scene; it has {', '.join(cameras) or 'none'}.")


def _check_size(source: str, camera: Camera) -> None:
    """Is an image large enough for the encoder that a policy has by default?"""
    try:
        presets.resolve("", obs="pixels").algo.memory(Shapes(1, 1, 1, 1, (image_shape(camera),)))
    except SdpgError as error:
        _fail(f"cameras['{source}']: {error}.")


def _check_start(task: Task, _: EnvFactory) -> None:
    model = task.scene().compile()
    all_rows = task.start(RowRng(0, torch.arange(ROWS), stream=1), ROWS, None)
    if not isinstance(all_rows, Start):
        _fail(f"start() returned {type(all_rows).__name__}; return a Start.")
    values = _start_values(all_rows)
    for name, size in (("qpos", model.nq), ("qvel", model.nv)):
        _expect(f"start() gave {name}", values[name], (ROWS, size), torch.float32)
        if not torch.isfinite(values[name]).all():
            _fail(f"start() gave {name} that is not finite.")
    for name, value in values.items():
        if value.dim() == 0 or value.shape[0] != ROWS:
            _fail(f"start() gave '{name}' with shape {tuple(value.shape)} for {ROWS} rows; give one value per row.")
    for name, size in (("mocap_pos", 3), ("mocap_quat", 4)):
        if name in values:
            _expect(f"start() gave {name}", values[name], (ROWS, model.nmocap, size), torch.float32)
    if set(all_rows.params) != set(task.params):
        _fail(f"start() gave params {sorted(all_rows.params)} but the task declares {sorted(task.params)}.")
    # Rows asked alone must be what they are among others.
    for some in ([2], [2, 3]):
        rng = RowRng(0, torch.arange(ROWS), stream=1)
        alone = _start_values(task.start(rng.select(torch.tensor(some)), len(some), None))
        for name, value in alone.items():
            if not torch.equal(value, values[name][some]):
                _fail(
                    f"start() is not drawn per row: '{name}' of a row depends on the other rows or on unseeded numbers."
                )


def _check_shapes(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    x, memory, grid = env.physics(), env.memory, env.grid
    action = actions(task, env, 0)
    _expect("control() gave controls", task.control(x, memory, action), (*grid, env.sim.nu), torch.float32)
    terms = task.reward(x, memory, action)
    if not isinstance(terms, dict) or not terms:
        _fail("reward() must return a dict with at least one named term.")
    for name, term in terms.items():
        _expect(f"reward() gave the term '{name}'", term, grid, torch.float32)
    _expect("terminated() gave its answer", task.terminated(x, memory), grid, torch.bool)
    observed = task.observe(x, memory)
    for kind in task.inputs:
        check_sources(task, kind, observed)
    _expect("observe() gave 'state'", observed["state"], (*grid, task.state_size), torch.float32)
    for name, source in observed.items():
        if tuple(source.shape[:2]) != grid:
            _fail(f"observe() gave '{name}' with shape {tuple(source.shape)}; its first axes must be (N, K) = {grid}.")
    after = task.advance(x, memory, action, RowRng(0, env.rows))
    if set(after) != set(memory):
        _fail(f"advance() returned the memory {sorted(after)} but start() began with {sorted(memory)}.")
    change = task.push(x, after)
    if change is not None:
        _expect("push() gave a change of velocities", change, (*grid, env.sim.nv), torch.float32)
    for name, value in after.items():
        _expect(f"advance() gave '{name}'", value, memory[name].shape, memory[name].dtype)


# Behaviour


def _check_writes(task: Task, env_factory: EnvFactory) -> None:
    sample, _ = two_situations(task, env_factory)
    for name, call in calls(task):
        before = arguments(sample)
        versions = {key: value._version for key, value in before.items()}
        copies = {key: value.clone() for key, value in before.items()}
        call(sample)
        for key, value in arguments(sample).items():
            if value is not before.get(key) or value._version != versions[key] or not _same(value, copies[key]):
                _fail(f"{name}() writes to its argument {key}; return new tensors instead.")
        if arguments(sample).keys() != before.keys():
            _fail(f"{name}() adds to or removes from its argument memory; return new tensors instead.")


def _check_views(task: Task, env_factory: EnvFactory) -> None:
    sample, _ = two_situations(task, env_factory)
    live = {value.untyped_storage().data_ptr(): key for key, value in arguments(sample).items() if "memory" not in key}
    for name, call in calls(task):
        answer = call(sample)
        for value in answer.values() if isinstance(answer, dict) else [answer]:
            key = live.get(value.untyped_storage().data_ptr())
            if name in ("reward", "advance") and key is not None:  # what others return is used or copied at once
                _fail(f"{name}() returns a view of {key}, which the next step overwrites; return a copy.")
    kept = {value.untyped_storage().data_ptr(): key for key, value in vars(task).items() if isinstance(value, Tensor)}
    for value in dict(calls(task))["advance"](sample).values():
        if key := kept.get(value.untyped_storage().data_ptr()):
            _fail(f"advance() returns self.{key} as memory, into which episodes are written; return a copy.")


def _check_randomness(task: Task, env_factory: EnvFactory) -> None:
    sample, _ = two_situations(task, env_factory)
    start = ("start", lambda _: task.start(RowRng(0, torch.arange(ROWS)), ROWS, None))
    for name, call in [start, *calls(task)]:
        before = _global_generators()
        call(sample)
        if before != _global_generators():
            _fail(f"{name}() draws random numbers of its own; draw from the rng argument of start() or advance().")


def _check_hidden_state(task: Task, env_factory: EnvFactory) -> None:
    first, second = two_situations(task, env_factory)
    functions = calls(task)
    answers = {name: _copied(call(first)) for name, call in functions}
    before = _attributes(task)
    for _ in range(CALLS):  # what is counted or averaged somewhere may matter late
        for _, call in functions:
            call(second)
        task.start(RowRng(1, torch.arange(ROWS)), ROWS, None)
    # Backwards, so that nothing which a function left behind for a later one is there yet.
    for name, call in reversed(functions):
        if not _same(call(first), answers[name]):
            changed = _changed(task, before)
            hint = f" (the attribute '{changed[0]}' changed)" if changed else ""
            _fail(f"{name}() answers differently when asked again{hint}: {REMEMBER}.")
    for name, call in calls(_fresh(task)):
        if not _same(call(first), answers[name]):
            _fail(f"{name}() of a fresh {type(task).__name__} answers unlike that of one in use: {REMEMBER}.")


def _check_rows(task: Task, env_factory: EnvFactory) -> None:
    """Rows 2 and 3 among four rows, and as those of an environment that begins with row 2."""
    for sample in visited(task, env_factory):
        _compare(
            task,
            sample,
            torch.arange(ROWS)[2:],
            torch.arange(1 + AUXILIARIES),
            "of a row depends on the other rows or on their number: keep rows apart along the axis N, and draw per row",
        )


def _check_finite(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS):
        step = env.step(actions(task, env, t))
        x = env.physics()
        physical = torch.isfinite(x.qpos.sum(-1) + x.qvel.sum(-1))  # (N, K)
        for name, term in step.terms.items():
            if not torch.isfinite(term[physical]).all():
                _fail(f"the reward term '{name}' is not finite at step {t + 1}, in a state that is.")
        if not torch.isfinite(env.observe().state[physical]).all():
            _fail(f"'state' is not finite at step {t + 1}, where the physics is.")
        env.restart(step)


def _check_branches(task: Task, env_factory: EnvFactory) -> None:
    rows, branches = torch.arange(ROWS), torch.arange(1 + AUXILIARIES)
    for sample in visited(task, env_factory):
        for some in (branches.flip(0), branches[:1], branches[1:]):
            _compare(
                task,
                sample,
                rows,
                some,
                "of a world depends on the other branches, their order or their number: keep worlds apart along the "
                "axis K, and draw per row",
            )
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    for t in range(STEPS // 4):  # leave the start, where branches are alike anyway
        env.restart(env.step(actions(task, env, t)))
    env.branch()
    for t in range(STEPS):
        step = env.step(actions(task, env, t)[:, :1].expand(-1, env.num_branches, -1))
        for name in ("reward", "terminated", "state"):
            value = getattr(step, name)
            if not _same(value, value[:, :1].expand_as(value)):
                _fail(
                    f"branches that took equal actions differ in {name} at step {t + 1}; draw per row, not per branch."
                )
        env.restart(step)


def _check_nominal(task: Task, env_factory: EnvFactory) -> None:
    for a, b in zip(rollout(task, env_factory, 0), rollout(task, env_factory, 1), strict=True):
        for name in ("reward", "terminated", "state"):
            if not _same(getattr(a, name)[:, 0], getattr(b, name)[:, 0]):
                _fail(f"what auxiliaries do changes the nominal world's {name}: keep worlds apart along the axis K.")


def _check_seed(task: Task, env_factory: EnvFactory) -> None:
    for a, b in zip(rollout(task, env_factory, 0), rollout(task, env_factory, 0), strict=True):
        if not _same(a.reward, b.reward) or not _same(a.state, b.state):
            _fail("the same seed and actions gave two different rollouts: draw only from the rng argument.")


def _check_observe(task: Task, env_factory: EnvFactory) -> None:
    seen, unseen = (env_factory(task, ROWS, AUXILIARIES, seed=0) for _ in range(2))
    for t in range(STEPS // 4):
        first, again = seen.observe(), seen.observe()
        if not _same(first.state, again.state) or not _same(dict(first.sources), dict(again.sources)):
            _fail("observe() answers differently when asked twice.")
        steps = [env.step(actions(task, env, t)) for env in (seen, unseen)]
        if not _same(steps[0].state, steps[1].state):
            _fail("observing changes what happens next; observe() must only look.")
        for env, step in zip((seen, unseen), steps, strict=True):
            env.restart(step)


def _check_restart(task: Task, env_factory: EnvFactory) -> None:
    env = env_factory(task, ROWS, AUXILIARIES, seed=0)
    step = env.step(actions(task, env, 0))
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


def _check_images(task: Task, env_factory: EnvFactory) -> None:
    if problem := not_shown(task, env_factory):
        _fail(problem)


CHECKS: list[tuple[str, Callable[[Task, EnvFactory], None]]] = [
    ("scene", _check_scene),
    ("start", _check_start),
    ("shapes", _check_shapes),
    ("writes", _check_writes),
    ("views", _check_views),
    ("randomness", _check_randomness),
    ("hidden state", _check_hidden_state),
    ("finite", _check_finite),
    ("rows", _check_rows),
    ("branches", _check_branches),
    ("nominal", _check_nominal),
    ("seed", _check_seed),
    ("observe", _check_observe),
    ("restart", _check_restart),
    ("images", _check_images),
]


def _compare(task: Task, whole: Situation, rows: Tensor, branches: Tensor, otherwise: str) -> None:
    """Does the task say of some worlds, asked alone, what it says of them among the others?"""
    among = answers_to(task, whole)
    try:
        alone = answers_to(task, whole.select(rows, branches))
    except Exception as error:
        grid = f"{len(rows)} rows of {len(branches)} branches"
        _fail(f"with {grid}, {type(task).__name__} raised {type(error).__name__}: {_one_line(error)}.")
    for what, values in among.items():
        expected = values[rows] if values.dim() == 1 else values[rows][:, branches]
        if what not in alone or not _near(alone[what], expected):
            _fail(f"{what} {otherwise}.")


def _start_values(start: Start) -> dict[str, Tensor]:
    mocap = {name: poses for name in MOCAP if (poses := getattr(start, name)) is not None}
    return {"qpos": start.qpos, "qvel": start.qvel, **mocap, **start.memory, **start.params}


def _global_generators() -> tuple[bytes, str, object]:
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state(legacy=False)), random.getstate()  # noqa: NPY002 - watched, not used


def _fresh(task: Task) -> Task:
    """Another instance with the same options; the same one if its class takes other arguments."""
    for given in ((task.cfg,), ()):
        with suppress(TypeError):
            return type(task)(*given)
    return task


def _attributes(task: Task) -> dict[str, Any]:
    """Something to compare attributes by later; not what tasks themselves keep of their scene."""
    own = {name: value for name, value in vars(task).items() if name not in ("names", "step_seconds")}
    return {name: _frozen(value) for name, value in own.items()}


def _changed(task: Task, before: dict[str, Any]) -> list[str]:
    return [name for name, value in _attributes(task).items() if value != before.get(name)]


def _frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value)


def _copied(answer: Any) -> Any:
    return {name: value.clone() for name, value in answer.items()} if isinstance(answer, dict) else answer.clone()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _near(a: Tensor, b: Tensor) -> bool:
    """The same but for rounding, which may depend on how many numbers are added at once."""
    if a.shape != b.shape or not a.is_floating_point() or not b.is_floating_point():
        return _same(a, b)
    number = torch.isfinite(b)
    error = ROUNDING * max(1.0, float(b[number].abs().max()) if number.any() else 1.0)
    return _same(a[~number], b[~number]) and bool(((a - b)[number].abs() <= error).all())


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
