"""Runs side by side: one PNG and one page that works offline: curves, final numbers, the options that differ."""

from __future__ import annotations

import base64
import difflib
import html
import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from sdpg.errors import SdpgError
from sdpg.ranges import require_in_range
from sdpg.report import curves
from sdpg.report.curves import Column, Line
from sdpg.run import listing
from sdpg.run.listing import RETURN

PANELS = {
    "iteration": "iterations",
    "env_steps": "environment steps",
    "images": "rendered images",
    "minutes": "minutes",
}
POINTS = 500  # of a line on the page


@dataclass(frozen=True)
class Options:
    """Learning curves of runs in one PNG and one HTML page: `sdpg compare RUN RUN ...`."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders."""
    out: str = "compare"
    """Writes OUT.png and OUT.html."""
    metric: str = RETURN
    """A name of docs/metrics.md."""
    smooth: int = 1
    """Draw the mean over this many iterations around each."""
    group: bool = False
    """Runs that differ only in the seed become one line, their mean, with a band from the lowest to the highest."""
    json: bool = False
    """One JSON object on standard output."""


@dataclass(frozen=True)
class Curve:
    """A run as it is compared."""

    label: str
    info: listing.Run
    options: Mapping[str, Any]  # flat: "algo.horizon": 32
    axes: Mapping[str, Column]
    y: Column  # the metric, as logged
    measures: Mapping[str, float | None]  # of its last episodes, as the task named them


def compare(options: Options, of_the_session: Collection[str] = ()) -> dict[str, Any]:
    """Writes both files; what is in them. `of_the_session`: options that do not make another run, such as threads."""
    if not options.runs:
        raise SdpgError("which runs? sdpg compare RUN RUN ... (`sdpg runs` lists them)")
    require_in_range(vars(options))
    if options.out.endswith(("/", os.sep)):
        raise SdpgError(f"out '{options.out}' is a folder; give it a name, such as {options.out}compare")
    found = _load(options.runs, options.metric)
    labels = _groups(found, of_the_session) if options.group else [curve.label for curve in found]
    panels = {axis: _lines(found, labels, axis, options.smooth) for axis in PANELS}
    png, page = Path(f"{options.out}.png"), Path(f"{options.out}.html")
    png.parent.mkdir(parents=True, exist_ok=True)
    _figure(png, panels, list(dict.fromkeys(labels)), options.metric)
    results = [_result(curve, label) for curve, label in zip(found, labels, strict=True)]
    differences = _differences(found)
    page.write_text(_page(options, panels, results, differences, png.read_bytes()), encoding="utf-8")
    return {
        "png": str(png),
        "html": str(page),
        "metric": options.metric,
        "runs": results,
        "differences": {name: list(values) for name, values in differences.items()},
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def _load(folders: Sequence[Path], metric: str) -> list[Curve]:
    found, known = [], set()
    for folder, label in zip(folders, _labels(folders), strict=True):
        config, rows = curves.load(folder)
        known |= {name for row in rows[-1:] for name in row}
        versions = (config["sessions"] or [{}])[-1].get("versions")
        found.append(
            Curve(
                label=label,
                info=listing.look(folder),
                options=_flat(config["cfg"]) | _flat({"versions": versions or {}}),
                axes={
                    axis: curves.column((row.get(key) for row in rows), scale)
                    for axis, (key, scale) in curves.AXES.items()
                },
                y=curves.column(row.get(metric) for row in rows),
                measures={name: rows[-1][name] for name in (rows[-1] if rows else ()) if name.startswith("Episode/")},
            )
        )
    if not any(np.isfinite(curve.y).any() for curve in found):
        near = difflib.get_close_matches(metric, known, 1)
        hint = f"did you mean {near[0]}?" if near and near[0] != metric else "docs/metrics.md lists the metrics"
        raise SdpgError(f"--metric: no number '{metric}' in any of these runs; {hint}")
    return found


def _labels(folders: Sequence[Path]) -> list[str]:
    """What their paths have not in common."""
    paths = [folder.resolve() for folder in folders]
    twice = [folder for folder, path in zip(folders, paths, strict=True) if paths.count(path) > 1]
    if twice:
        raise SdpgError(f"run '{twice[0]}' is given twice; give each run once")
    root = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(root).as_posix() for path in paths]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _differences(found: Sequence[Curve]) -> dict[str, list[Any]]:
    """Options that are not the same in all runs -> each run's value; "-" in a run that has no such option."""
    names = dict.fromkeys(name for curve in found for name in curve.options)
    table = {name: [curve.options.get(name, "-") for curve in found] for name in names}
    return {name: values for name, values in table.items() if any(value != values[0] for value in values)}


def _groups(found: Sequence[Curve], of_the_session: Collection[str]) -> list[str]:
    """A label per run; runs that differ in their seeds alone share one."""

    def setup(curve: Curve) -> str:
        aside = {"seed", *of_the_session}
        if curve.options.get("minutes") is not None:  # then these follow from the pace of the machine
            aside |= {"algo.schedule_iterations", "algo.schedule_from"}
        kept = {k: v for k, v in curve.options.items() if k not in aside and not k.startswith("versions.")}
        return json.dumps(kept, sort_keys=True)

    members: dict[str, list[Curve]] = {}
    for curve in found:
        members.setdefault(setup(curve), []).append(curve)
    labels = {
        key: group[0].label + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        for key, group in members.items()
    }
    return [labels[setup(curve)] for curve in found]


# --- numbers ----------------------------------------------------------------------------------------------------------


def _lines(found: Sequence[Curve], labels: Sequence[str], axis: str, window: int) -> list[Line]:
    """The lines of every label; a run with nothing on this axis, such as images of a policy from state, has none."""
    members: dict[str, list[Line]] = {}
    for curve, label in zip(found, labels, strict=True):
        x = curve.axes[axis]
        if np.isfinite(x).any() and np.nanmax(x) > 0:
            members.setdefault(label, []).append(Line(label, x, curves.smooth(curve.y, window)))
    return [line for lines in members.values() for line in curves.mean(lines)]


def _result(curve: Curve, label: str) -> dict[str, Any]:
    there = np.flatnonzero(np.isfinite(curve.y))
    best = there[np.argmax(curve.y[there])] if len(there) else None
    return {
        "run": curve.label,
        "label": label,
        "task": curve.info.task,
        "obs": curve.info.obs,
        "algorithm": curve.info.algorithm,
        "seed": curve.info.seed,
        "state": curve.info.state,
        **{axis: _at_the_end(x) for axis, x in curve.axes.items()},  # iteration, env_steps, images, minutes
        "last": curves.number(float(curve.y[there[-1]])) if len(there) else None,
        "highest": None if best is None else curves.number(float(curve.y[best])),
        "highest_at": None if best is None else int(curve.axes["iteration"][best]),
        "measures": dict(curve.measures),
    }


def _at_the_end(x: Column) -> float | None:
    """Counts keep all of their digits."""
    value = float(x[-1]) if len(x) else math.nan
    return int(value) if value.is_integer() else round(value, 2) if math.isfinite(value) else None


def table(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """What compare() says of its runs, as lines of text under HEADER."""
    names = measures(results)
    return [
        (*(_cell(result[name]) for name in HEADER), *(_cell(result["measures"].get(name)) for name in names))
        for result in results
    ]


def measures(results: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Those that any of the runs has: columns beyond HEADER."""
    return tuple(dict.fromkeys(name for result in results for name in result["measures"]))


HEADER = ("run", "state", "iteration", "minutes", "last", "highest", "highest_at")

# --- the figure and the page ------------------------------------------------------------------------------------------


def _figure(path: Path, panels: Mapping[str, Sequence[Line]], labels: Sequence[str], metric: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, 2, figsize=(11.0, 7.5), layout="constrained")
    for axes, (axis, lines) in zip(grid.flat, panels.items(), strict=True):
        curves.draw(axes, lines, labels)
        axes.set(xlabel=PANELS[axis], ylabel=metric)
        if not lines:
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, _nothing(axis), transform=axes.transAxes, ha="center", color="gray")
    handles, names = grid.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _nothing(axis: str) -> str:
    return "no run renders images" if axis == "images" else f"no {PANELS[axis]}"


def _page(
    options: Options,
    panels: Mapping[str, Sequence[Line]],
    results: Sequence[dict[str, Any]],
    differences: Mapping[str, Sequence[Any]],
    png: bytes,
) -> str:
    from matplotlib.colors import to_hex

    labels = list(dict.fromkeys(result["label"] for result in results))
    looks = [curves.look_of(i) for i in range(len(labels))]
    data = {
        "metric": options.metric,
        "series": [
            {
                "label": label,
                "color": to_hex(color),
                "dash": {"-": "", "--": "6 3", ":": "1.5 3", "-.": "7 3 1.5 3"}[style],
            }
            for label, (color, style) in zip(labels, looks, strict=True)
        ],
        "panels": [
            {
                "caption": caption,
                "nothing": _nothing(axis),
                "lines": [{"series": labels.index(line.label), **_points(line)} for line in panels[axis]],
            }
            for axis, caption in PANELS.items()
        ],
    }
    parts = {
        "title": html.escape(options.metric),
        "note": f"mean over {options.smooth} iterations around each" if options.smooth > 1 else "",
        "runs": _results_table(results, grouped=len(labels) < len(results)),
        "differences": _differences_table([str(result["run"]) for result in results], differences),
        "png": base64.b64encode(png).decode(),
        "data": json.dumps(data, allow_nan=False).replace("<", "\\u003c"),  # a label can't end the script
    }
    template = Path(__file__).with_name("compare.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _points(line: Line) -> dict[str, list[float | None]]:
    kept = {name: getattr(line, name) for name in ("x", "y", "low", "high") if getattr(line, name) is not None}
    return {name: [curves.number(float(v)) for v in curves.thin(values, POINTS)] for name, values in kept.items()}


_COLUMNS = {
    "run": "run", "task": "task", "obs": "obs", "algorithm": "algorithm", "seed": "seed", "state": "state",
    "iteration": "iterations", "env_steps": "environment steps", "images": "images", "minutes": "minutes",
    "last": "last", "highest": "highest", "highest_at": "at iteration",
}  # fmt: skip


def _results_table(results: Sequence[dict[str, Any]], grouped: bool) -> str:
    columns = {"run": "run", "label": "line"} | _COLUMNS if grouped else _COLUMNS
    counted = [result | {k: f"{result[k]:,}" for k in ("env_steps", "images") if result[k]} for result in results]
    names = measures(results)
    lines = [[*(r[name] for name in columns), *(r["measures"].get(name) for name in names)] for r in counted]
    return html_table([*columns.values(), *names], lines)


def _differences_table(names: Sequence[str], differences: Mapping[str, Sequence[Any]]) -> str:
    if not differences:
        return "<p>None.</p>"
    return html_table(["option", *names], [[name, *values] for name, values in differences.items()])


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(_cell(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table>\n<thead>{line(header, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
