"""Learning curves of benchmarks/results/*.json in one figure: a column per task, return over minutes and iterations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sdpg.errors import SdpgError
from sdpg.report import curves

ORDER = ("cartpole", "hopper", "walker", "ant", "humanoid")  # the rest follow by name
SOURCES = "Source"  # of a PNG's texts
PRESET = "cpu preset"  # the label of curves that `sdpg train TASK` gives


@dataclass(frozen=True)
class Options:
    """Draw learning curves."""

    results: Path = Path("benchmarks/results")
    """Folder of JSON results."""
    obs: Literal["state", "pixels", "both"] = "state"
    """What the policies see. both: state against pixels, with the cpu presets of tasks that have curves of both."""
    figure: Path = Path("docs/learning.png")


def load(folder: Path) -> list[dict[str, Any]]:
    """Every result of kind "learning" in `folder`, by name; not of the folders in it, which have the screening."""
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SdpgError(f"'{path}' is not a JSON result: {error}") from error
        if isinstance(result, dict) and result.get("kind") == "learning":
            results.append(result | {"file": path.name})
    return results


def chosen(results: list[dict[str, Any]], obs: str) -> list[dict[str, Any]]:
    """The results that the figure shows; for a comparison, labelled by what the policy sees."""
    seen = [result | {"obs": result.get("obs", "state")} for result in results]
    if obs != "both":
        return [result for result in seen if result["obs"] == obs]
    kinds = {(result["task"], result["obs"]) for result in seen}
    mine = [result for result in seen if {(result["task"], "state"), (result["task"], "pixels")} <= kinds]
    return [result | {"label": result["obs"]} for result in mine if result["label"] == PRESET]


def _line(result: dict[str, Any], name: str) -> curves.Line:
    curve = result["curve"]
    return curves.Line(result["label"], curves.column(curve[name]), curves.column(curve["return"]))


def _is_preset(result: dict[str, Any]) -> bool:
    return bool(result["label"] == PRESET)


def sources(results: list[dict[str, Any]]) -> str:
    """What a figure shows, as it is kept inside the figure: by this a test tells one that is out of date."""
    return "\n".join(f"{result['file']}: {result['label']}" for result in results)


def run(options: Options) -> dict[str, Any]:
    """Writes the figure; what is in it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = chosen(load(options.results), options.obs)
    if not results:
        raise SdpgError(
            f"no such learning curves in '{options.results}'; sdpg bench curve RUN --write keeps them there"
        )
    found = {result["task"] for result in results}
    # A colour per label, the same one in every column; a line per seed.
    labels = sorted(dict.fromkeys(result["label"] for result in results), key=lambda label: label != PRESET)
    tasks = [task for task in ORDER if task in found] + sorted(found - set(ORDER))
    figure, grid = plt.subplots(
        2, len(tasks), figsize=(3.4 * len(tasks) + 0.6, 5.2), squeeze=False, layout="constrained"
    )
    for column, task in enumerate(tasks):
        mine = sorted((result for result in results if result["task"] == task), key=_is_preset)  # it is drawn last
        for row, (name, caption) in enumerate((("minutes", "minutes"), ("iteration", "iterations"))):
            axes = grid[row][column]
            curves.draw(axes, [_line(result, name) for result in mine], labels)
            axes.set(xlabel=caption, title=task if row == 0 else None, ylabel="return" if column == 0 else None)
        grid[0][column].legend(fontsize=7, loc="lower right")
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.figure, dpi=110, metadata={SOURCES: sources(results)})
    plt.close(figure)
    return {"kind": "plot", "figure": str(options.figure), "curves": len(results), "tasks": tasks}
