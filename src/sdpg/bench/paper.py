"""The paper's evaluation by one command: every method on the same worlds, one offline page with all that came out.

A run that is there is taken, one that was interrupted goes on, and a method that fails is told on the page: the others
still run. Results are kept as small JSON beside the runs.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpg.bench import machine, memory, paper_figures, paper_runs, plot, smoothing
from sdpg.bench.paper_runs import Tell
from sdpg.errors import SdpgError
from sdpg.ranges import require_in_range
from sdpg.report.compare import html_table


@dataclass(frozen=True)
class Options:
    """Train every method on the same tasks, evaluate all alike, and draw the paper's figures and tables."""

    tasks: tuple[str, ...] = ("hopper",)
    """Names that `sdpg tasks` lists."""
    obs: tuple[str, ...] = ("state", "pixels")
    """What policies see."""
    algorithms: tuple[str, ...] = ()
    """Which of the rivals; none: all of them."""
    seeds: int = 3
    """Runs of each method on each task."""
    image_seeds: int | None = None
    """The same from images, if it is another number."""
    minutes: float = 10.0
    """Of a run from state."""
    image_minutes: float = 60.0
    """Of a run from images; a student's teacher is part of it."""
    budget: float | None = None
    """Minutes of training for all runs together, in place of these: each gets its share."""
    episodes: int = 64
    """Of every evaluation, deterministic."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    environments: tuple[int, ...] = (64, 256, 1024)
    """Numbers of worlds at which the memory of images is measured; none: it is not."""
    draw: Path | None = None
    """A folder of results that earlier calls kept: the page is made of all of them, of whatever seeds and minutes, and
    nothing is trained."""
    out: Path = Path("runs/paper")
    """Folder of runs, results, figures, tables and index.html."""


def _silent(line: str, passing: bool) -> None:
    """Tells nobody."""


def run(options: Options, tell: Tell = _silent) -> dict[str, Any]:
    import matplotlib

    matplotlib.use("Agg")
    require_in_range(vars(options))
    results, failed = (kept(options), []) if options.draw else _trained(options, tell)
    if not results:
        raise SdpgError(f"no run came to an end: {failed[0][1]}")
    page = _write(options, results, _scaling(options, failed, tell), failed)
    return {
        "kind": "paper",
        "page": str(page),
        "runs": len(results),
        "failed": [f"{what}: {why}" for what, why in failed],
        "machine": machine.describe(options.threads or None),
        "returns": [dict(zip(("task", "obs", "algorithm", "iqm"), [*row[:3], row[4]], strict=True))
                    for row in paper_figures.final_table(results)[1:]],
    }  # fmt: skip


def kept(options: Options) -> list[Any]:
    """What the folder `draw` has of these tasks, kinds and algorithms, in the order in which runs are made."""
    assert options.draw is not None
    who = {obs: options.algorithms or paper_runs.rivals(obs) for obs in options.obs}
    order = [(task, obs, name) for task in options.tasks for obs in options.obs for name in who[obs]]
    found: dict[tuple[str, ...], list[Any]] = {what: [] for what in order}
    for result in plot.load(options.draw):  # of other tasks and kinds there may be some, too
        found.get((result["task"], result["obs"], result.get("algorithm", "")), []).append(result)
    wanted = [result for what in order for result in sorted(found[what], key=lambda each: each["seed"])]
    if not wanted:
        raise SdpgError(f"'{options.draw}' has no result of {', '.join(options.tasks)}: give another --draw or --tasks")
    return wanted


def _trained(options: Options, tell: Tell) -> tuple[list[Any], list[tuple[str, str]]]:
    minutes = {kind: options.minutes if kind == "state" else options.image_minutes for kind in options.obs}
    of_images = options.seeds if options.image_seeds is None else options.image_seeds
    seeds = {kind: options.seeds if kind == "state" else of_images for kind in options.obs}
    what = (options.tasks, options.algorithms, seeds)
    if options.budget is not None:
        minutes = paper_runs.share_out(options.budget, *what, minutes)
    planned = paper_runs.plan(*what, minutes)
    results: list[Any] = []
    failed: list[tuple[str, str]] = []
    there = [paper_runs.taken(each, options.out, options.episodes) is not None for each in planned]
    left = sum(each.minutes for each, done in zip(planned, there, strict=True) if not done)
    tell(f"{len(planned)} runs: {sum(there)} are there, {len(planned) - sum(there)} are left", False)
    for i, (each, done) in enumerate(zip(planned, there, strict=True), 1):
        how = "taken as it is" if done else f"{each.minutes:.1f} minutes"
        tell(f"{i} of {len(planned)}: {each}, {how}; {left:.0f} minutes left in all", False)
        try:
            results.append(paper_runs.make(each, options.out, options.threads, options.episodes, tell))
        except SdpgError as error:
            failed.append((str(each), str(error)))
            tell(str(error), False)
        left -= 0.0 if done else each.minutes
    return results, failed


def _scaling(options: Options, failed: list[tuple[str, str]], tell: Tell) -> dict[str, Any] | None:
    """Memory against the number of worlds on the first task, measured once; its figure beside the others."""
    if not options.environments or all(kind == "state" for kind in options.obs):
        return None
    task, count = options.tasks[0], " ".join(map(str, options.environments))
    name = f"{paper_figures.file_name(task)}-{count.replace(' ', '-')}"
    figure, kept = options.out / "figures" / f"memory-{name}.png", options.out / "tables" / f"memory-{name}.json"
    if kept.exists() and figure.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    tell(f"memory of images in {count} worlds of {task}", False)
    nominal = min(64, *options.environments)
    asked = memory.Options(task, scaling=True, num_nominal=nominal, environments=options.environments, figure=figure,
                           threads=options.threads)  # fmt: skip
    try:
        result = memory.run(asked)
    except SdpgError as error:
        failed.append((f"memory of images in {count} worlds of {task}", str(error)))
        return None
    result["command"] = f"sdpg bench memory {task} --scaling --num-nominal {nominal} --environments {count}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result), encoding="utf-8")
    return result


# --- the page ---------------------------------------------------------------------------------------------------------


def _write(
    options: Options, results: Sequence[Any], scaling: dict[str, Any] | None, failed: Sequence[tuple[str, str]]
) -> Path:
    toy = smoothing.run(smoothing.Options(figure=options.out / "figures" / "smoothing.png"))
    drawn = _figures(options.out / "figures", results, scaling, Path(toy["figure"]))
    tables = {
        "final": paper_figures.final_table(results),
        "memory": paper_figures.memory_table(results),
        "commands": _commands(options, results, scaling, toy),
    }
    for name, table in (tables | {"curves": paper_figures.curve_table(results)}).items():
        paper_figures.write_csv(options.out / "tables" / f"{name}.csv", table)
    parts = [
        f"<p>{options.episodes} deterministic episodes of every last policy, each to its end. Every seed is a dot; "
        "bars are interquartile means with 95 % bootstrap intervals. Commands and machines are at the end.</p>",
        "<p>Curves show episodes of training: those of dagger, and of sdpg from images, are without noise, all others "
        "with theirs. Environment steps are those of all worlds, branches and perturbed ones among them; a student's "
        "minutes and steps include its teacher's.</p>",
        "<h2>Returns</h2>", _table(tables["final"]),
        "<h2>Memory</h2>", _table(tables["memory"]),
        *(f"<h2>{html.escape(name)}</h2>\n{_image(path, name)}" for name, path in drawn.items()),
        "<h2>Commands</h2>", _table(tables["commands"]),
    ]  # fmt: skip
    if failed:
        parts += ["<h2>What failed</h2>", html_table(["what", "why"], failed)]
    page = options.out / "index.html"
    page.write_text(_PAGE.replace("{{body}}", "\n".join(parts)), encoding="utf-8")
    return page


def _figures(folder: Path, results: Sequence[Any], scaling: dict[str, Any] | None, toy: Path) -> dict[str, Path]:
    drawn = paper_figures.learning(folder, results)
    for draw in (paper_figures.gradient_norms, paper_figures.state_and_vision, paper_figures.hurdles):
        drawn |= draw(folder, results)
    if scaling is not None:
        drawn["memory against the number of worlds"] = Path(scaling["figure"])
    return drawn | {"the smoothed function of one number": toy}


def _commands(
    options: Options, results: Sequence[Any], scaling: dict[str, Any] | None, toy: dict[str, Any]
) -> list[list[Any]]:
    rows = paper_figures.command_table(results, options.episodes)
    if scaling is not None:
        rows.append(["memory of worlds", scaling["command"], None, None, paper_figures.machine_of(scaling)])
    toy_command = "sdpg bench smoothing --figure smoothing.png"
    return [*rows, ["smoothed function", toy_command, None, None, paper_figures.machine_of(toy)]]


def _table(table: list[list[Any]]) -> str:
    return html_table(table[0], table[1:])


def _image(path: Path, name: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>sdpg: the paper's evaluation</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #ddd; padding: 3px 10px; text-align: left } img { max-width: 100% }
</style></head><body>
<h1>The paper's evaluation</h1>
{{body}}
</body></html>
"""
