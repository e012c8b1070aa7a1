"""Who is told how far slow preparations are. (By itself, so that listening imports nothing.)"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, int, int], None]
"""Called with what is being made, how many of it are done, and of how many."""

_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def tell(what: str, done: int, total: int) -> None:
    for listener in _listeners:
        listener(what, done, total)
