"""What is it worth that branches share their nominal's friction, masses, gains and pushes?

    sdpg train go2_terrain --seed 0 --iterations 60 --threads 1 --run runs/go2
    python benchmarks/shared_randomisation.py runs/go2 --draws 8 --write out.json --figure out.png

At a frozen checkpoint the ascent direction is drawn several times, once with rows whose branches share what was drawn
for the row, as in training, and once with branches that each draw their own: friction, payload, centre of mass, gains,
motor offsets, and the time and strength of the next push. Everything else, noise of actions included, is the same. The
signal share is that of `sdpg bench gradient`: the part of a direction's power that two draws have in common. Its
standard error is a jackknife over rows.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdpg.bench import machine
from sdpg.bench.gradient import ALWAYS, Bench, Options, load
from sdpg.env import BranchedEnv
from sdpg.rng import RowRng
from sdpg.tasks.randomise import OFFSET, PUSH, UNTIL_PUSH
from sdpg.types import Step


class Apart:
    """Makes the branches of an environment draw for themselves, whenever they are branched or copied."""

    def __init__(self, env: BranchedEnv, seed: int):
        self.env, self.ranges, self.model = env, env.task.ranges, env.sim.model  # type: ignore[attr-defined]
        self.rng = RowRng(seed, torch.arange(env.num_nominal * env.num_branches), stream=77)  # of worlds, not rows
        self.kept = {name: getattr(env, name) for name in ("branch", "restart", "_push")}
        for name in self.kept:
            setattr(env, name, getattr(self, name))

    def release(self) -> None:
        for name in self.kept:
            delattr(self.env, name)

    def branch(self) -> None:
        self.kept["branch"]()
        again = torch.ones(self.env.grid, dtype=torch.bool)
        self._draw(again)

    def restart(self, step: Step) -> Tensor:
        cut: Tensor = self.kept["restart"](step)
        self._draw(cut.clone())
        return cut

    def _push(self, x: Any) -> None:
        """`advance` has drawn one push for the row."""
        memory = self.env._memory
        own = self.rng.uniform(*self.ranges.push, 2).view(*self.env.grid, 2)
        own[:, 0] = memory[PUSH][:, 0]
        memory[PUSH] = torch.where(memory[PUSH].any(-1, keepdim=True), own, 0.0)
        self.kept["_push"](x)

    def _draw(self, again: Tensor) -> None:
        """For the auxiliaries among the worlds (N, K); nominals keep what their row drew."""
        again[:, 0] = False
        if not again.any():
            return
        worlds = again.flatten().nonzero()[:, 0]
        drawn = self.ranges.draw(self.rng.select(worlds), len(worlds), self.model)
        self.env.sim.set_params(worlds, drawn.params)
        memory = self.env._memory
        memory[OFFSET][again] = drawn.memory[OFFSET]
        memory[UNTIL_PUSH][again] = 1 + self.rng.select(worlds).integers(self.ranges.push_every[1], 1)[:, 0]


def directions(bench: Bench, cfg: Any, draws: int, apart: bool) -> Tensor:
    """(D, T, N, A)"""
    found = []
    for draw in range(draws):
        bench.again(cfg, draw)
        own = Apart(bench.env, seed=draw) if apart else None
        found.append(bench.direction(bench.algo.collect(bench.env), cfg))
        if own is not None:
            own.release()
    return torch.stack(found)


def sums(d: Tensor) -> Tensor:
    """Of every row its part of the mean of <d_i, d_j>, i != j, and of |d_i|^2: (2, N)."""
    count = len(d)
    own = d.square().sum((0, 1, 3))
    total = d.sum(0).square().sum((0, 2))
    return torch.stack(((total - own) / (count * (count - 1)), own / count)).double()


def jackknife(values: Tensor) -> float:
    """Standard error of what was estimated without each of the rows: (N,)."""
    n = len(values)
    return ((n - 1) / n * (values - values.mean()).square().sum()).sqrt().item()


def share(rows: Tensor) -> tuple[float, Tensor]:
    """Of the rows (2, N): the share, and what it is without each of them (N,)."""
    without = rows.sum(1, keepdim=True) - rows
    return (rows[0].sum() / rows[1].sum()).item(), without[0] / without[1]


def measure(run: Path, draws: int, threads: int) -> dict[str, Any]:
    bench = load(Options(run=run, threads=threads))
    cfg = replace(bench.algo.cfg, **ALWAYS)
    rows = {name: sums(directions(bench, cfg, draws, name == "own")) for name in ("shared", "own")}
    result: dict[str, Any] = {"iteration": bench.algo.iteration, "draws": draws, "horizon": cfg.horizon}
    result |= {"num_nominal": bench.env.num_nominal, "num_auxiliary": bench.env.num_branches - 1}
    without = {}
    for name, values in rows.items():
        found, without[name] = share(values)
        result[name] = {"share": found, "error": jackknife(without[name])}
    ratio = result["shared"]["share"] / result["own"]["share"]
    result["ratio"] = {"value": ratio, "error": jackknife(without["shared"] / without["own"])}
    return result


def draw_figure(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.2, 3.0), layout="constrained")
    for i, (name, label) in enumerate((("shared", "shared by a row's branches"), ("own", "each branch its own"))):
        places = [at + 0.36 * (i - 0.5) for at in range(len(results))]
        heights, errors = ([100 * result[name][part] for result in results] for part in ("share", "error"))
        axes.bar(places, heights, 0.34, yerr=errors, capsize=3, label=label)
    axes.set_xticks(range(len(results)), [f"after iteration {result['iteration']}" for result in results])
    axes.set(ylabel="signal in the ascent direction, %", title="go2_terrain: friction, masses, gains, pushes")
    axes.title.set_fontsize(9)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of go2_terrain")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    results = [measure(run, given.draws, given.threads) for run in given.runs]
    command = shlex.join(["python", *sys.argv])
    found = {"command": command, "machine": machine.describe(given.threads), "results": results}
    if given.write is not None:
        given.write.write_text(json.dumps(found, indent=2) + "\n")
    if given.figure is not None:
        draw_figure(results, given.figure)
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
