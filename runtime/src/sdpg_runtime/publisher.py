"""Sends the latest command over and over, 500 times a second, and damps when nobody makes new ones any more."""

from __future__ import annotations

import threading
import time
from typing import Any

from sdpg_runtime.link import Command, Link
from sdpg_runtime.timing import Clock, Pacer, Sleep

PERIOD = 0.002  # seconds


class Publisher:
    """`set` is the loop's, `step` the thread's. The thread only hands over what `set` has prepared."""

    def __init__(
        self,
        link: Link,
        damping: Command,
        lost_after: float,
        publish: bool = True,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ):
        self._clock, self._sleep, self._lost_after, self._publish = clock, sleep, lost_after, publish
        self._prepare = getattr(link, "prepare", lambda command: command)
        self._send = getattr(link, "send_prepared", link.send)
        self._damping = self._prepare(damping)
        self._current: Any = None  # what is sent; None: nothing yet
        self._beat = clock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None  # why it damps by itself
        self.sent = 0

    def set(self, command: Command | None) -> None:
        """A tick of the loop: what to send from now on."""
        if command is not None and self.trouble is None:
            self._current = self._prepare(command)
        self._beat = self._clock()

    @property
    def silence(self) -> float:
        """Seconds since the loop's last tick."""
        return self._clock() - self._beat

    def step(self) -> None:
        """One message."""
        silent = self.silence
        if self._current is None:
            return
        if silent > self._lost_after and self.trouble is None:
            self._give_up(f"the control loop stopped: no tick for {1000.0 * silent:.0f} ms")
        if not self._publish:
            return
        try:
            self._send(self._current)
            self.sent += 1
        except Exception as error:  # whatever the link's library raises; the thread must live on
            self._give_up(f"can't send: {type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        self.trouble = self.trouble or why
        self._current = self._damping

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pacer = Pacer(PERIOD, self._clock, self._sleep)
        while not self._stop.is_set():
            self.step()
            pacer.wait()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)
