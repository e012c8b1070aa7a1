"""The machine that this process runs on: its threads, its allocator, its memory."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from sdpg.errors import SdpgError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


def default_threads(processes: int = 1) -> int:
    """The cores this process may use, if it shares them with others like it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def use_threads(threads: int) -> None:
    """Set the process up for heavy work: torch's threads, and an allocator that keeps what was freed. By default glibc
    gives what a pass through a network took back to the system, which zeroes every page when it is asked for it again:
    a fifth of an actor step on images. Blocks larger than any of a pass still come from the system: they would leave
    holes."""
    if threads > default_threads():
        _require_startable_threads(threads)
    torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # macOS and Windows have no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that it takes
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _require_startable_threads(threads: int) -> None:
    """Where processes are limited, OpenMP and the engine end in a segmentation fault. So this many are started once, by
    way of trial: physics, torch, its gradients and images have a pool each."""
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
def collecting(images: bool) -> Iterator[None]:
    """Torch's threads while experience is collected, with or without images: the small operations of vector policies
    gain nothing from a second thread, and threads that wait would take the cores from physics. Convolutions need all of
    them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if images else 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


GB = 2**30


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
