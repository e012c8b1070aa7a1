"""The stand-in's depth camera, a process of its own: if it dies, the robot goes on without it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from ctypes import c_double
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any

import numpy as np
import torch

from sdpg.build import views_of
from sdpg.camera import Camera, Sensor
from sdpg.errors import SdpgError
from sdpg.render import sensor as model
from sdpg.render.choose import make_renderer
from sdpg.rng import RowRng
from sdpg.robot.world import Place, World, make_world

PERFECT = Sensor()
RATE = 30.0  # images a second, if the sensor model has none
SOURCE = "depth"  # of the task's cameras
_MILLISECOND = 1e-3
_TRIES = 100  # to read a pose that is not just being written


class SharedPose:
    """qpos and its time, from the robot's process to the camera's. No lock, which a killed process might hold: a count
    is odd while numbers are written."""

    def __init__(self, size: int):
        self._numbers = RawArray(c_double, 2 + size)  # the count, the time, qpos
        self.sent = RawValue(c_double, -1.0)  # images, counted by the camera; -1: it isn't ready yet

    def _seen(self) -> np.ndarray:
        return np.frombuffer(self._numbers)  # type: ignore[call-overload]

    def write(self, now: float, qpos: np.ndarray) -> None:
        numbers = self._seen()
        numbers[0] += 1.0
        numbers[1], numbers[2:] = now, qpos
        numbers[0] += 1.0

    def read(self) -> tuple[float, np.ndarray] | None:
        """None before the first."""
        numbers = self._seen()
        for _ in range(_TRIES):
            count = numbers[0]
            found = numbers.copy()
            if count % 2.0 == 0.0 and numbers[0] == count:
                return (float(found[1]), found[2:]) if count else None
        return None


class DepthCamera:
    """Images of the task's camera as they are before the policy's pipeline; with what the sensor model does to them."""

    def __init__(self, world: World, sensor: Sensor = PERFECT, seed: int = 0):
        camera = world.task.cameras[SOURCE]
        self.camera: Camera = replace(camera, sensor=sensor)
        self._renderer = make_renderer(world.model, 1, views_of({SOURCE: camera}), threads=1, kind="raster")
        self._rng = RowRng(seed, torch.zeros(1, dtype=torch.int64))
        self._looks = model.begun(sensor, self._rng, _MILLISECOND)

    @property
    def latency(self) -> float:
        """Seconds from the light to the policy, drawn once; rendering is a part of it if it does not take longer."""
        return float(self._looks["lag"][0]) * _MILLISECOND if "lag" in self._looks else 0.0

    def image(self, qpos: np.ndarray) -> np.ndarray:
        """(1, H, W) float32 metres, inf where nothing is, 0 where the camera does not know."""
        depth = self._renderer.render(torch.from_numpy(qpos)[None])[self.camera.name].depth
        assert depth is not None
        return model.sensed(depth[:, None], self.camera, self._looks, self._rng)[0].numpy()


@dataclass(frozen=True)
class CameraPlan:
    """All that the camera's process has to know."""

    place: Place
    sensor: Sensor
    domain: int
    interface: str
    seed: int


def start(plan: CameraPlan, pose: SharedPose) -> BaseProcess:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_main, args=(plan, pose, os.getpid()), name="camera", daemon=True)
    process.start()
    return process


def wait(process: BaseProcess, pose: SharedPose, stop: Callable[[], bool]) -> None:
    """Until it is ready, which takes some seconds: a robot that is switched on has a camera."""
    while pose.sent.value < 0.0 and not stop():
        process.join(0.05)
        if not process.is_alive():
            raise SdpgError("the camera's process ended before its first image; --no-camera leaves it out")


def _main(plan: CameraPlan, pose: SharedPose, parent: int) -> None:
    """Until the robot's process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the robot's to see
    torch.set_num_threads(1)
    from sdpg_runtime.dds import messages
    from sdpg_runtime.dds.node import Node

    camera = DepthCamera(make_world(plan.place), plan.sensor, plan.seed)
    node = Node(plan.domain, plan.interface)
    writer = node.writer(messages.IMAGE, messages.Image_)
    waiting: deque[tuple[float, Any]] = deque()  # images on their way, and when they are there
    pose.sent.value = 0.0
    number, due, rate = 0, time.monotonic(), plan.sensor.rate or RATE
    while os.getppid() == parent:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            writer.write(waiting.popleft()[1])
            pose.sent.value += 1.0
        if now >= due:
            due = max(due + 1.0 / rate, now)  # those that are missed are left out
            if (seen := pose.read()) is not None:
                taken, image = seen[0], camera.image(seen[1])
                facts = (camera.camera.name, number, taken, list(image.shape), str(image.dtype))
                message = messages.Image_(*facts, image.tobytes())
                waiting.append((taken + camera.latency, message))
                number += 1
                continue
        next_time = min(due, waiting[0][0]) if waiting else due
        time.sleep(max(0.0, next_time - time.monotonic()))
