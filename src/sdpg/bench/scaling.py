"""Seconds of whole training iterations against N, M, T, threads, ranks and the size of images; a cost model that is
fitted to some of these configurations and held against the others; what it says of machines that are not here.

    sdpg bench scaling hopper --write benchmarks/results/scaling-hopper-state.json
    sdpg bench scaling --of benchmarks/results/scaling-*.json --figure docs/scaling.png --page docs/scaling.md

The second line measures nothing: it draws and tabulates what the files say.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

from sdpg.bench import costs, machine
from sdpg.bench.costs import Prices, Setup
from sdpg.bench.measured import Job, MeasuredTraining
from sdpg.build import cameras_of
from sdpg.errors import SdpgError
from sdpg.machine import default_threads
from sdpg.presets import resolve
from sdpg.tasks.base import make_task

WARMUP = 2  # iterations that are not counted: the first compiles and allocates
MOST = 8  # iterations of a turn


@dataclass(frozen=True)
class Options:
    """What an iteration costs: seconds against N, M, T, threads, ranks and images, and a model of them."""

    task: str = "hopper"
    """A name that `sdpg tasks` lists, or module:Class."""
    obs: Literal["state", "pixels"] = "state"
    preset: Literal["cpu", "paper"] = "cpu"
    threads: int = 0
    """CPU threads of the largest configurations; 0: all cores."""
    rounds: int = 8
    """Turns of every configuration; medians count."""
    turn_seconds: float = 0.5
    """A turn is as many iterations as take about this long, at least one."""
    seed: int = 0
    quick: bool = False
    """A few tiny configurations: does it work?"""
    of: tuple[Path, ...] = ()
    """Measure nothing; draw and tabulate these results."""
    figure: Path | None = None
    """Draw seconds and predictions into this file."""
    page: Path | None = None
    """Put the tables between the marks of this Markdown page."""


def run(options: Options) -> dict[str, Any]:
    results = [load(path) for path in options.of] if options.of else [measure(options)]
    if options.figure is not None:
        from sdpg.bench.scaling_page import draw

        draw(results, options.figure)
    if options.page is not None:
        from sdpg.bench.scaling_page import put

        put(results, options.page)
    if not options.of:
        return results[0]
    made = {"figure": options.figure, "page": options.page}
    return {"kind": "scaling-page", "results": len(results), **{k: str(v) for k, v in made.items() if v is not None}}


def load(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SdpgError(f"'{path}' is not a JSON result: {error}") from error
    if not isinstance(result, dict) or result.get("kind") != "scaling":
        raise SdpgError(f"'{path}' is not a result of sdpg bench scaling TASK --write")
    return result


# --- what is measured -------------------------------------------------------------------------------------------------


def design(images: tuple[int, ...], threads: int, quick: bool) -> tuple[list[Setup], list[Setup]]:
    """Setups to fit the model to, the first of which is the one that all else is compared with, and others to hold it
    against. `images`: widths of a large, a middle and a small one; none: no images.

    Among those to fit are a few small ones, whose critic has less than a batch to learn from: they tell the price of an
    optimiser step from that of its samples.
    """
    large, middle, small = images or (None, None, None)
    half = max(1, threads // 2)

    def make(n: int, m: int, t: int, threads: int = threads, ranks: int = 1, size: int | None = large) -> Setup:
        return Setup(n, m, t, threads, ranks, size)

    if quick:
        fitted = [make(8, 7, 6), make(8, 3, 6, 1), make(4, 7, 6, size=small), make(8, 7, 3)]
        pair, held = [make(8, 7, 6, half, 2)], [make(4, 3, 6, size=middle)]
    elif images:
        fitted = [
            make(64, 63, 32), make(64, 15, 32), make(64, 15, 32, 1), make(16, 15, 32), make(32, 15, 8), make(64, 3, 32),
            make(64, 15, 32, size=small), make(32, 31, 16, 1, size=small), make(16, 3, 16, size=small),
            make(8, 7, 8, 1),
        ]  # fmt: skip
        pair = [make(64, 15, 32, half, 2), make(32, 63, 16, half, 2), make(16, 7, 16, half, 2, small)]
        held = [
            make(32, 31, 32), make(48, 15, 16, 1), make(64, 15, 32, size=middle), make(128, 7, 16),
            make(32, 63, 24, 1, size=middle), make(32, 31, 32, half, 2),
        ]  # fmt: skip
    else:
        fitted = [
            make(64, 63, 32), make(64, 63, 32, 1), make(64, 15, 32), make(64, 3, 32), make(16, 15, 32),
            make(16, 63, 32, 1), make(64, 15, 8), make(128, 31, 16), make(16, 3, 16), make(8, 7, 8, 1),
        ]  # fmt: skip
        pair = [make(64, 63, 32, half, 2), make(64, 15, 32, half, 2), make(16, 7, 16, half, 2)]
        held = [
            make(32, 31, 32), make(32, 31, 32, 1), make(96, 31, 24), make(64, 7, 16, 1), make(128, 63, 16),
            make(256, 15, 32), make(32, 63, 32, half, 2), make(128, 15, 16, half, 2),
        ]  # fmt: skip
    between = [make(fitted[1].num_nominal, 15, 32, 2**k) for k in range(1, 10) if 2**k < threads and not quick]
    if threads == 1:  # one core: nothing to share
        pair, held = [], [setup for setup in held if setup.ranks == 1]
    return list(dict.fromkeys(fitted + between + pair)), list(dict.fromkeys(held))


def measure(options: Options) -> dict[str, Any]:
    cores = default_threads()
    threads = options.threads or cores
    if not 1 <= threads <= cores:
        raise SdpgError(f"threads is {threads}; give 1 to {cores}, the cores of this machine")
    task, cfg = make_task(options.task), resolve(options.task, options.preset, options.obs)
    cameras = list(cameras_of(task, options.obs).values())
    width = cameras[0].width if cameras else 0
    fitted, held = design((width, width * 3 // 4, width * 4 // 7) if cameras else (), threads, options.quick)
    if options.quick:
        options = replace(options, rounds=min(options.rounds, 2), turn_seconds=0.0)

    setups = fitted + held
    amounts = [costs.work(cfg, task, setup) for setup in setups]
    rows = _take_turns(options, setups)
    k = len(fitted)
    prices = costs.fit(fitted, amounts[:k], [row["phases"] for row in rows[:k]])
    for i, (setup, amount, row) in enumerate(zip(setups, amounts, rows, strict=True)):
        predicted = sum(costs.predict(setup, amount, prices).values())
        row["use"] = "fitted" if i < k else "held out"
        row["predicted_seconds"], row["error"] = predicted, predicted / row["seconds"] - 1.0
        row["memory_error"] = row["planned_mb"] / row["peak_mb"] - 1.0
    return {
        "kind": "scaling",
        "task": options.task,
        "obs": options.obs,
        "preset": options.preset,
        "substeps": task.substeps,
        "rounds": options.rounds,
        "quick": options.quick,
        "machine": machine.describe(threads),
        "measured": rows,
        "prices": _described(prices),
        "fit_error": costs.summary([row["error"] for row in rows[:k]]),
        "held_out_error": costs.summary([row["error"] for row in rows[k:]]),
        "memory_error": costs.summary([row["memory_error"] for row in rows]),
        "ranks": _ranks(rows),
        "predictions": _predictions(options, prices),
    }


def _take_turns(options: Options, setups: Sequence[Setup]) -> list[dict[str, Any]]:
    """A row for each setup. All trainings are there from the beginning, and one of them runs at a time."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdpg-scaling-")))
        trainings: list[MeasuredTraining] = []
        stack.callback(_end, trainings)
        for i, setup in enumerate(setups):
            folder = root / str(i)
            job = Job(options.task, options.obs, options.preset, options.seed, setup, str(folder / "run"))
            trainings.append(MeasuredTraining(job, folder))
        for training in trainings:
            training.ready()
        counts: list[int] = []
        said: list[list[dict[str, Any]]] = []
        for training in trainings:
            last = training.turn(WARMUP)["rows"][-1]["seconds"]
            counts.append(min(MOST, max(1, round(options.turn_seconds / last))))
            said.append([])
        for _ in range(options.rounds):
            for training, count, heard in zip(trainings, counts, said, strict=True):
                heard.append(training.turn(count))
        return [_row(setup, heard) for setup, heard in zip(setups, said, strict=True)]


def _end(trainings: Sequence[MeasuredTraining]) -> None:
    for training in trainings:
        training.dismiss()
    for training in trainings:
        training.end()


def _row(setup: Setup, heard: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over all iterations of a setup, and the quartiles of its seconds."""
    rows = [row for turn in heard for row in turn["rows"]]
    seconds = [row["seconds"] for row in rows]
    low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return {
        **asdict(setup),
        "iterations": len(rows),
        "seconds": median(seconds),
        "quartiles": [low, high],
        "rounds": [median(row["seconds"] for row in turn["rows"]) for turn in heard],
        "phases": {name: median(row["phases"][name] for row in rows) for name in rows[0]["phases"]},
        "peak_mb": heard[-1]["peak_mb"],  # of rank 0
        "planned_mb": heard[-1]["planned_mb"],
    }


# --- what follows from it ---------------------------------------------------------------------------------------------


def _described(prices: Mapping[str, Prices]) -> dict[str, Any]:
    """Prices with their units; those that are 0 are left out."""
    return {
        phase: {
            name: {"value": value, "unit": costs.unit(phase, name)} for name, value in prices[phase].items() if value
        }
        for phase in prices
    }


def _ranks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same N, M, T on the same cores: two ranks against one with twice the threads, round by round."""

    def shape(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("num_nominal", "num_auxiliary", "horizon", "size"))

    pairs = []
    for two in rows:
        for one in rows:
            alike = shape(one) == shape(two) and one["threads"] == two["ranks"] * two["threads"]
            if alike and (one["ranks"], two["ranks"]) == (1, 2):
                ratios = [b / a for a, b in zip(one["rounds"], two["rounds"], strict=True)]
                names = ("num_nominal", "num_auxiliary", "horizon", "size", "ranks", "threads", "seconds")
                same = {name: two[name] for name in names}
                pairs.append({**same, "one_rank_seconds": one["seconds"], "ratio": median(ratios)})
    return pairs


def _predictions(options: Options, prices: Mapping[str, Prices]) -> dict[str, Any]:
    """The paper's configuration of the task on the paper's card, and on eight of them."""
    cfg, task, gpu = resolve(options.task, "paper", options.obs), make_task(options.task), costs.Gpu()

    def on(ranks: int, num_nominal: int) -> dict[str, Any]:
        setup = Setup(num_nominal, cfg.num_auxiliary, cfg.algo.history, 1, ranks)
        phases = costs.on_gpu(setup, costs.work(cfg, task, setup), prices, gpu)
        seconds = sum(phases.values())
        return {
            "gpus": ranks,
            "num_nominal": num_nominal,
            "num_auxiliary": cfg.num_auxiliary,
            "horizon": cfg.algo.history,
            "seconds": seconds,
            "phases": phases,
            "hours": {"iterations": cfg.iterations, "value": seconds * cfg.iterations / 3600},
        }

    n = cfg.num_nominal
    return {
        "prediction": True,
        "preset": "paper",
        "assumptions": costs.ASSUMPTIONS,
        gpu.name: on(1, n),
        f"8 x {gpu.name}, the same N": on(8, n),
        f"8 x {gpu.name}, 8 times N": on(8, 8 * n),
    }
