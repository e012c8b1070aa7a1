"""Figures and tables of `sdpg bench paper`, drawn from the results of its runs: as PNG, CSV and rows of a page."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from sdpg.bench.paper_runs import RIVALS, STUDENT, TEACHER
from sdpg.report import curves
from sdpg.report.spread import interquartile_mean, interval

Result = Mapping[str, Any]
Table = list[list[Any]]
"""Header and rows."""

# Gigabytes, from the paper's table: 64 rendered worlds, on a GPU; PPO's is an estimate for 4096.
PAPER_MEMORY = {
    "hopper": {"sdpg": 10.2, "ppo": 48, "drqv2": 10.6, "dreamer": 10.8, "dagger": 10.6},
    "walker": {"sdpg": 10.3, "ppo": 48, "drqv2": 8.2, "dreamer": 10.8, "dagger": 10.6},
    "ant": {"sdpg": 10.3, "ppo": 49, "drqv2": 10.5, "dreamer": 10.8, "dagger": 10.3},
    "humanoid": {"sdpg": 10.5, "ppo": 50, "drqv2": 11.6, "dreamer": 10.9, "dagger": 10.7},
}
AXES = {"minutes": "minutes", "env_steps": "environment steps", "images": "rendered images"}
EVERYONE = tuple(dict.fromkeys(name for names in RIVALS.values() for name in names))
HURDLES = ("walker_hurdle", "g1_hurdle")


def groups(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Of the same task and observation kind."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        found.setdefault((result["task"], result["obs"]), []).append(result)
    return found


def lines(results: Sequence[Result], axis: str, name: str = "return") -> list[curves.Line]:
    """A line per run. A student's minutes and steps begin where its teacher's end."""
    found = []
    for result in results:
        x = curves.column(result["curve"][axis]) + _teachers(result, axis)
        if np.isfinite(x).any() and np.nanmax(x) > 0:
            found.append(curves.Line(result["algorithm"], x, curves.column(result["curve"][name])))
    return found


def _teachers(result: Result, axis: str) -> float:
    """What a student's teacher took of it before."""
    return float(result.get(f"teacher_{axis}") or 0.0)


def learning(folder: Path, results: Sequence[Result]) -> dict[str, Path]:
    """Return over minutes, steps and images, and what each seed came to: a figure for each task and kind."""
    import matplotlib.pyplot as plt

    made = {}
    for (task, obs), mine in groups(results).items():
        labels, drawn = _labels(mine), {axis: lines(mine, axis) for axis in AXES}
        shown = [axis for axis in AXES if drawn[axis]]  # from state there are no images
        size = (4.0 * (len(shown) + 1), 3.8)
        figure, grid = plt.subplots(1, len(shown) + 1, figsize=size, squeeze=False, layout="constrained")
        for axes, axis in zip(grid[0], shown, strict=False):
            curves.draw(axes, drawn[axis], _places(labels))
            axes.set(xlabel=AXES[axis], ylabel="return, while training")
        _dots(grid[0, -1], mine, labels)
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8)
        figure.suptitle(f"{task} from {obs}")
        made[f"{task} from {obs}"] = _save(figure, folder / f"learning-{file_name(task)}-{obs}.png")
    return made


def _dots(axes: Any, results: Sequence[Result], labels: Sequence[str]) -> None:
    """Evaluated return: every seed a dot, the interquartile mean a bar with its interval."""
    for i, label in enumerate(labels):
        values = [r["evaluation"]["return"]["mean"] for r in results if r["algorithm"] == label]
        color, _ = curves.look_of(_places(labels).index(label))
        middle, (low, high) = interquartile_mean(values), interval(values)
        axes.errorbar([i], [middle], [[middle - low], [high - middle]], fmt="_", ms=16, color=color, capsize=4)
        axes.plot([i] * len(values), values, "o", ms=4, color=color, alpha=0.6)
    axes.set(xticks=range(len(labels)), xticklabels=labels, ylabel="return, evaluated")
    low, high = axes.get_ylim()
    axes.set(xlim=(-0.5, len(labels) - 0.5), ylim=(min(0.0, low), max(0.0, 1.05 * high)))  # 0 in view
    axes.tick_params(axis="x", rotation=30)
    axes.grid(alpha=0.25)


def gradient_norms(folder: Path, results: Sequence[Result]) -> dict[str, Path]:
    """Of the policy's gradient over training, before it is clipped: SDPG beside those that differentiate physics."""
    wanted = ("sdpg", "sapo", "shac", "dva")
    mine = [r | {"task": f"{r['task']} from {r['obs']}"} for r in results if r["algorithm"] in wanted]  # type: ignore[operator]
    return _panels(folder, "gradient-norms", mine, "grad_norm", "norm of the gradient", log=True)


def state_and_vision(folder: Path, results: Sequence[Result]) -> dict[str, Path]:
    """SDPG from state beside SDPG from images, over iterations, where there are both."""
    mine = [r | {"algorithm": r["obs"]} for r in results if r["algorithm"] == "sdpg"]  # type: ignore[operator]
    both = {r["task"] for r in mine if r["obs"] == "state"} & {r["task"] for r in mine if r["obs"] != "state"}
    return _panels(folder, "state-and-vision", [r for r in mine if r["task"] in both], "return", "return", "iteration")


def hurdles(folder: Path, results: Sequence[Result]) -> dict[str, Path]:
    """A teacher that has a height map, its student, and the policy that learned from what it sees."""
    names = {("state", TEACHER): "height map (the teacher)", ("pixels", "sdpg"): "end-to-end from images",
             ("pixels", STUDENT): "student of the teacher"}  # fmt: skip
    mine = [
        r | {"algorithm": names[r["obs"], r["algorithm"]]}  # type: ignore[operator]
        for r in results
        if r["task"] in HURDLES and (r["obs"], r["algorithm"]) in names
    ]
    return _panels(folder, "hurdles", mine, "return", "return")


def _panels(
    folder: Path, name: str, results: Sequence[Result], column: str, caption: str, axis: str = "minutes",
    log: bool = False,
) -> dict[str, Path]:  # fmt: skip
    """A panel for each task in one figure; no figure if there is nothing to show."""
    import matplotlib.pyplot as plt

    kept = [r for r in results if column in r["curve"]]
    if not kept:
        return {}
    tasks, labels = list(dict.fromkeys(r["task"] for r in kept)), _labels(kept)
    figure, grid = plt.subplots(1, len(tasks), figsize=(5.0 * len(tasks), 3.6), squeeze=False, layout="constrained")
    for axes, task in zip(grid[0], tasks, strict=True):
        curves.draw(axes, lines([r for r in kept if r["task"] == task], axis, column), _places(labels))
        axes.set(title=task, xlabel=axis if axis == "minutes" else f"{axis}s", ylabel=caption)
        axes.set_yscale("log" if log else "linear")
        axes.legend(fontsize=7)
    return {name.replace("-", " "): _save(figure, folder / f"{name}.png")}


def final_table(results: Sequence[Result]) -> Table:
    header = ["task", "sees", "algorithm", "seeds", "interquartile mean", "95 % interval", "every seed", "do not fall",
              "minutes", "environment steps", "images"]  # fmt: skip
    rows = []
    for (task, obs), mine in groups(results).items():
        for label in _labels(mine):
            runs = [r for r in mine if r["algorithm"] == label]
            values = [r["evaluation"]["return"]["mean"] for r in runs]
            low, high = interval(values)
            upright = np.mean([r["evaluation"]["survived"] for r in runs])
            minutes, steps, images = (
                float(np.mean([_last(r, name) + _teachers(r, name) for r in runs]))
                for name in ("minutes", "env_steps", "images")
            )
            found = [
                round(interquartile_mean(values), 1),
                f"{low:.1f} to {high:.1f}",
                ", ".join(f"{v:.0f}" for v in values),
            ]
            rows.append(
                [
                    task,
                    obs,
                    label,
                    len(runs),
                    *found,
                    f"{100 * upright:.0f} %",
                    round(minutes, 2),
                    round(steps),
                    round(images),
                ]
            )
    return [header, *rows]


def memory_table(results: Sequence[Result]) -> Table:
    rows = []
    for (task, obs), mine in groups(results).items():
        for label in _labels(mine):
            peaks = [r["peak_mb"] for r in mine if r["algorithm"] == label and r.get("peak_mb")]
            worlds = {f"{r['num_nominal']} x (1 + {r['num_auxiliary']})" for r in mine if r["algorithm"] == label}
            paper = PAPER_MEMORY.get(task, {}).get(label) if obs != "state" else None
            rows.append(
                [task, obs, label, ", ".join(sorted(worlds)), round(max(peaks) / 1024, 2) if peaks else None, paper]
            )
    return [["task", "sees", "algorithm", "worlds", "peak here, GB", "the paper's, GB on a GPU"], *rows]


def write_csv(path: Path, table: Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)
    return path


def curve_table(results: Sequence[Result]) -> Table:
    """Every point of every curve; empty where a method, or an earlier version of it, does not tell."""
    columns = ("iteration", "minutes", "env_steps", "images", "return", "length", "grad_norm", "memory_mb")
    rows = [
        [r["task"], r["obs"], r["algorithm"], r["seed"], *point]
        for r in results
        for point in zip_longest(*(r["curve"].get(name, ()) for name in columns))
    ]
    return [["task", "obs", "algorithm", "seed", *columns], *rows]


def command_table(results: Sequence[Result], episodes: int) -> Table:
    """What gives every number again, and where it was measured."""
    header = ["run", "training (RUN, TEACHER: folders)", "its teacher", "evaluation", "machine"]
    rows = [
        [
            f"{r['task']} {r['obs']} {r['algorithm']} {r['seed']}",
            r["command"],
            r.get("teacher_command"),
            f"sdpg eval RUN --episodes {episodes}",
            machine_of(r),
        ]
        for r in results
    ]
    return [header, *rows]


def machine_of(result: Result) -> str:
    said = result["machine"]
    return f"{said['cpu']}, {said['cores']} cores, {said['threads']} threads"


def _last(result: Result, name: str) -> float:
    return next((value for value in reversed(result["curve"][name]) if value is not None), 0.0)


def _labels(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result["algorithm"] for result in results))


def _places(labels: Sequence[str]) -> Sequence[str]:
    """By which they get their colours: a method has the same one in every figure."""
    return [*EVERYONE, *labels] if set(labels) & set(EVERYONE) else labels


def file_name(task: str) -> str:
    """A task's name as a part of a file's."""
    return task.replace(":", ".").replace("/", ".")


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path
