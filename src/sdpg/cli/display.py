"""The live display of a training run, and tables."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:  # a table of runs does not wait for torch
    from sdpg.config import TrainCfg
    from sdpg.types import Progress


class Display:
    """Progress of a run: a live line on a terminal, a plain line every ten seconds elsewhere."""

    def __init__(self, cfg: TrainCfg, to_stderr: bool, quiet: bool):
        self.cfg, self.quiet = cfg, quiet
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self.live: Any = None
        self.shown = -math.inf
        self.first: tuple[int, float] | None = None  # iteration and seconds when this session began

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self.quiet:
            from rich.live import Live

            self.live = Live("", console=self.console, refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.__exit__(None, None, None)

    def __call__(self, what: str, facts: Mapping[str, Any]) -> None:
        if what == "warning":
            self._print(f"warning: {facts['message']}", stderr=True)
        elif self.quiet:
            return
        elif what == "plan":
            self._print(_memory(facts))
        elif what == "start":
            how = "going on" if facts["iteration"] else "training"
            worlds = f"{self.cfg.num_nominal} x (1 + {self.cfg.num_auxiliary}) worlds, {facts['threads']} threads"
            if facts.get("sim") == "warp":
                worlds += f", mujoco_warp on {facts['device']}"
            if facts["ranks"] > 1:
                worlds += f" on each of {facts['ranks']} ranks"
            self._print(f"{how}: {facts['task']}, {worlds}, in {facts['run']}")
        elif what == "schedule":
            self._print(f"time for about {facts['iterations']} iterations: learning rates are scheduled over these")
        elif what == "iteration":
            self._iteration(facts)
        elif what == "end":
            self._print(f"{_END[facts['reason']]} after iteration {facts['iteration']}, {facts['seconds']:.0f} s")
            if facts["iteration"]:
                typed = f" --task {self.cfg.task}" if ":" in self.cfg.task else ""
                self._print(f"look at it: sdpg eval {facts['run']}{typed}")

    def _print(self, text: str, stderr: bool = False) -> None:
        if stderr and self.live is None:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        else:
            self.console.print(text, markup=False)

    def _iteration(self, row: Mapping[str, Any]) -> None:
        iteration, seconds = row["iteration"], row["seconds"]
        self.first = self.first or (iteration, seconds)
        left = self._seconds_left(iteration, seconds)
        line = (
            f"iteration {iteration}/{self.cfg.iterations}  return {_number(row['Train/mean_reward'], '.1f')}  "
            f"length {_number(row['Train/mean_episode_length'], '.0f')}  {row['Perf/total_fps']:,.0f} steps/s  "
            f"{_duration(seconds)} gone, {_duration(left)} left"
        )
        if self.live is not None:
            self.live.update(line)
        elif time.monotonic() - self.shown >= 10.0 or iteration == self.cfg.iterations:
            self.shown = time.monotonic()
            self._print(line)

    def _seconds_left(self, iteration: int, seconds: float) -> float:
        first_iteration, first_seconds = self.first or (iteration, seconds)
        pace = (seconds - first_seconds) / (iteration - first_iteration) if iteration > first_iteration else math.nan
        left = (self.cfg.iterations - iteration) * pace
        if self.cfg.minutes is not None:
            budget = max(0.0, 60.0 * self.cfg.minutes - seconds)
            left = budget if math.isnan(left) else min(left, budget)
        return left


def _memory(facts: Mapping[str, Any]) -> str:
    parts = sorted(facts["parts_mb"].items(), key=lambda part: -part[1])
    told = ", ".join(f"{name} {size:.0f}" for name, size in parts if size >= 1.0)
    limit = "" if facts["limit_mb"] is None else f" of {facts['limit_mb'] / 1024:.1f} GB"
    rank = "" if facts["ranks"] == 1 else " per rank"
    return f"memory: about {facts['total_mb'] / 1024:.1f}{limit}{rank} ({told} MB)"


_END = {"iterations": "finished", "minutes": "time is up", "stopped": "stopped, saved"}


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)  # no episode has ended yet


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def progress(what: str) -> Progress:
    """A bar on standard error if that is a terminal. The steps may end before it does."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return iter
    from rich.progress import track

    return partial(track, description=what, console=console, transient=True)


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str, bool], None]]:
    """For what takes hours: (line, passing) on standard error. A passing line is shown on a terminal only, until the
    next one."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda line, passing: None if passing else console.print(line, markup=False)
        return
    status = console.status("")

    def tell(line: str, passing: bool) -> None:
        if not passing:
            console.print(line, markup=False)
        status.update(escape(line))
        status.start()

    try:
        yield tell
    finally:
        status.stop()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> None:
    """Boxed on a terminal, plain aligned lines elsewhere; `right`: columns that stand to the right."""
    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table, soft_wrap=False)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for line in (header, *rows):
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        console.print("  ".join(cells).rstrip(), markup=False)
