"""How much memory a run will take, of the machine or of its GPU; known before anything is allocated.

The estimate counts tensors, and is compared with what `sdpg bench memory` measures (docs/runs.md). Everything but the
networks grows with N, so a run that does not fit is refused with the largest N that does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import torch

from sdpg.algos.api import Need
from sdpg.build import cameras_of, compile_scene, shapes_of, views_of
from sdpg.config import TrainCfg
from sdpg.distributed import ALONE, Group
from sdpg.engines import choose_engine
from sdpg.errors import SdpgError
from sdpg.machine import GB, free_bytes, resident_bytes
from sdpg.render.choose import choose
from sdpg.render.sensor import most_late
from sdpg.run.failures import STEPS
from sdpg.tasks.base import make_task
from sdpg.types import Camera, Pipeline

# Resident after the first use, beyond what is imported already: measured, with threads' stacks and compiled code.
_RUNTIME = {"engine and torch": 90 * 2**20, "raster": 110 * 2**20, "warp": 300 * 2**20, "mujoco_warp": 40 * 2**20}
_SCRATCH = 1.6  # what mujoco_warp takes in all, compared with its state and results; measured
_HEADROOM = 0.95  # of what is free: the rest of the machine lives, too


@dataclass(frozen=True)
class Plan:
    """Bytes by purpose: those of the process, and those that each nominal with its branches adds."""

    fixed: dict[str, int]
    per_nominal: dict[str, int]
    num_nominal: int
    limit: float | None  # bytes that the run may have; None: unknown
    ranks: int = 1  # of several, this is the plan of each: its share of the nominals and of its machine
    fix: str = Need.fix  # if not even one nominal fits

    @property
    def parts(self) -> dict[str, int]:
        return self.fixed | {name: size * self.num_nominal for name, size in self.per_nominal.items()}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def largest(self) -> int:
        """Nominal worlds that fit into the limit."""
        if self.limit is None:
            return self.num_nominal
        return max(0, int((self.limit - sum(self.fixed.values())) // sum(self.per_nominal.values())))

    def facts(self) -> dict[str, Any]:
        return {
            "total_mb": self.total / 2**20,
            "limit_mb": None if self.limit is None else self.limit / 2**20,
            "parts_mb": {name: size / 2**20 for name, size in self.parts.items()},
            "ranks": self.ranks,
        }

    def require_room(self) -> None:
        largest = self.largest * self.ranks
        fix = f"give --num-nominal {largest} or less" if largest else self.fix
        who = "this run" if self.ranks == 1 else f"each of the {self.ranks} ranks"
        self._require_room(who, f"{fix}, or set --memory-gb if you know better")

    def require_room_for_episodes(self) -> None:
        self._require_room("this evaluation", f"give --episodes {max(1, self.largest)} or less")

    def _require_room(self, who: str, fix: str) -> None:
        if self.limit is not None and self.total > self.limit:
            needs, has = self.total / GB, self.limit / GB
            raise SdpgError(f"{who} would take about {needs:.1f} GB of memory and may have {has:.1f} GB; {fix}")


def make_plan(cfg: TrainCfg, group: Group = ALONE, learning: bool = True) -> Plan:
    """The plan of a run; without `learning`, that of an evaluation, which keeps nothing of the worlds it steps."""
    task = make_task(cfg.task, cfg.task_cfg)
    num_nominal = cfg.num_nominal // group.size
    engine = choose_engine(cfg.sim, cfg.device)
    model, k = compile_scene(task), 1 + cfg.num_auxiliary
    state = _state_bytes(model, 8 if engine.sim == "cpu" else 4)
    runtime, physics = _RUNTIME["engine and torch"], state
    if engine.sim == "warp":
        from sdpg.sim.warp import world_bytes

        physics += round(_SCRATCH * world_bytes(model))
        runtime += _RUNTIME["mujoco_warp"]
    cameras = cameras_of(task, cfg.obs)
    if cameras:
        runtime += _RUNTIME[choose(model, views_of(cameras), engine.device)[0]]
    shapes = shapes_of(task, cfg.obs, num_nominal, k, model)
    shapes = replace(shapes, directions=2 * model.nv + model.na + model.nu, world=physics // 3)
    need = cfg.algo.memory(shapes) if learning else Need()
    # A GPU's driver and libraries have taken theirs before it tells what is free.
    fixed = {"program": resident_bytes() + runtime if engine.device == "cpu" else 0, **need.fixed}
    # What the failure recorder remembers: the nominals' states; actions, controls and a fingerprint of every branch.
    remembered = max(STEPS, cfg.algo.history) if learning else 0
    history = remembered * (state + k * (4 * (task.action_size + model.nu) + 8))
    frames = 4 * sum(image.bytes for image in shapes.images)  # now, before, and in the renderer
    frames += sum(_camera_bytes(camera, task.step_seconds) for camera in cameras.values())
    per_nominal = {"physics": k * physics, "history": history, "frames": frames, **need.per_nominal}
    limit = _limit(cfg.memory_gb, group.local_size, engine.device)
    return Plan(fixed, per_nominal, num_nominal, limit, group.size, need.fix)


def _camera_bytes(camera: Camera, step_seconds: float) -> int:
    """What a pipeline and a sensor model take beside the frames: images as rendered, and those on their way."""
    if camera.pipeline == Pipeline() and camera.sensor is None:
        return 0
    late = most_late(camera.sensor, step_seconds) + 1 if camera.sensor is not None else 0
    return 4 * camera.channels * (3 * camera.height * camera.width + 2 * late * math.prod(camera.size))


def _state_bytes(model: mujoco.MjModel, wide: int) -> int:
    """Bytes of a world's state in numbers of `wide` bytes, with the copies that branching and resuming make."""
    return wide * 3 * mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION.value)


def _limit(memory_gb: float | None, processes: int, device: str) -> float | None:
    """The bytes that one of the run's processes on this machine may take."""
    if memory_gb is not None:
        return memory_gb * GB / processes
    if device == "cuda":
        sharing = math.ceil(processes / torch.cuda.device_count())  # ranks on this one's GPU
        return _HEADROOM * torch.cuda.mem_get_info()[0] / sharing
    free = free_bytes()
    return None if free is None else _HEADROOM * (free / processes + resident_bytes())
