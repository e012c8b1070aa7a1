"""What a run will take of the machine's memory, or of its GPU's if it runs there, told before anything is allocated.

An estimate by counting tensors, held against what `sdpg bench memory` measures (docs/runs.md). Everything but the
networks grows with N, so a run that does not fit is refused with the largest N that does.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mujoco
import torch

from sdpg.build import cameras_of, choose_engine, compile_scene, views_of
from sdpg.config import TrainCfg
from sdpg.distributed import ALONE, Group
from sdpg.errors import SdpgError
from sdpg.nn.encoders import picture_cost
from sdpg.quarantine import STEPS
from sdpg.render.choose import choose
from sdpg.tasks.base import Task, make_task

GB = 2**30
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

    def refuse_what_does_not_fit(self) -> None:
        largest = self.largest * self.ranks
        fix = f"give --num-nominal {largest} or less" if largest else "give fewer --num-auxiliary"
        who = "this run" if self.ranks == 1 else f"each of the {self.ranks} ranks"
        self._refuse(who, f"{fix}, or set --memory-gb if you know better")

    def refuse_episodes_that_do_not_fit(self) -> None:
        """Of an evaluation: worlds that are stepped and seen, of whom nothing is kept."""
        kept = {name: size for name, size in self.per_nominal.items() if name not in ("segment", "history")}
        plan = replace(self, per_nominal=kept)
        plan._refuse("this evaluation", f"give --episodes {max(1, plan.largest)} or less")

    def _refuse(self, who: str, fix: str) -> None:
        if self.limit is not None and self.total > self.limit:
            needs, has = self.total / GB, self.limit / GB
            raise SdpgError(f"{who} would take about {needs:.1f} GB of memory and may have {has:.1f} GB; {fix}")


def make_plan(cfg: TrainCfg, group: Group = ALONE) -> Plan:
    task = make_task(cfg.task)
    num_nominal = cfg.num_nominal // group.size
    engine = choose_engine(cfg.sim, cfg.device)
    model, k, t = compile_scene(task), 1 + cfg.num_auxiliary, cfg.algo.horizon
    rows, rollout = _world_bytes(task, model, 8 if engine.sim == "cpu" else 4)
    images, activations, parameters, runtime, physics = 0, 0, 0, _RUNTIME["engine and torch"], rows
    if engine.sim == "warp":
        from sdpg.sim.warp import world_bytes

        physics += round(_SCRATCH * world_bytes(model))
        runtime += _RUNTIME["mujoco_warp"]
    cameras = cameras_of(task, cfg.obs)
    for camera in cameras.values():
        channels = camera.stack * (1 if camera.depth else 3)
        size, wide = channels * camera.height * camera.width, 4 if camera.depth else 1
        cost = picture_cost(
            (channels, camera.height, camera.width), camera.depth, cfg.algo.encoder, cfg.algo.encoder_features
        )
        images += size * wide * (t + 4)  # a segment of what was seen; the frames now, before, and in the renderer
        activations += 4 * (size + 3 * cost.outputs)  # the input as floats; outputs, what ReLU keeps, their gradients
        parameters += cost.parameters
    if cameras:
        runtime += _RUNTIME[choose(model, views_of(cameras), engine.device)[0]]
    samples = min(cfg.algo.actor_chunk, t * num_nominal)
    fixed = {
        # A GPU's driver and libraries have taken theirs before it tells what is free.
        "program": resident_bytes() + runtime if engine.device == "cpu" else 0,
        # weights, gradients, two moments; as many again in passing when a checkpoint is written
        "networks": 4 * 8 * parameters,
        "passes through the networks": activations * samples,
    }
    # What the quarantine remembers: the nominals' rows; actions, controls and a fingerprint of every branch.
    memory = max(STEPS, t) * (rows + k * (4 * (task.action_size + model.nu) + 8))
    per_nominal = {"physics": k * physics, "segment": k * t * rollout, "history": memory, "images": images}
    limit = _limit(cfg.memory_gb, group.local_size, engine.device)
    return Plan(fixed, per_nominal, num_nominal, limit, group.size)


def _world_bytes(task: Task, model: mujoco.MjModel, wide: int) -> tuple[int, int]:
    """Of a world with numbers of `wide` bytes, and of each of its steps in a segment."""
    integration = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION.value)
    rows = wide * 3 * integration  # the rows, and copies of them when branching and when a run is resumed
    d, a = task.state_size, task.action_size
    # Before and after the step, once in a list and once stacked; normalised and shuffled for the critic. Noise, flags.
    return rows, 4 * (6 * d + 3 * a) + 64


def _limit(memory_gb: float | None, processes: int, device: str) -> float | None:
    """Of one of the run's processes on this machine."""
    if memory_gb is not None:
        return memory_gb * GB / processes
    if device == "cuda":
        sharing = math.ceil(processes / torch.cuda.device_count())  # ranks on this one's GPU
        return _HEADROOM * torch.cuda.mem_get_info()[0] / sharing
    free = free_bytes()
    return None if free is None else _HEADROOM * (free / processes + resident_bytes())


def free_bytes() -> int | None:
    """What this process may still take: of the machine, and of the container it runs in; None if nobody tells."""
    limits = []
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            root = Path("/sys/fs/cgroup")
            limits.append(int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):  # no container, or "max"
            continue
    return min(limits) if limits else None


def resident_bytes() -> int:
    """Memory of this process."""
    return _own_memory("VmRSS")


def peak_bytes() -> int:
    """The most that it ever was."""
    return _own_memory("VmHWM")


def _own_memory(field: str) -> int:
    try:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status[field].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux. On Linux this would begin with the peak of the parent process
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
        return peak * (1 if sys.platform == "darwin" else 1024)
