"""Ranks of a test, without torchrun."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys

import torch

from helpers.runs import SRC, TESTS, subprocess_env
from sdpg.distributed import Group, join


class OneOf(Group):
    """A rank of several, to whom nobody speaks."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.local_size = rank, size, size


def ranks(module: str, act: str, *arguments: object, size: int = 2) -> None:
    """Calls the function `act` of a test module on every rank: act(group, *arguments). They are forked by a fresh
    process that has imported everything once."""
    script = (
        "import sys; from helpers import ranks; ranks._fork(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])"
    )
    env = subprocess_env() | {"PYTHONPATH": os.pathsep.join(map(str, (SRC, TESTS, TESTS / "unit", TESTS / "system")))}
    command = [sys.executable, "-c", script, str(size), module, act, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def _fork(size: int, module: str, act: str, arguments: list[str]) -> None:
    importlib.import_module(module)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(_rank, (size, port, module, act, arguments), size, start_method="fork")


def _rank(rank: int, size: int, port: int, module: str, act: str, arguments: list[str]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with join() as group:
        getattr(sys.modules[module], act)(group, *arguments)
