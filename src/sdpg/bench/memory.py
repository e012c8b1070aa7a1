"""How much memory training takes: the peak of whole iterations, each configuration in a process of its own, beside
what `sdpg train` would have announced.

`--scaling` draws the paper's memory-scaling figure: memory against the number of environments, when all of them are
rendered (as for PPO) and when only N are and the rest is physics (as for SDPG).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from sdpg.algos.api import AlgoCfg
from sdpg.bench import machine
from sdpg.build import cameras_of
from sdpg.config import TrainCfg
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.presets import resolve
from sdpg.run.policy import build_algorithm
from sdpg.tasks.base import make_task


@dataclass(frozen=True)
class Options:
    """Peak resident memory of training iterations."""

    task: str = "hopper"
    """A name that `sdpg tasks` lists, or module:Class."""
    obs: Literal["state", "pixels"] = "pixels"
    preset: Literal["cpu", "paper"] = "paper"
    algorithm: str = "sdpg"
    """What learns; of those without branches, give --num-auxiliary 0."""
    num_nominal: int = 64
    num_auxiliary: int = 63
    iterations: int = 2
    """Of a method with a replay buffer: once it is full."""
    buffer: int | None = None
    """Observations that a replay buffer holds; without, as many as the preset says."""
    teacher: str | None = None
    """The run folder of a student's teacher."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    scaling: bool = False
    """Memory against the number of environments, rendered and physics-only, as a figure."""
    environments: tuple[int, ...] = (64, 256, 1024, 2048, 4096)
    """Of --scaling."""
    figure: Path = Path("docs/memory.png")
    """Of --scaling."""


def run(options: Options) -> dict[str, Any]:
    if options.scaling:
        return _scaling(options)
    peak = _peak(options, options.num_nominal, options.num_auxiliary, options.iterations)
    return {
        "kind": "memory",
        "task": options.task,
        "obs": options.obs,
        "preset": options.preset,
        "algorithm": options.algorithm,
        "num_nominal": options.num_nominal,
        "num_auxiliary": options.num_auxiliary,
        "buffer": options.buffer,
        "machine": machine.describe(options.threads or None),
        **peak,
    }


def _peak(options: Options, num_nominal: int, num_auxiliary: int, iterations: int) -> dict[str, Any]:
    """In a fresh process: what an earlier configuration left allocated does not count."""
    words = [options.task, options.obs, options.preset, options.algorithm]
    numbers = [num_nominal, num_auxiliary, iterations, options.threads]
    algo = {"buffer": options.buffer, "teacher": options.teacher}
    given = json.dumps({name: value for name, value in algo.items() if value is not None})
    command = [sys.executable, "-m", "sdpg.bench.memory", *words, *map(str, numbers), given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it was killed, perhaps for want of memory"])[-1]
        raise SdpgError(f"{num_nominal} x (1 + {num_auxiliary}) environments could not be measured: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def _scaling(options: Options) -> dict[str, Any]:
    """Rollouts alone (iterations = 0): the memory of environments, not of updates, which both would share."""
    if uneven := [count for count in options.environments if count < 1 or count % options.num_nominal]:
        raise SdpgError(f"environments {uneven[0]} is not a multiple of num-nominal {options.num_nominal}")
    rows = []
    for count in options.environments:
        rendered = _peak(replace(options, obs="pixels"), count, 0, 0)
        physics = _peak(replace(options, obs="pixels"), options.num_nominal, count // options.num_nominal - 1, 0)
        rows.append({"environments": count, "rendered": rendered["peak_mb"], "physics_only": physics["peak_mb"]})
    _draw(rows, options)
    return {
        "kind": "memory-scaling",
        "task": options.task,
        "num_nominal": options.num_nominal,
        "rows": rows,
        "machine": machine.describe(options.threads or None),
        "figure": str(options.figure),
    }


def _draw(rows: list[dict[str, Any]], options: Options) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
    counts = [row["environments"] for row in rows]
    axes.plot(counts, [row["rendered"] / 1024 for row in rows], "o-", label="every environment rendered")
    physics = f"{options.num_nominal} rendered, the rest physics only"
    axes.plot(counts, [row["physics_only"] / 1024 for row in rows], "s-", label=physics)
    axes.set(xlabel="environments", ylabel="resident memory (GB)", title=f"{options.task}, {_seen(options.task)}")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.figure, dpi=110)
    plt.close(figure)


def _seen(task: str) -> str:
    cameras = cameras_of(make_task(task), "pixels").values()
    return " and ".join(f"{camera.width}x{camera.height}, {camera.stack} frames" for camera in cameras)


def _measure(
    task: str, obs: str, preset: str, algorithm: str, n: int, m: int, iterations: int, threads: int,
    algo: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """The child: whole iterations, or with none of them one segment of random actions whose images are kept."""
    from sdpg.build import make_env
    from sdpg.machine import default_threads, peak_bytes, use_threads
    from sdpg.run.memory import make_plan

    baseline = peak_bytes()
    threads = threads or default_threads()
    use_threads(threads)
    cfg = replace(resolve(task, preset, obs, algorithm), num_nominal=n, num_auxiliary=m)
    cfg = replace(cfg, algo=_with(cfg.algo, algo))
    planned = make_plan(cfg).total
    env = make_env(task, n, m, 0, threads, obs)
    if iterations:
        _iterate(cfg, env, iterations)
    else:
        _play_segment(cfg, env)
    facts = {"peak_mb": peak_bytes(), "import_mb": baseline, "planned_mb": planned}
    return {name: round(size / 2**20, 1) for name, size in facts.items()}


def _with(algo: AlgoCfg, values: Mapping[str, Any]) -> AlgoCfg:
    if unknown := [name for name in values if not hasattr(algo, name)]:
        raise SdpgError(f"{algo.name} has no {unknown[0]}")
    if "buffer" in values and getattr(algo, "seed_steps", 0) > values["buffer"]:
        values = {**values, "seed_steps": values["buffer"]}
    return replace(algo, **values)


def _iterate(cfg: TrainCfg, env: BranchedEnv, iterations: int) -> None:
    """The memory of a replay buffer is taken as it fills: it is full before anything is learnt."""
    algo = build_algorithm(cfg, env)
    if buffer := getattr(cfg.algo, "buffer", 0):
        for _ in range(math.ceil(buffer / (cfg.algo.steps * cfg.num_nominal))):  # type: ignore[attr-defined]
            algo.collect(env)
    for _ in range(iterations):
        algo.update(algo.collect(env))


def _play_segment(cfg: TrainCfg, env: BranchedEnv) -> None:
    import torch

    seen = []
    for _ in range(cfg.algo.history):
        seen.append({name: source.clone() for name, source in env.observe().sources.items()})
        env.restart(env.step(torch.rand(*env.grid, env.task.action_size) * 2 - 1))


if __name__ == "__main__":
    task_, obs_, preset_, algorithm_, *numbers, algo_ = sys.argv[1:]
    n_, m_, iterations_, threads_ = map(int, numbers)
    words = (task_, obs_, preset_, algorithm_)
    found = _measure(*words, n_, m_, iterations_, threads_, json.loads(algo_))
    sys.stdout.write(json.dumps(found) + "\n")
