"""Learning curves of benchmarks/results/*.json in one figure: a column per task, return over minutes and iterations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sdpg.errors import SdpgError
from sdpg.report import curves

ORDER = ("cartpole", "hopper", "walker", "ant", "humanoid")  # the rest follow by name
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
    """Every result of kind "learning" below `folder`, by name."""
    results = []
    for path in sorted(folder.rglob("*.json")):
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SdpgError(f"'{path}' is not a JSON result: {error}") from error
        if isinstance(result, dict) and result.get("kind") == "learning":
            results.append(result)
    return results


def _chosen(results: list[dict[str, Any]], obs: str) -> list[dict[str, Any]]:
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


def run(options: Options) -> dict[str, Any]:
    """Writes the figure; what is in it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = _chosen(load(options.results), options.obs)
    if not results:
        raise SdpgError(
            f"no such learning curves in '{options.results}'; sdpg bench curve RUN --write keeps them there"
        )
    found = {result["task"] for result in results}
    tasks = [task for task in ORDER if task in found] + sorted(found - set(ORDER))
    figure, grid = plt.subplots(
        2, len(tasks), figsize=(3.4 * len(tasks) + 0.6, 5.2), squeeze=False, layout="constrained"
    )
    for column, task in enumerate(tasks):
        mine = [result for result in results if result["task"] == task]
        labels = list(dict.fromkeys(result["label"] for result in mine))  # a colour per label, a line per seed
        for row, (name, caption) in enumerate((("minutes", "minutes"), ("iteration", "iterations"))):
            axes = grid[row][column]
            curves.draw(axes, [_line(result, name) for result in mine], labels)
            axes.set(xlabel=caption, title=task if row == 0 else None, ylabel="return" if column == 0 else None)
        grid[0][column].legend(fontsize=7, loc="lower right")
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.figure, dpi=110)
    plt.close(figure)
    return {"kind": "plot", "figure": str(options.figure), "curves": len(results), "tasks": tasks}
