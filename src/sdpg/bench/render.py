"""Images per second of each renderer, on the same states and threads, in turns in one process; and of MuJoCo's own
OpenGL renderer, if there is a GL library here (in a process of its own, with a time limit: a broken driver may hang or
crash)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.bench import machine
from sdpg.bench.sim import timed
from sdpg.build import compile_scene, make_env
from sdpg.env import BranchedEnv
from sdpg.machine import default_threads
from sdpg.render.api import Renderer, View
from sdpg.render.choose import choose, make_renderer


@dataclass(frozen=True)
class Options:
    """Images per second, by renderer."""

    task: str = "hopper"
    """A name that `sdpg tasks` lists, or module:Class."""
    num_nominal: int = 64
    """Images of one call."""
    width: int = 84
    height: int = 84
    depth: bool = False
    """Depth besides colour."""
    repeats: int = 7
    """Measurements of each renderer; their median counts."""
    calls: int = 10
    """Calls of `raster` in one measurement; the others, which take longer, get one."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    gl_seconds: float = 60.0
    """Time limit for OpenGL."""
    seed: int = 0


def _worlds(options: Options, threads: int) -> BranchedEnv:
    """N of them, after a few random actions."""
    env = make_env(options.task, options.num_nominal, 0, options.seed, threads)
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(10):
        action = 2 * torch.rand(*env.grid, env.task.action_size, generator=generator) - 1
        env.restart(env.step(action))
    return env


def run(options: Options) -> dict[str, Any]:
    threads = options.threads or default_threads()
    env = _worlds(options, threads)
    qpos, params = env.physics().qpos[:, 0].clone(), env.task.params
    model, camera = compile_scene(env.task), env.task.camera
    view = View(camera, options.width, options.height, depth=options.depth)
    chosen, why = choose(model, [view], params=params)
    renderers: dict[str, Renderer] = {}
    make_seconds: dict[str, float | None] = {"raster": None, "warp": None}
    for kind in ("raster", "warp"):
        if kind == "warp" or chosen == "raster":
            make_seconds[kind] = timed(
                lambda k=kind: renderers.update(  # type: ignore[misc]
                    {k: make_renderer(model, len(qpos), [view], threads, k, params=params)}
                )
            )
    seconds: dict[str, list[float]] = {kind: [] for kind in renderers}
    for _ in range(options.repeats + 1):  # the first is warm-up
        for kind, renderer in renderers.items():
            calls = options.calls if kind == "raster" else 1
            own = env.looks(renderer.varied)
            took = timed(lambda r=renderer, c=calls, o=own: [r.render(qpos, o) for _ in range(c)])  # type: ignore[misc]
            seconds[kind].append(took / calls / len(qpos))
    each: dict[str, float | None] = {"raster": None, "warp": None}
    each |= {kind: median(values[1:]) for kind, values in seconds.items()}
    gl, gl_why = _opengl(model, view, qpos, threads, options.gl_seconds)
    each["opengl"] = gl
    ratio = None
    if "raster" in seconds:
        ratio = median(w / r for r, w in zip(seconds["raster"][1:], seconds["warp"][1:], strict=True))
    return {
        "kind": "render",
        "task": options.task,
        "camera": camera,
        "images": len(qpos),
        "width": view.width,
        "height": view.height,
        "depth": view.depth,
        "machine": machine.describe(threads),
        "versions": {name: version(name) for name in ("numba", "warp-lang", "mujoco-warp")},
        "renderer": chosen,
        "why": why,
        "images_per_second": {kind: None if s is None else 1 / s for kind, s in each.items()},
        "ms_per_image": {kind: None if s is None else 1e3 * s for kind, s in each.items()},
        "raster_to_warp": ratio,
        "make_seconds": make_seconds,
        "opengl": gl_why,
    }


_CHILD = """
import json, sys, time
import mujoco, numpy as np
folder, camera, width, height = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = mujoco.MjModel.from_binary_path(folder + "/model.mjb")
data, qpos = mujoco.MjData(model), np.load(folder + "/qpos.npy")
renderer = mujoco.Renderer(model, height, width)
seconds = []
for _ in range(4):
    start = time.perf_counter()
    for q in qpos:
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        renderer.update_scene(data, camera)
        renderer.render()
    seconds.append((time.perf_counter() - start) / len(qpos))
print(json.dumps(sorted(seconds[1:])[1]))
"""


def _opengl(model: mujoco.MjModel, view: View, qpos: Tensor, threads: int, limit: float) -> tuple[float | None, str]:
    """Seconds per image of mujoco.Renderer, and with which GL; or None and why not."""
    backends = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else ["egl", "osmesa", "glfw"]
    reasons = []
    with tempfile.TemporaryDirectory() as folder:
        mujoco.mj_saveModel(model, str(Path(folder) / "model.mjb"))
        np.save(Path(folder) / "qpos.npy", qpos.double().numpy())
        command = [sys.executable, "-c", _CHILD, folder, view.camera, str(view.width), str(view.height)]
        for backend in backends:
            env = os.environ | {"MUJOCO_GL": backend, "LP_NUM_THREADS": str(threads)}  # the latter is Mesa's
            try:
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit)
            except subprocess.TimeoutExpired:
                reasons.append(f"{backend}: no answer within {limit:.0f} s")
                continue
            if done.returncode == 0:
                return float(json.loads(done.stdout.splitlines()[-1])), f"mujoco.Renderer by {backend}"
            words = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(" ")]
            reasons.append(f"{backend}: {words[-1] if words else f'ended with code {done.returncode}'}")
    return None, "no usable GL library (" + "; ".join(reasons) + ")"
