"""What this machine has, what would be used of it, and whether the engine works here."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from sdpg.build import compile_scene, make_env
from sdpg.engines import Engine, choose_engine
from sdpg.machine import GB, default_threads, free_bytes
from sdpg.render.api import View
from sdpg.render.choose import choose, make_renderer
from sdpg.run.provenance import versions
from sdpg.tasks.base import make_task

ENOUGH_DISK, ENOUGH_MEMORY = 1.0, 2.0  # GB: less is worth a word


def examine(folder: Path = Path()) -> dict[str, Any]:
    """Facts, and "problems": sentences, empty when all is well."""
    problems: list[str] = []
    free, disk = free_bytes(), _disk_gb(folder, problems)
    memory = None if free is None else free / GB
    if memory is not None and memory < ENOUGH_MEMORY:
        problems.append(f"only {memory:.1f} GB of memory are free: take fewer worlds (--num-nominal, --num-auxiliary).")
    if disk is not None and disk < ENOUGH_DISK:
        problems.append(f"only {disk:.1f} GB of disk are free here: put runs elsewhere by --run DIR.")
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    threads, engine = default_threads(), choose_engine()
    return {
        "versions": versions(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_free_gb": memory,
        "disk_free_gb": disk,
        "gpu": gpu,
        "sim": engine.sim,
        "device": engine.device,
        "why": _why(engine, threads),
        "engine": _engine(engine, problems),
        "renderer": _renderer(engine, problems),
        "problems": problems,
    }


def _why(engine: Engine, threads: int) -> str:
    if engine.device == "cuda":
        return f"physics and learning on the GPU, because {engine.why}"
    return f"physics and learning on the {threads} cores that this process may use; {engine.why}"


def _engine(engine: Engine, problems: list[str]) -> str:
    """A few real steps of branched worlds."""
    try:
        env = make_env("cartpole", num_nominal=4, num_auxiliary=3, sim=engine.sim, device=engine.device)
        env.branch()
        step = env.step(torch.zeros(*env.grid, env.task.action_size, device=env.device))
        alike = bool((step.state == step.state[:, :1]).all())
        if step.failed.any() or not alike:
            problems.append("branches of one world went different ways: reinstall mujoco as pinned in constraints.txt.")
            return "wrong results"
        if engine.sim == "warp":
            return f"mujoco_warp stepped {env.sim.num_worlds} worlds on {env.device}"
        return f"mujoco.batch stepped {env.sim.num_worlds} worlds on {env.sim.threads} threads"
    except Exception as error:  # whatever is broken here is what doctor is for
        problems.append(f"the physics engine does not work: {type(error).__name__}: {' '.join(str(error).split())}.")
        return "broken"


def _renderer(engine: Engine, problems: list[str]) -> str:
    """A few real images. The first time on a machine this compiles the rasteriser, so that training need not."""
    try:
        task = make_task("cartpole")
        model, views = compile_scene(task), [View(task.camera)]
        kind, why = choose(model, views, engine.device)
        start = time.perf_counter()
        qpos = torch.tensor([[0.0, 0.0], [0.5, 1.0], [0.0, 0.0]])
        renderer = make_renderer(model, 3, views, device=engine.device)
        rgb = renderer.render(qpos)[task.camera].rgb
        assert rgb is not None
        if not torch.equal(rgb[0], rgb[2]) or torch.equal(rgb[0], rgb[1]):
            problems.append("images do not show the state: reinstall numba as pinned in constraints.txt.")
            return "wrong results"
        took, start = f"{time.perf_counter() - start:.1f} s with loading", time.perf_counter()
        again = renderer.render(qpos)[task.camera].rgb
        assert again is not None and torch.equal(again, rgb)  # also waits for a GPU
        each = (time.perf_counter() - start) / len(qpos) * 1e3
        return f"{kind} drew cartpole ({why}; {took}, then {each:.2f} ms an image); what it can't draw goes to warp"
    except Exception as error:  # whatever is broken here is what doctor is for
        problems.append(f"no images can be rendered: {type(error).__name__}: {' '.join(str(error).split())}.")
        return "broken"


def _disk_gb(folder: Path, problems: list[str]) -> float | None:
    try:
        if not os.access(folder, os.W_OK):
            problems.append(f"'{folder.resolve()}' can't be written: put runs elsewhere by --run DIR.")
        return shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        problems.append(f"'{folder}' can't be looked at: {error.strerror or error}.")
        return None
