"""Fixtures that several modules share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.runs import make_run
from helpers.viewer import SIZE

from sdpg.watch.browser import Server, Show, Source


@pytest.fixture
def present() -> Iterator[Callable[[Source], Server]]:
    """Shows a source, in threads that end with the test."""
    stop = threading.Event()
    servers: list[Server] = []
    loops: list[threading.Thread] = []

    def make(source: Source) -> Server:
        server, show = Server(0), Show(source, "the <title>", SIZE)
        servers.append(server)
        server.present(show)
        loops.append(threading.Thread(target=show.run, args=(stop.is_set,)))
        loops[-1].start()
        return server

    yield make
    stop.set()
    for loop in loops:
        loop.join()
    for server in servers:
        server.server_close()


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Two seeds of one setup, and another setup that sees pixels."""
    return [
        make_run(tmp_path / "runs" / "one", [None, 2.0, 4.0], seed=0),
        make_run(tmp_path / "runs" / "two", [1.0, 4.0, 8.0], seed=1, seconds=3.0),
        make_run(tmp_path / "runs" / "px" / "three", [0.0, 9.0, 5.0], obs="pixels", algo={"horizon": 16}),
    ]
