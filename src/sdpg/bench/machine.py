"""What a measurement ran on: kept beside every result."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

import mujoco
import numpy as np
import torch

import sdpg


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(threads: int | None = None) -> dict[str, object]:
    """Cores, processor, versions and threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "threads": threads or cores,
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {
            "sdpg": sdpg.__version__,
            "python": sys.version.split()[0],
            "mujoco": mujoco.__version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
    }
