"""Learning curves: a run's rows as columns of numbers, smoothed, averaged over runs, drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdpg.errors import SdpgError
from sdpg.run import listing, log

Column = NDArray[np.float64]

# what a curve may be drawn against -> (its name in metrics.jsonl, what it is multiplied by)
AXES: dict[str, tuple[str, float]] = {
    "iteration": ("iteration", 1),
    "env_steps": ("Train/env_steps", 1),
    "images": ("Train/images", 1),
    "minutes": ("seconds", 1 / 60),
}
STYLES = ("-", "--", ":", "-.")  # ten colours each


def load(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """config.json and the rows of a run folder."""
    config = listing.read_config(run)
    try:
        rows = log.read(run)
    except OSError as error:
        raise SdpgError(f"'{run}' has no curve: {log.METRICS}: {error.strerror or error}") from error
    if rows and "Train/images" not in rows[-1]:  # an older version's
        per_iteration = _images_per_iteration(config["cfg"])
        rows = [row | {"Train/images": per_iteration and per_iteration * row["iteration"]} for row in rows]
    return config, rows


def _images_per_iteration(cfg: Mapping[str, Any]) -> int | None:
    """N T for each camera that the policy sees; None if its task is not there to be asked, or known by no name."""
    if cfg.get("obs", "state") == "state":
        return 0
    from sdpg.tasks.base import make_task, named_in_file  # with torch, which older runs from pixels alone need

    try:
        task = make_task(named_in_file(cfg["task"]))
        cameras = sum(source in task.cameras for source in task.inputs[cfg["obs"]])
        return cameras * index(cfg["num_nominal"]) * index(cfg["algo"]["horizon"])
    except (SdpgError, KeyError, TypeError):
        return None


def number(value: Any, scale: float = 1) -> float | None:
    """Five digits are plenty; a missing or non-finite number is null."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) and scale == 1 else float(f"{value * scale:.5g}")


def column(values: Iterable[Any], scale: float = 1) -> Column:
    """NaN stands where there is no number."""
    return np.array([v * scale if isinstance(v, int | float) else np.nan for v in values], dtype=np.float64)


def thin(rows: Sequence[Any], points: int) -> Sequence[Any]:
    """At most `points` of them, evenly, the last one always among them."""
    stride = max(1, math.ceil(len(rows) / points))
    return rows[::-1][::stride][::-1]


def smooth(values: Column, window: int) -> Column:
    """The mean over `window` rows around each, as many as there are; where there was no number, there is none."""
    there = np.isfinite(values)
    before, after = (window - 1) // 2, window // 2

    def windowed(x: Column) -> Column:
        total = np.concatenate([[0.0], np.cumsum(x)])
        at = np.arange(len(x))
        return total[np.minimum(at + after + 1, len(x))] - total[np.maximum(at - before, 0)]

    count = windowed(there.astype(np.float64))
    return np.where(there, windowed(np.where(there, values, 0.0)) / np.maximum(count, 1.0), np.nan)


@dataclass(frozen=True)
class Line:
    """One line of a figure, NaN where it has a gap; with a band from `low` to `high` if it stands for several runs."""

    label: str
    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None


def mean(lines: Sequence[Line]) -> list[Line]:
    """Several runs as one line with a band, as far as all of them go; what one has beyond that is a line of its own.
    (A mean over those that are left would jump wherever a run ends.)"""
    lines = [line for line in map(_drawn, lines) if len(line.x)]
    if len(lines) < 2:
        return lines
    first, last = max(line.x[0] for line in lines), min(line.x[-1] for line in lines)
    grid = np.unique(np.concatenate([line.x for line in lines]))  # every x of any of them
    grid = grid[(first <= grid) & (grid <= last)]
    values = np.stack([np.interp(grid, line.x, line.y) for line in lines])  # (listing, grid)
    together = Line(lines[0].label, grid, values.mean(0), values.min(0), values.max(0))
    alone = []
    for line in lines:
        beyond = (line.x < first) | ((line.x >= last) & (line.x[-1] > last))
        alone.append(Line(line.label, line.x, np.where(beyond, line.y, np.nan)))
    return [line for line in (together, *alone) if np.isfinite(line.y).any()]


def _drawn(line: Line) -> Line:
    there = np.isfinite(line.x) & np.isfinite(line.y)
    return Line(line.label, line.x[there], line.y[there])


def draw(axes: Any, lines: Sequence[Line], labels: Sequence[str]) -> None:
    """On matplotlib axes: a colour per label, whose places in `labels` figures can share, a line per run."""
    named = set()
    for line in lines:
        color, style = look_of(labels.index(line.label))
        label = None if line.label in named else line.label
        axes.plot(line.x, line.y, color=color, ls=style, lw=1.2, alpha=0.85, label=label)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, lw=0)
        named.add(line.label)
    axes.grid(alpha=0.25)


def look_of(index: int) -> tuple[str, str]:
    """Colour and dashes of the index-th label."""
    return f"C{index % 10}", STYLES[index // 10 % len(STYLES)]
