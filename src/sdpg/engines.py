"""Which engine computes the physics on this machine, and why. The one place that names engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mujoco
import torch

from sdpg.errors import SdpgError
from sdpg.sim.api import Simulator
from sdpg.sim.cpu import CpuSim
from sdpg.warp_engine import engine


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
