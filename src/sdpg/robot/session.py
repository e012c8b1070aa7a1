"""A stand-in from its start to its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdpg.camera import Sensor
from sdpg.declarations import check_camera
from sdpg.errors import SdpgError
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.robot import camera, report
from sdpg.robot.disturb import Disturbance
from sdpg.robot.inbox import Inbox
from sdpg.robot.loop import EVERY, Log, drive
from sdpg.robot.stand_in import Motors, Noise, StandIn
from sdpg.robot.wire import DdsWire
from sdpg.robot.world import TIMESTEP, Place, World, make_world
from sdpg.watch.film import write_video

_STRIDE = 2  # rows of the log between two images of a film: 25 a second


@dataclass(frozen=True)
class Plan:
    place: Place
    domain: int
    interface: str
    disturbance: Disturbance
    motors: Motors
    noise: Noise
    patience: float  # seconds without a sound command until the watchdog brakes
    sensor: Sensor | None  # of the camera; None: there is no camera
    seed: int


def run(plan: Plan, seconds: float | None, stop: Callable[[], bool]) -> tuple[World, Log, dict[str, Any]]:
    """Until `stop`, or for so many seconds of physics."""
    torch.set_num_threads(1)
    world = make_world(plan.place)
    check_camera(camera.SOURCE, replace(world.task.cameras[camera.SOURCE], sensor=plan.sensor))
    robot = StandIn(world, plan.motors, plan.noise, plan.seed)
    wire, inbox = DdsWire(plan.domain, plan.interface, plan.disturbance), Inbox(plan.patience)
    pose = process = None
    if plan.sensor is not None:
        pose = camera.SharedPose(world.model.nq)
        eye = camera.CameraPlan(plan.place, plan.sensor, plan.domain, plan.interface, plan.seed)
        process = camera.start(eye, pose)
    try:
        if process is not None and pose is not None:
            camera.wait(process, pose, stop)
        log, pace = drive(robot, wire, inbox, seconds, stop, pose)
    finally:
        seeing = process is not None and process.is_alive()
        if process is not None:
            process.terminate()
            process.join()
        wire.close()
    if pace.steps == 0:
        raise SdpgError("stopped before its first step: there is nothing to report")
    facts = report.walk(world, log, pace)
    facts["commands"] = inbox.facts()
    facts["wire"] = {
        name: {"lost": line.lost, "corrupted": line.corrupted, "on_purpose": asdict(line.disturbance)}
        | {"begins": line.begins if math.isfinite(line.begins) else None}  # seconds of CLOCK_MONOTONIC
        for name, line in (("commands", wire.inward), ("states", wire.outward))
    }
    if process is not None and pose is not None:
        facts["camera"] = {"pid": process.pid, "images": int(pose.sent.value), "alive_at_the_end": seeing}
    return world, log, facts


def film(world: World, log: Log, path: Path, size: int = 480) -> int:
    """Of what was logged, seen from beside; the number of images."""
    renderer = make_renderer(world.model, 1, [View("track", size, size)], threads=1)

    def images() -> Iterator[np.ndarray]:
        for qpos in log.rows()["qpos"][::_STRIDE]:
            rgb = renderer.render(torch.tensor(qpos, dtype=torch.float64)[None])["track"].rgb
            assert rgb is not None
            yield np.ascontiguousarray(rgb[0].permute(1, 2, 0).numpy())

    return write_video(path, images(), 1.0 / (_STRIDE * EVERY * TIMESTEP))
