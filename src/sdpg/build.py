"""The one place that puts a task, an engine and an environment together."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

import mujoco
import numpy as np
import torch

from sdpg.algos.api import ImageShape
from sdpg.declarations import check_inputs, check_numbers, check_params, check_sources
from sdpg.env import MAX_VALUE, BranchedEnv
from sdpg.errors import SdpgError
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.render.stack import Eyes
from sdpg.sim.api import Simulator
from sdpg.sim.cpu import CpuSim
from sdpg.tasks.base import Task, make_task
from sdpg.types import Camera
from sdpg.warp_engine import engine

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


def compile_scene(task: Task) -> mujoco.MjModel:
    check_numbers(task)
    spec = task.scene()
    if not isinstance(spec, mujoco.MjSpec):
        raise SdpgError(f"scene() returned {type(spec).__name__}; return a mujoco.MjSpec")
    if task.timestep is not None:
        spec.option.timestep = task.timestep
    try:
        model = spec.compile()
    except Exception as error:  # the compiler's own exception types vary
        raise SdpgError(f"the scene does not compile: {' '.join(str(error).split())}") from error
    check_params(task, model)
    return model


def model_bytes(model: mujoco.MjModel) -> bytes:
    """The compiled model, every bit of it, in MuJoCo's binary format."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


@dataclass(frozen=True)
class Engine:
    """What computes the physics, where it and the learning happen, and why."""

    sim: Literal["cpu", "warp"]  # mujoco.batch on CPU cores, or mujoco_warp
    device: Literal["cpu", "cuda"]
    why: str


def choose_engine(sim: str = "auto", device: str = "auto") -> Engine:
    """What `--sim` and `--device` come to on this machine. Physics and learning share a device: copies between two of
    them would take longer than either."""
    if sim == "cpu":
        if device == "cuda":
            raise SdpgError("--sim cpu computes on CPU cores: give --device cpu with it, or --sim warp for the GPU")
        return Engine("cpu", "cpu", "physics on CPU cores was asked for")
    without: Literal["cpu", "warp"] = "warp" if sim == "warp" else "cpu"
    if device == "cpu":
        return Engine(without, "cpu", "the CPU was asked for")
    trouble = _no_gpu()
    if not trouble:
        return Engine("warp", "cuda", f"a GPU is there ({torch.cuda.get_device_name()})")
    if device == "cuda":
        raise SdpgError(f"--device cuda: {trouble}; give --device cpu or auto")
    return Engine(without, "cpu", trouble)


def _no_gpu() -> str:
    """Why no GPU can be used; "" if one can. Without one that torch sees, Warp is not even imported."""
    if not torch.cuda.is_available():
        return "there is no GPU that torch can use"
    return "" if engine()[0].is_cuda_available() else "torch sees a GPU, but warp does not"


def make_sim(
    model: mujoco.MjModel,
    num_worlds: int,
    threads: int = 1,
    reads: tuple[str, ...] = (),
    sim: str = "cpu",
    device: str = "cpu",
    deterministic: bool = False,
) -> Simulator:
    if sim == "cpu":
        return CpuSim(model, num_worlds, threads, reads)
    if sim == "warp":
        from sdpg.sim.warp import WarpSim

        return WarpSim(model, num_worlds, reads, device, deterministic)
    raise SdpgError(f"unknown engine '{sim}'; give cpu or warp")


def default_threads(processes: int = 1) -> int:
    """The cores this process may use, if it shares them with others like it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def use_threads(threads: int) -> None:
    """Set the process up for heavy work: torch's threads, and an allocator that keeps what was freed. By default glibc
    gives what a pass through a network took back to the system, which zeroes every page when it is asked for it again:
    a fifth of an actor step on pictures. Blocks larger than any of a pass still come from the system: they would leave
    holes."""
    if threads > default_threads():
        _refuse_threads_that_can_not_start(threads)
    torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # macOS and Windows have no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that it takes
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _refuse_threads_that_can_not_start(threads: int) -> None:
    """Where processes are limited, OpenMP and the engine end in a segmentation fault. So this many are started once, by
    way of trial: physics, torch, its gradients and pictures have a pool each."""
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(4 * threads):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError) as error:
        most = max(1, len(started) // 4)
        raise SdpgError(f"{threads} threads are more than this system lets start; give --threads {most}") from error
    finally:
        enough.set()
        for thread in started:
            thread.join()


@contextmanager
def collecting(env: BranchedEnv) -> Iterator[None]:
    """Torch's threads while a segment is collected: the small operations of vector policies gain nothing from a second
    one, and threads that wait would take the cores from physics. Convolutions need them all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if env.eyes is not None else 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def make_env(
    task: Task | str,
    num_nominal: int,
    num_auxiliary: int = 0,
    seed: int = 0,
    threads: int = 0,
    obs: str = "state",
    max_value: float = MAX_VALUE,
    first_row: int = 0,
    sim: str = "cpu",
    device: str = "cpu",
    deterministic: bool = False,
) -> BranchedEnv:
    """N = num_nominal rows of K = 1 + num_auxiliary branches, counted from `first_row`; threads = 0 takes every core.
    `sim` and `device` as `choose_engine` tells them.

    Cameras are there if the observation kind `obs` needs them; only the N nominal worlds are rendered.
    """
    if num_nominal < 1:
        raise SdpgError(f"num-nominal is {num_nominal}; give at least 1")
    if num_auxiliary < 0:
        raise SdpgError(f"num-auxiliary is {num_auxiliary}; give at least 0 (1 to train with sdpg)")
    task = make_task(task) if isinstance(task, str) else task
    worlds = num_nominal * (1 + num_auxiliary)
    cameras = cameras_of(task, obs)
    model, threads = compile_scene(task), threads or default_threads()
    simulator = make_sim(model, worlds, threads, task.reads, sim, device, deterministic)
    eyes = make_eyes(model, cameras, num_nominal, threads, simulator.device, task.params) if cameras else None
    env = BranchedEnv(task, simulator, num_nominal, seed, first_row, eyes, max_value)
    check_sources(task, obs, task.observe(env.physics(), env.memory))
    return env


def one_world(
    task: Task, model: mujoco.MjModel, seed: int, row: int, max_value: float, sim: str = "cpu"
) -> BranchedEnv:
    """The nominal world of one row, on a model that need not be the task's scene of today."""
    simulator = make_sim(model, 1, 1, task.reads, sim)
    return BranchedEnv(task, simulator, 1, seed, first_row=row, max_value=max_value)


def cameras_of(task: Task, obs: str) -> dict[str, Camera]:
    """Those that the observation kind `obs` needs, by source."""
    check_inputs(task, obs)
    return {name: task.cameras[name] for name in task.inputs[obs] if name in task.cameras}


def image_shape(camera: Camera) -> ImageShape:
    """Of a camera as a source, its frames stacked."""
    return ImageShape(camera.stack * (1 if camera.depth else 3), camera.height, camera.width, camera.depth)


def views_of(cameras: Mapping[str, Camera]) -> list[View]:
    """What a renderer is asked for: a view of each camera, which may be two sources, its colours and its depth."""
    views: dict[str, View] = {}
    for camera in cameras.values():
        view = View(camera.name, camera.width, camera.height, not camera.depth, camera.depth, camera.groups)
        other = views.setdefault(camera.name, view)
        both = replace(view, rgb=view.rgb or other.rgb, depth=view.depth or other.depth)
        if both != replace(other, rgb=both.rgb, depth=both.depth):
            raise SdpgError(f"the sources of camera '{camera.name}' differ in size or geom groups; make them alike")
        views[camera.name] = both
    return list(views.values())


def make_eyes(
    model: mujoco.MjModel,
    cameras: Mapping[str, Camera],
    num: int,
    threads: int,
    device: torch.device | str = "cpu",
    params: Sequence[str] = (),
) -> Eyes:
    """A renderer for the cameras, chosen by the scene and the device, of rows that differ in `params`; and its frame
    stacks."""
    return Eyes(make_renderer(model, num, views_of(cameras), threads, device=device, params=params), cameras)
