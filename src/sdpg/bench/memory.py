"""How much memory training takes: the peak of whole iterations, each configuration in a process of its own, beside
what `sdpg train` would have announced.

`--scaling` draws the paper's memory-scaling figure: memory against the number of environments, when all of them are
rendered (as for PPO) and when only N are and the rest is physics (as for SDPG).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sdpg.bench import machine
from sdpg.build import cameras_of
from sdpg.errors import SdpgError
from sdpg.presets import resolve
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
        "machine": machine.describe(options.threads or None),
        **peak,
    }


def _peak(options: Options, num_nominal: int, num_auxiliary: int, iterations: int) -> dict[str, Any]:
    """In a fresh process: what an earlier configuration left allocated does not count."""
    words = [options.task, options.obs, options.preset, options.algorithm]
    numbers = [num_nominal, num_auxiliary, iterations, options.threads]
    command = [sys.executable, "-m", "sdpg.bench.memory", *words, *map(str, numbers)]
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
    task: str, obs: str, preset: str, algorithm: str, n: int, m: int, iterations: int, threads: int
) -> dict[str, Any]:
    """The child: whole iterations, or with none of them one segment of random actions whose images are kept."""
    import torch

    from sdpg.build import make_env
    from sdpg.machine import default_threads, peak_bytes, use_threads
    from sdpg.run.memory import make_plan
    from sdpg.run.policy import build_algorithm

    baseline = peak_bytes()
    threads = threads or default_threads()
    use_threads(threads)
    cfg = replace(resolve(task, preset, obs, algorithm), num_nominal=n, num_auxiliary=m)
    planned = make_plan(cfg).total
    env = make_env(task, n, m, 0, threads, obs)
    if iterations:
        algo = build_algorithm(cfg, env)
        for _ in range(iterations):
            algo.update(algo.collect(env))
    else:
        seen = []
        for _ in range(cfg.algo.history):
            seen.append({name: source.clone() for name, source in env.observe().sources.items()})
            env.restart(env.step(torch.rand(*env.grid, env.task.action_size) * 2 - 1))
    facts = {"peak_mb": peak_bytes(), "import_mb": baseline, "planned_mb": planned}
    return {name: round(size / 2**20, 1) for name, size in facts.items()}


if __name__ == "__main__":
    task_, obs_, preset_, algorithm_, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(_measure(task_, obs_, preset_, algorithm_, *map(int, numbers))) + "\n")
