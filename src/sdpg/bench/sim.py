"""Physics steps per second: the engine's native rollout, our loop over `sim.step`, and the whole environment step.

The three are measured in turns in one process, so that their ratios hold on a machine that is busy with other things;
those of processor time (`_cpu_`) hold best.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from mujoco.batch import Batch

from sdpg.bench import machine
from sdpg.build import make_env
from sdpg.machine import default_threads
from sdpg.sim.cpu import CpuSim


@dataclass(frozen=True)
class Options:
    """Physics steps per second of a task, by threads."""

    task: str = "hopper"
    """A name that `sdpg tasks` lists, or module:Class."""
    num_worlds: int = 1024
    steps: int = 32
    """Control steps of one measurement."""
    repeats: int = 5
    """Measurements of each kind; their median counts."""
    threads: tuple[int, ...] = ()
    """Numbers of threads to try; none: powers of two up to all cores."""
    seed: int = 0


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cpu_timed(function: Callable[[], object]) -> tuple[float, float]:
    """Seconds that passed, and seconds of processors."""
    before = time.process_time()
    passed = timed(function)
    return passed, time.process_time() - before


def _measure(options: Options, threads: int) -> dict[str, float | int]:
    env = make_env(options.task, options.num_worlds, 0, options.seed, threads)
    sim, task = env.sim, env.task
    assert isinstance(sim, CpuSim)
    generator = torch.Generator().manual_seed(options.seed)
    shape = (options.steps, options.num_worlds, 1, task.action_size)
    actions = 2 * torch.rand(shape, generator=generator) - 1
    ctrl = torch.stack([task.control(env.physics(), env.memory, a)[:, 0] for a in actions])  # (T, E, nu)
    control = np.repeat(ctrl.transpose(0, 1).double().numpy(), task.substeps, axis=1)  # (E, T substeps, nu)
    native = Batch(sim.model, nsim=options.num_worlds, nthread=threads)
    start, saved = sim._batch.state.copy(), env.state_dict()

    def rollout() -> None:
        native.rollout(options.steps * task.substeps, control, record=())

    def loop() -> None:
        for u in ctrl:
            sim.step(u, task.substeps)

    def environment() -> None:
        for a in actions:
            env.restart(env.step(a))

    seconds: dict[str, list[tuple[float, float]]] = {"native": [], "sim": [], "env": []}
    for _ in range(options.repeats + 1):  # the first is warm-up
        native.state[:] = start
        seconds["native"].append(cpu_timed(rollout))
        env.load_state_dict(saved)
        seconds["sim"].append(cpu_timed(loop))
        env.load_state_dict(saved)
        seconds["env"].append(cpu_timed(environment))
    best, cpu = ({name: median(v[i] for v in values[1:]) for name, values in seconds.items()} for i in (0, 1))
    count = options.num_worlds * options.steps * task.substeps
    return {
        "threads": threads,
        **{f"{name}_steps_per_second": count / s for name, s in best.items()},
        "sim_ratio_to_native": best["native"] / best["sim"],
        "env_ratio_to_native": best["native"] / best["env"],
        "sim_cpu_ratio_to_native": cpu["native"] / cpu["sim"],
        "env_cpu_ratio_to_native": cpu["native"] / cpu["env"],
    }


def run(options: Options) -> dict[str, Any]:
    cores = default_threads()
    tried = options.threads or tuple(sorted({2**i for i in range(10) if 2**i <= cores} | {cores}))
    rows = []
    for threads in tried:
        torch.set_num_threads(threads)
        rows.append(_measure(options, threads))
    return {
        "kind": "sim",
        "task": options.task,
        "num_worlds": options.num_worlds,
        "machine": machine.describe(),
        "rows": rows,
    }
