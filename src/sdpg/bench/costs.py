"""What an iteration costs, as a formula: every phase is calls, work and messages, and each of them has its price.

    seconds of a phase = calls * fixed + work * (serial + parallel / threads + crowding * (busy - 1) / threads)
                       + messages * message

`busy` = ranks * threads is how many cores of the machine work at a time; `work` is that of one rank. The amounts follow
from the configuration, the prices are fitted to measured seconds, each phase by itself, by least squares of the
relative error among prices that are not negative.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdpg.algos.api import Shapes, Work
from sdpg.build import cameras_of, shapes_of
from sdpg.config import TrainCfg
from sdpg.errors import SdpgError
from sdpg.tasks.base import Task
from sdpg.types import Camera

Prices = dict[str, float]
"""Name -> seconds per call, per unit of work or per message."""
Seconds = dict[str, float]
"""Phase -> seconds of an iteration."""

# Phase -> what a call is, what a unit of its work is.
PHASES = {
    "physics": ("control step", "physics step of a world"),
    "rendering": ("control step", "pixel"),
    "acting": ("control step", "multiply-add of the policy"),
    "actor update": ("pass", "multiply-add of the policy"),
    "critic update": ("optimiser step", "multiply-add of the critic"),
    "the rest": ("control step", "control step of a world"),
    "logging": ("iteration", "iteration"),
}
PRICES = ("fixed", "serial", "parallel", "crowding", "message")


@dataclass(frozen=True)
class Setup:
    """What is varied. `num_nominal` is that of all ranks, `threads` are those of each."""

    num_nominal: int
    num_auxiliary: int
    horizon: int
    threads: int = 1
    ranks: int = 1
    size: int | None = None  # width of the images; None: as the task has them

    @property
    def name(self) -> str:
        images = f", {self.size} pixels" if self.size is not None else ""
        shape = f"N {self.num_nominal}, M {self.num_auxiliary}, T {self.horizon}{images}"
        return f"{shape}; {self.ranks} x {self.threads}"


def amounts_of(work: Work, setup: Setup) -> list[float]:
    """In the order of PRICES."""
    share, busy = work.units / setup.threads, setup.ranks * setup.threads
    return [work.calls, work.units, share, share * (busy - 1), work.messages]


def resized(cameras: Mapping[str, Camera], size: int | None) -> dict[str, Camera]:
    """With images `size` pixels wide: all cameras by the factor of the first."""
    if size is None or not cameras:
        return dict(cameras)
    factor = size / next(iter(cameras.values())).size[1]

    def as_large(camera: Camera) -> Camera:
        height, width = (round(side * factor) for side in camera.size)  # of what a policy sees
        pipeline = replace(camera.pipeline, crop=(0, 0, 0, 0), width=None, height=None)
        return replace(camera, width=width, height=height, pipeline=pipeline)

    return {name: as_large(camera) for name, camera in cameras.items()}


def configured(cfg: TrainCfg, setup: Setup) -> TrainCfg:
    algo = replace(cfg.algo, horizon=setup.horizon)  # type: ignore[call-arg]  # of those that have a cost model
    return replace(
        cfg, num_nominal=setup.num_nominal, num_auxiliary=setup.num_auxiliary, threads=setup.threads, algo=algo
    )


def work(cfg: TrainCfg, task: Task, setup: Setup) -> dict[str, Work]:
    """The amounts of each phase that `setup` has."""
    if not cfg.algo.work(Shapes(1, 1, 1, 1), 1):
        raise SdpgError(f"there is no model of what {cfg.algorithm} costs; give another --algorithm")
    t, ranks = setup.horizon, setup.ranks
    cameras = resized(cameras_of(task, cfg.obs), setup.size)
    rows = setup.num_nominal // ranks
    shapes = shapes_of(task, cfg.obs, rows, 1 + setup.num_auxiliary, cameras=cameras)
    learning = configured(cfg, setup).algo.work(shapes, ranks)
    worlds, pixels = rows * shapes.branches, sum(c.width * c.height for c in cameras.values())
    return {
        "physics": Work(t, t * worlds * task.substeps),
        **({"rendering": Work(t, t * rows * pixels)} if cameras else {}),
        **learning,
        "the rest": Work(t, t * worlds),
        "logging": Work(1, 0, 1.0 if ranks > 1 else 0.0),
    }


# --- the prices -------------------------------------------------------------------------------------------------------


def fit(
    setups: Sequence[Setup], amounts: Sequence[Mapping[str, Work]], seconds: Sequence[Mapping[str, float]]
) -> dict[str, Prices]:
    """Phase -> its prices, from the measured seconds of each phase of each setup."""
    prices = {}
    for phase in amounts[0]:
        rows = np.array([amounts_of(a[phase], s) for a, s in zip(amounts, setups, strict=True)])  # (setups, prices)
        measured = np.array([max(row[phase], 1e-9) for row in seconds])
        values = nonnegative_least_squares(rows / measured[:, None], np.ones(len(measured)))
        prices[phase] = dict(zip(PRICES, values.tolist(), strict=True))
    return prices


def nonnegative_least_squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x >= 0 (n,) with the least |a x - b|, exactly, for a few columns: the best of all sets of columns whose own least
    squares have no negative. Of sets that do equally well, the smallest."""
    n = a.shape[1]
    scale = np.linalg.norm(a, axis=0)
    used = [i for i in range(n) if scale[i] > 0]
    best, least = np.zeros(n), float(np.linalg.norm(b))
    for count in range(1, len(used) + 1):
        for columns in map(list, itertools.combinations(used, count)):
            x, _, rank, _ = np.linalg.lstsq(a[:, columns] / scale[columns], b, rcond=1e-8)
            error = float(np.linalg.norm(a[:, columns] @ (x / scale[columns]) - b))
            if rank == count and x.min() >= 0 and error < least * (1 - 1e-9):
                best, least = np.zeros(n), error
                best[columns] = x / scale[columns]
    return best


def predict(setup: Setup, amounts: Mapping[str, Work], prices: Mapping[str, Prices]) -> Seconds:
    return {
        phase: sum(amount * prices[phase][name] for amount, name in zip(amounts_of(w, setup), PRICES, strict=True))
        for phase, w in amounts.items()
    }


def unit(phase: str, price: str) -> str:
    call, of_work = PHASES[phase]
    if price == "message":
        return "seconds per message"
    if price == "fixed":
        return f"seconds per {call}"
    return f"seconds per {of_work}" + (" and further busy core" if price == "crowding" else "")


# --- machines that are not here ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """A card as public sources describe it, and what is assumed of it beyond them."""

    name: str = "RTX 4080"
    physics_steps: float = 3_973_340 * 0.39  # a second
    pixels: float = 755_039 * 64 * 64 * 0.39  # a second
    flops: float = 48.7e12
    efficiency: float = 0.3
    bandwidth: float = 717e9  # bytes a second
    world_bytes: float = 1000.0  # that the rest reads and writes for a world and control step
    message: float = 50e-6  # seconds of one exchange between cards


ASSUMPTIONS = [
    "fixed: as measured on this machine. It is Python that issues operations, and a GPU does not shorten it.",
    "physics: 3,973,340 steps/s of a humanoid, 8192 worlds, RTX PRO 6000 Blackwell (mujoco_warp pull request 1060), "
    "times 0.39 for an RTX 4080 (48.7 of 125 TFLOP/s float32; 717 of 1792 GB/s, 0.40). Any task is taken to be as "
    "heavy as the humanoid.",
    "rendering: 755,039 images/s of 64 x 64 pixels, primitives, 8192 worlds (mujoco_warp pull request 1419, which "
    "does not name its card), times 0.39. Cost by the pixel; that a few worlds do not fill a card is left out.",
    "networks: 2 operations a multiply-add, three times as many where gradients are taken, at 30 % of 48.7 TFLOP/s.",
    "the rest: 1000 bytes a world and control step at 717 GB/s.",
    "several GPUs: the rows are shared evenly, one message of 50 microseconds per optimiser step.",
]


def on_gpu(setup: Setup, amounts: Mapping[str, Work], prices: Mapping[str, Prices], gpu: Gpu) -> Seconds:
    """Seconds by phase on `setup.ranks` cards."""
    rate = gpu.flops * gpu.efficiency
    per_unit = {
        "physics": 1 / gpu.physics_steps,
        "rendering": 1 / gpu.pixels,
        "acting": 2 / rate,
        "actor update": 6 / rate,
        "critic update": 6 / rate,
        "the rest": gpu.world_bytes / gpu.bandwidth,
        "logging": 0.0,
    }
    return {
        phase: w.calls * prices[phase]["fixed"] + w.units * per_unit[phase] + w.messages * gpu.message
        for phase, w in amounts.items()
    }


def summary(errors: Sequence[float]) -> dict[str, Any]:
    """Relative errors: the largest, and the mean of their sizes."""
    sizes = [abs(error) for error in errors]
    return {"worst": max(sizes), "mean": sum(sizes) / len(sizes)} if sizes else {"worst": None, "mean": None}
