"""The modules `warp` and `mujoco_warp`, for physics and for images: imported late, because that takes seconds; and
Warp beside torch on a device."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@cache
def engine() -> tuple[Any, Any]:
    """(warp, mujoco_warp), without their greetings."""
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING  # it would greet us on standard output
    with _without_words("Could not find or load the NVIDIA CUDA driver"):
        wp.init()
    import mujoco_warp as mjw

    return wp, mjw


def numbered(device: torch.device | str) -> torch.device:
    """The device with its number, as both libraries name it: "cuda" is torch's current one."""
    import torch

    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


@contextmanager
def in_order(device: torch.device) -> Iterator[None]:
    """Within, Warp works on the device and, on a GPU, on the stream that torch is on: each sees what the other has
    written before, and nobody waits on the host. Warp's stream of before is waited for on entry; two streams of torch
    that work on the same arrays at a time are not kept apart."""
    wp = engine()[0]
    with wp.ScopedDevice(wp.device_from_torch(device)):  # the process's default, not the thread's
        if device.type == "cpu":
            yield
            return
        with wp.ScopedStream(wp.stream_from_torch(device), sync_enter=True):
            yield


@contextmanager
def _without_words(words: str) -> Iterator[None]:
    """A library's failure_reason of having no GPU says nothing to somebody who has none; all else is passed on."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines(keepends=True):
                if words not in line:
                    sys.stderr.write(line)
