"""Images per second of each renderer, on the same states and threads, in turns in one process; how well they agree; and
of MuJoCo's own OpenGL renderer, if there is a GL library here (in a process of its own, with a time limit: a broken
driver may hang or crash)."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from sdpg.build import compile_scene, make_env, views_of
from sdpg.env import BranchedEnv
from sdpg.machine import default_threads
from sdpg.render.api import Image, Renderer, View
from sdpg.render.choose import choose, make_renderer
from sdpg.render.raster import RasterRenderer

Looks = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""What rows have of their own of these fields."""
_KINDS = ("raster", "warp")
_THINGS, _REST = 0, 5  # geom groups: what moves, what does not


@dataclass(frozen=True)
class Options:
    """Images per second of every camera of a task, by renderer."""

    task: str = "hopper"
    """A name that `sdpg tasks` lists, or module:Class."""
    num_nominal: int = 64
    """Images of one call."""
    width: int | None = None
    """Pixels; not given: as the task has it."""
    height: int | None = None
    depth: bool = False
    """Depth besides colour."""
    repeats: int = 7
    """Measurements of each renderer; their median counts, and of one thread the least, in CPU time."""
    calls: int = 10
    """Calls of `raster` in one measurement; the others, which take longer, get one."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    agreement: bool = False
    """Also compare what the two draw, pixel by pixel."""
    gl_seconds: float = 60.0
    """Time limit for OpenGL; 0: without."""
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
    qpos, params, model = env.physics().qpos[:, 0].clone(), env.task.params, compile_scene(env.task)
    views = [
        replace(v, width=options.width or v.width, height=options.height or v.height, depth=v.depth or options.depth)
        for v in views_of(env.task.cameras)
    ]
    rows = [measure(model, view, qpos, options, threads, params, env.looks) for view in views]
    gl, gl_why = None, "not asked"
    if options.gl_seconds > 0:
        gl, gl_why = _opengl(model, views[0], qpos, threads, options.gl_seconds)
    first = rows[0]
    ms = first["ms_per_image"] | {"opengl": None if gl is None else 1e3 * gl}
    return {
        "kind": "render",
        "task": options.task,
        "images": len(qpos),
        "machine": machine.describe(threads),
        "versions": {name: version(name) for name in ("numba", "warp-lang", "mujoco-warp")},
        **{name: value for name, value in first.items() if name != "ms_per_image"},
        "images_per_second": {kind: None if value is None else 1e3 / value for kind, value in ms.items()},
        "ms_per_image": ms,
        "opengl": gl_why,
        "cameras": rows,
    }


def measure(
    model: mujoco.MjModel,
    view: View,
    qpos: Tensor,
    options: Options,
    threads: int,
    params: Sequence[str] = (),
    looks: Looks = lambda names: {},
) -> dict[str, Any]:
    """One camera's row."""
    chosen, why = choose(model, [view], params=params)
    renderers: dict[str, Renderer] = {}
    make_seconds: dict[str, float | None] = dict.fromkeys(_KINDS)
    for kind in _KINDS:
        if kind == "warp" or chosen == "raster":
            make_seconds[kind] = timed(
                lambda k=kind: renderers.update(  # type: ignore[misc]
                    {k: make_renderer(model, len(qpos), [view], threads, k, params=params)}
                )
            )
    seconds: dict[str, list[float]] = {kind: [] for kind in renderers}
    clock = _cpu_seconds if threads == 1 else timed  # another's load is not ours
    for _ in range(options.repeats + 1):  # the first is warm-up
        for kind, renderer in renderers.items():
            calls = options.calls if kind == "raster" else 1
            own = looks(renderer.varied)
            took = clock(lambda r=renderer, c=calls, o=own: [r.render(qpos, o) for _ in range(c)])  # type: ignore[misc]
            seconds[kind].append(took / calls / len(qpos))
    each: dict[str, float | None] = dict.fromkeys(_KINDS)
    best = min if threads == 1 else median
    each |= {kind: best(values[1:]) for kind, values in seconds.items()}
    raster, warp = each["raster"], each["warp"]
    row: dict[str, Any] = {
        "camera": view.camera,
        "width": view.width,
        "height": view.height,
        "depth": view.depth,
        "renderer": chosen,
        "why": why,
        "ms_per_image": {kind: None if s is None else 1e3 * s for kind, s in each.items()},
        "raster_to_warp": warp / raster if raster and warp else None,
        "make_seconds": make_seconds,
    }
    if isinstance(renderers.get("raster"), RasterRenderer):
        drawn = renderers["raster"].drawn(view.camera)  # type: ignore[attr-defined]
        row["triangles_per_image"] = float(drawn.triangles.mean())
        row["shapes_per_image"] = float(drawn.shapes.mean())
        row["mean_level_of_detail"] = float(drawn.levels.sum() / max(drawn.shapes.sum(), 1))
    if options.agreement and chosen == "raster":
        row["agreement"] = agreement(model, [view], qpos, params, looks)[view.camera]
    return row


def agreement(
    model: mujoco.MjModel,
    views: Sequence[View],
    qpos: Tensor,
    params: Sequence[str] = (),
    looks: Looks = lambda names: {},
) -> dict[str, dict[str, float | None]]:
    """Camera -> how what the rasteriser draws of these states differs from what the ray tracer does. Foreground: where
    the nearest thing is one that moves. The views have the same geom groups."""
    parted = copy.copy(model)
    still = model.body_weldid[model.geom_bodyid] == 0
    hidden = ~np.isin(model.geom_group, views[0].groups)
    parted.geom_group[:] = np.where(still | hidden, _REST, _THINGS)
    whole = [replace(view, depth=True) for view in views]
    things = [replace(view, rgb=False, depth=True, groups=(_THINGS,)) for view in views]

    def drawn(kind: Any, scene: mujoco.MjModel, wanted: Sequence[View]) -> dict[str, Image]:
        renderer = make_renderer(scene, len(qpos), wanted, 1, kind, params=params)
        return renderer.render(qpos, looks(renderer.varied))

    images = {kind: drawn(kind, model, whole) for kind in _KINDS}
    moving = {kind: drawn(kind, parted, things) for kind in _KINDS} if (parted.geom_group == _THINGS).any() else images
    found = {}
    for view in views:
        pairs: list[Any] = []
        for kind in _KINDS:
            image, front = images[kind][view.camera], moving[kind][view.camera].depth
            assert image.depth is not None and front is not None
            pairs += [image, torch.isfinite(front) & (front <= image.depth * (1 + 1e-5))]
        found[view.camera] = compared(*pairs)
    return found


def compared(image: Image, mask: Tensor, reference: Image, true_mask: Tensor) -> dict[str, float | None]:
    """Pictures and foregrounds (N, H, W) of two renderers."""
    depth, true_depth = image.depth, reference.depth
    assert depth is not None and true_depth is not None
    both, either = (mask & true_mask).sum((1, 2)), (mask | true_mask).sum((1, 2))  # (N,)
    seen = either > 30  # with fewer pixels one of them would decide
    common = torch.isfinite(depth) & torch.isfinite(true_depth)
    off = ((depth - true_depth).abs() / true_depth)[common].sort().values
    colour = None
    if image.rgb is not None and reference.rgb is not None:
        colour = float((image.rgb.int() - reference.rgb.int()).abs().float().mean((1, 2, 3)).max())
    return {
        "iou": float(both.sum() / either.sum()) if either.any() else None,
        "worst_iou": float((both / either)[seen].min()) if seen.any() else None,
        "worst_colour": colour,
        "depth_median": float(off[len(off) // 2]) if len(off) else None,
        "depth_p95": float(off[int(0.95 * (len(off) - 1))]) if len(off) else None,
        "hits_alike": float((torch.isfinite(depth) == torch.isfinite(true_depth)).float().mean()),
    }


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


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
