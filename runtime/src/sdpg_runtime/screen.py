"""One screen of how it goes, and keys to go on. Plain ANSI."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from sdpg_runtime.machine import Wish

KEYS = {wish.value: wish for wish in Wish}


def lines(report: Mapping[str, Any], dry: bool = False) -> list[str]:
    """What there is to see."""
    mode = report["mode"].upper().replace("_", " ") + ("   (dry run: nothing is sent)" if dry else "")
    shown = [f"state       {mode}"]
    if report["reason"] or report["note"]:
        shown.append(f"why         {report['reason'] or report['note']}")
    missed = report["missed_deadlines"]
    shown.append(f"time        {report['seconds']:8.1f} s   ticks {report['ticks']}   missed deadlines {missed}")
    for name, title in (
        ("loop_ms", "loop"), ("late_ms", "woken late"), ("state_age_ms", "state age"), ("image_age_ms", "image age")
    ):  # fmt: skip
        p50, p99, most = (report[name][key] for key in ("p50", "p99", "max"))
        shown.append(f"{title:11} {p50:8.2f} ms p50 {p99:8.2f} p99 {most:8.2f} max")
    refused = report["refused_messages"]
    shown.append(f"messages    {report['sent']} sent   refused: {refused['crc']} CRC, {refused['malformed']} malformed")
    if report["log"] is not None:
        log = report["log"]
        shown.append(f"log         {log['path']}   lost {log['lost_records']} {log['trouble']}".rstrip())
    return shown


class Screen:
    """Redraws in place."""

    def __init__(self, out: TextIO):
        self._out, self._height = out, 0

    def draw(self, shown: list[str]) -> None:
        up = f"\x1b[{self._height}A" if self._height else ""
        rest = "\x1b[J"
        self._out.write(up + "".join(f"\x1b[2K{line}\n" for line in shown) + rest)
        self._out.flush()
        self._height = len(shown)


class Keys:
    """Single keys of a terminal, or characters of a pipe; `pressed` does not wait."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stdin
        self._before: list[Any] | None = None
        self._open = True

    def __enter__(self) -> Keys:
        try:
            self._fd = self._stream.fileno()
            if self._stream.isatty():
                self._before = termios.tcgetattr(self._fd)
                tty.setcbreak(self._fd)
        except (OSError, ValueError, termios.error):  # no stdin at all
            self._open = False
        return self

    def pressed(self) -> Wish | None:
        if not self._open or not select.select([self._fd], [], [], 0)[0]:
            return None
        key = os.read(self._fd, 1)  # past Python's buffer, of which select knows nothing
        self._open = bool(key)
        return KEYS.get(key.decode("ascii", "replace").lower())

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
