"""Where the seconds of a training iteration go, and what they would be if physics were all there is.

`ratio_to_raw` = (seconds of a bare native `Batch.rollout` from the same states under the same controls, on the same
threads) / (seconds of the whole iteration, updates included). The rollout follows each iteration in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from mujoco.batch import Batch
from torch import Tensor

from sdpg.algos.api import Algorithm
from sdpg.bench import machine
from sdpg.bench.sim import timed
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.machine import collecting, default_threads, use_threads
from sdpg.presets import resolve
from sdpg.run.failures import FailureRecorder
from sdpg.run.policy import build_algorithm
from sdpg.sim.cpu import CpuSim


@dataclass(frozen=True)
class Options:
    """Seconds per phase of a training iteration."""

    task: str = "hopper"
    """A name that `sdpg tasks` lists, or module:Class."""
    algorithm: str = "sdpg"
    obs: str = "state"
    preset: Literal["cpu", "paper"] = "cpu"
    num_nominal: int = 64
    num_auxiliary: int = 63
    iterations: int = 10
    """Measured iterations; their median counts."""
    warmup: int = 3
    """Iterations before the measurement."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    seed: int = 0


@dataclass
class Stopwatch:
    """Times methods from outside: an instance's method is replaced by one that keeps the seconds, until `release`.

    A phase that is entered within another belongs to the outer one: seconds are counted once.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _inside: bool = False
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def watch(self, owner: Any, names: str, phase: str) -> None:
        self.seconds.setdefault(phase, 0.0)
        for name in names.split():
            original = getattr(owner, name)
            own = name in vars(owner)
            setattr(owner, name, self._timed(original, phase))
            self._undo.append(
                lambda o=owner, n=name, f=original, keep=own: setattr(o, n, f) if keep else delattr(o, n)  # type: ignore[misc]
            )

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[phase] += time.perf_counter() - start
                self._inside = False

        return call

    def reset(self) -> None:
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def release(self) -> None:
        while self._undo:
            self._undo.pop()()


def watch_phases(stopwatch: Stopwatch, algo: Algorithm, wanted: Collection[str] | None = None) -> None:
    """Time the phases that an algorithm names, or those of them that are `wanted`."""
    for phase, (owner, methods) in algo.phases().items():
        if wanted is None or phase in wanted:
            stopwatch.watch(owner, methods, phase)


def watch_iteration(algo: Algorithm, env: BranchedEnv) -> Stopwatch:
    """The phases of collect and update; what is in none of them is "other"."""
    stopwatch = Stopwatch()
    watch_phases(stopwatch, algo)
    stopwatch.watch(env.sim, "step", "physics")
    stopwatch.watch(env.task, "control reward terminated advance observe", "task functions")
    stopwatch.watch(env, "branch restart", "restarts")
    stopwatch.watch(env, "column on_step", "failure records")
    if env.frame_stacks is not None:
        stopwatch.watch(env.frame_stacks, "look", "rendering")
    return stopwatch


def _controls(env: BranchedEnv) -> tuple[list[Tensor], Callable[[], None]]:
    """A list that every control of `sim.step` is added to, and what ends this."""
    seen: list[Tensor] = []
    step = env.sim.step

    def recording(ctrl: Tensor, substeps: int) -> Tensor:
        seen.append(ctrl)
        return step(ctrl, substeps)

    env.sim.step = recording  # type: ignore[method-assign]
    return seen, lambda: delattr(env.sim, "step")


def _iterate(algo: Algorithm, env: BranchedEnv) -> None:
    """As in training."""
    with collecting(images=env.frame_stacks is not None):
        batch = algo.collect(env)
    algo.update(batch)


def run(options: Options) -> dict[str, Any]:
    threads = options.threads or default_threads()
    use_threads(threads)
    cfg = replace(
        resolve(options.task, options.preset, options.obs, options.algorithm),
        num_nominal=options.num_nominal, num_auxiliary=options.num_auxiliary, seed=options.seed,
    )  # fmt: skip
    env = make_env(options.task, cfg.num_nominal, cfg.num_auxiliary, cfg.seed, threads, cfg.obs)
    algo = build_algorithm(cfg, env)
    assert isinstance(env.sim, CpuSim)
    native = Batch(env.sim.model, nsim=env.sim.num_worlds, nthread=threads)
    FailureRecorder(
        env, Path(), {}, cfg.algo.history, 0, warn=lambda message: None
    )  # remembers as in training, writes nothing
    controls, stop = _controls(env)
    stopwatch = watch_iteration(algo, env)
    rows: list[dict[str, float]] = []
    try:
        for i in range(options.warmup + options.iterations):
            env.branch()  # collect's own first act: now the rows are those that the iteration starts from
            native.state[:] = env.sim._batch.state
            controls.clear()
            stopwatch.reset()
            total = timed(lambda: _iterate(algo, env))
            control = np.repeat(torch.stack(controls, 1).double().numpy(), env.task.substeps, axis=1)  # (E, T s, nu)
            raw = timed(lambda c=control: native.rollout(c.shape[1], c, record=()))  # type: ignore[misc]
            if i >= options.warmup:
                other = total - sum(stopwatch.seconds.values())
                rows.append({**stopwatch.seconds, "other": other, "total": total, "raw": raw})
    finally:
        stopwatch.release()
        stop()
    middle = {name: median(row[name] for row in rows) for name in rows[0]}
    steps = len(controls)
    return {
        "kind": "iteration",
        "task": options.task,
        "algorithm": options.algorithm,
        "preset": options.preset,
        "obs": options.obs,
        "renderer": env.frame_stacks.renderer.kind if env.frame_stacks else None,
        "num_nominal": cfg.num_nominal,
        "num_auxiliary": cfg.num_auxiliary,
        "horizon": steps,
        "substeps": env.task.substeps,
        "machine": machine.describe(threads),
        "seconds": {name: value for name, value in middle.items() if name not in ("total", "raw")},
        "iteration_seconds": middle["total"],
        "rendering_share": middle["rendering"] / middle["total"] if env.frame_stacks else 0.0,
        "raw_seconds": middle["raw"],
        "ratio_to_raw": median(row["raw"] / row["total"] for row in rows),
        "world_steps_per_second": steps * env.sim.num_worlds / middle["total"],
    }
