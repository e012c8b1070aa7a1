"""What a measurement ran on: kept beside every result."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import torch

from sdpg.machine import default_threads
from sdpg.run.provenance import versions


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(threads: int | None = None) -> dict[str, object]:
    """Cores, processor, versions and threads."""
    cores = default_threads()
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "threads": threads or cores,
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }
