"""The paper's evaluation by one command: every method on the same worlds, one offline page with all that came out.

A run that is there is taken, one that was interrupted goes on, and a method that fails is told on the page: the others
still run. Results are kept as small JSON beside the runs.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpg.bench import machine, paper_figures, paper_runs, smoothing
from sdpg.bench.paper_runs import Combination, Tell
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
    out: Path = Path("runs/paper")
    """Folder of runs, results, figures, tables and index.html."""


def _silent(line: str, passing: bool) -> None:
    """Tells nobody."""


def run(options: Options, tell: Tell = _silent) -> dict[str, Any]:
    import matplotlib

    matplotlib.use("Agg")
    require_in_range(vars(options))
    minutes = {kind: options.minutes if kind == "state" else options.image_minutes for kind in options.obs}
    what = (options.tasks, options.obs, options.algorithms, options.seeds)
    if options.budget is not None:
        minutes = paper_runs.share_out(options.budget, *what, minutes)
    planned = paper_runs.plan(*what, minutes)
    results, failed = _all(planned, options, tell)
    if not results:
        raise SdpgError(f"no run came to an end: {failed[0][1]}")
    page = _write(options, results, failed)
    return {
        "kind": "paper",
        "page": str(page),
        "runs": len(results),
        "failed": [f"{run}: {why}" for run, why in failed],
        "machine": machine.describe(options.threads or None),
        "returns": [dict(zip(("task", "obs", "algorithm", "iqm"), [*row[:3], row[4]], strict=True))
                    for row in paper_figures.final_table(results)[1:]],
    }  # fmt: skip


def _all(
    planned: Sequence[Combination], options: Options, tell: Tell
) -> tuple[list[Any], list[tuple[Combination, str]]]:
    results, failed = [], []
    left = sum(each.minutes for each in planned)
    for i, each in enumerate(planned, 1):
        tell(f"{i} of {len(planned)}: {each}, {each.minutes:.1f} minutes; {left:.0f} left in all", False)
        try:
            results.append(paper_runs.make(each, options.out, options.threads, options.episodes, tell))
        except SdpgError as error:
            failed.append((each, str(error)))
            tell(str(error), False)
        left -= each.minutes
    return results, failed


# --- the page ---------------------------------------------------------------------------------------------------------


def _write(options: Options, results: Sequence[Any], failed: Sequence[tuple[Combination, str]]) -> Path:
    figures = options.out / "figures"
    drawn = paper_figures.learning(figures, results)
    for draw in (paper_figures.gradient_norms, paper_figures.state_and_vision, paper_figures.hurdles):
        drawn |= draw(figures, results)
    toy = smoothing.run(smoothing.Options(figure=figures / "smoothing.png"))
    drawn["the smoothed function of one number"] = Path(toy["figure"])
    final, memory = paper_figures.final_table(results), paper_figures.memory_table(results)
    tables = {"final": final, "memory": memory, "curves": paper_figures.curve_table(results)}
    for name, table in tables.items():
        paper_figures.write_csv(options.out / "tables" / f"{name}.csv", table)
    said = machine.describe(options.threads or None)
    commands = [
        ["run", "command"],
        *([f"{r['task']} {r['obs']} {r['algorithm']} {r['seed']}", r["command"]] for r in results),
    ]
    parts = [
        f"<p>{html.escape(str(said['cpu']))}, {said['threads']} threads; {options.episodes} deterministic episodes of "
        "every last policy. Every seed is a dot; bars are interquartile means with 95 % bootstrap intervals.</p>",
        "<h2>Returns</h2>", html_table(final[0], final[1:]),
        "<h2>Memory</h2>", html_table(memory[0], memory[1:]),
        *(f"<h2>{html.escape(name)}</h2>\n{_image(path, name)}" for name, path in drawn.items()),
        "<h2>Commands</h2>", html_table(commands[0], commands[1:]),
    ]  # fmt: skip
    if failed:
        rows = [[str(run), why] for run, why in failed]
        parts += ["<h2>Runs that failed</h2>", html_table(["run", "why"], rows)]
    page = options.out / "index.html"
    page.write_text(_PAGE.replace("{{body}}", "\n".join(parts)), encoding="utf-8")
    return page


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
