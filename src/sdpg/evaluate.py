"""How good a policy is: whole episodes with deterministic actions, one per world."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sdpg.algos.api import Policy, begin_where
from sdpg.build import make_env
from sdpg.engines import choose_engine
from sdpg.env import BranchedEnv
from sdpg.machine import default_threads, use_threads
from sdpg.ranges import require_in_range
from sdpg.rng import RowRng
from sdpg.run import checkpoint
from sdpg.run.memory import make_plan
from sdpg.run.policy import SimplePolicy, load_policy
from sdpg.run.resume import cfg_from_dict, engine_of
from sdpg.tasks.base import make_task
from sdpg.types import Progress

SEED = 1000  # of evaluations; training seeds are small numbers, so starts are new to the policy


def evaluate(
    run: Path | str,
    episodes: int = 64,
    seed: int = SEED,
    which: str | int = "last",
    threads: int = 0,
    progress: Progress = iter,
    task: str | None = None,
) -> dict[str, Any]:
    """Evaluate a run's checkpoint (`which`: "last" or an iteration), or a checkpoint folder, on the engine that it was
    trained with; on a GPU if the run allows it and there is one. A `task` that is not registered by name must be given:
    a file does not choose which code is imported."""
    require_in_range({"episodes": episodes, "seed": seed, "threads": threads})
    folder = checkpoint.find(Path(run), which)
    saved = checkpoint.load(folder)
    cfg = replace(cfg_from_dict(saved.cfg, task), num_nominal=episodes)
    engine = choose_engine(engine_of(cfg), "cpu" if cfg.device == "cpu" else "auto")
    size = replace(cfg, num_auxiliary=0, memory_gb=None, sim=engine.sim, device=engine.device)
    make_plan(size, learning=False).require_room_for_episodes()
    threads = threads or default_threads()
    use_threads(threads)
    env = make_env(
        make_task(cfg.task, cfg.task_cfg),
        episodes,
        seed=seed,
        threads=threads,
        obs=cfg.obs,
        max_value=cfg.max_value,
        sim=engine.sim,
        device=engine.device,
    )
    policy = load_policy(saved, env, task)
    start = time.perf_counter()
    result = run_episodes(policy, env, progress)
    return {
        "task": cfg.task,
        "algorithm": cfg.algorithm,
        "sim": engine.sim,
        "device": engine.device,
        "checkpoint": str(folder),
        "iteration": saved.iteration,
        "train_seconds": saved.seconds,
        "train_seed": cfg.seed,
        "seed": seed,
        **result,
        "seconds": time.perf_counter() - start,
    }


def evaluate_simple(
    task: str,
    policy: Literal["zero", "random"],
    episodes: int = 64,
    seed: int = SEED,
    threads: int = 0,
    progress: Progress = iter,
) -> dict[str, Any]:
    """The same for a policy that has learned nothing, on the CPU: what a trained one has to beat."""
    require_in_range({"episodes": episodes, "seed": seed, "threads": threads})
    threads = threads or default_threads()
    use_threads(threads)
    env = make_env(make_task(task), episodes, seed=seed, threads=threads, obs="state", sim="cpu", device="cpu")
    start = time.perf_counter()
    result = run_episodes(SimplePolicy(policy, env.task.action_size, RowRng(seed, env.rows)), env, progress)
    about = {"task": task, "algorithm": policy, "sim": "cpu", "device": "cpu", "seed": seed}
    return about | result | {"seconds": time.perf_counter() - start}


@torch.no_grad()
def run_episodes(policy: Policy, env: BranchedEnv, progress: Progress = iter) -> dict[str, Any]:
    """One episode in each of the N nominal worlds: short episodes count no more than long ones."""
    n, device = env.num_nominal, env.device
    alive = torch.ones(n, dtype=torch.bool, device=device)
    returns = torch.zeros(n, dtype=torch.float64, device=device)
    lengths = torch.zeros(n, dtype=torch.int64, device=device)
    fallen, failed = torch.zeros_like(alive), torch.zeros_like(alive)
    sums: dict[str, Tensor] = {}
    measures: dict[str, Tensor] = {}  # name -> (N,) float64, NaN where a world failed
    carry = policy.carry(n)
    for _ in progress(range(env.task.episode_steps)):
        action, carry = policy(env.observe().sources, carry)  # (N, A)
        step = env.step(action[:, None].expand(-1, env.num_branches, -1))
        # Worlds that are through go on with episodes that nobody counts.
        returns += torch.where(alive, step.reward[:, 0], 0.0)
        lengths += alive
        for name, term in step.terms.items():
            counted = alive & ~step.failed[:, 0]
            total = torch.where(counted, term[:, 0], 0.0).sum().double()
            sums[name] = sums[name] + total if name in sums else total
        fallen |= alive & step.terminated[:, 0]
        failed |= alive & step.failed[:, 0]
        ends = (step.terminated | step.truncated)[:, 0]
        for name, values in env.measures().items() if (alive & ends).any() else ():
            told = torch.where(step.failed[:, 0], torch.nan, values.double())
            measures[name] = torch.where(alive & ends, told, measures.get(name, torch.nan))
        alive &= ~ends
        if not alive.any():
            break
        carry = begin_where(policy, carry, env.restart(step)[:, 0])
    steps = int(lengths.sum())
    return {
        "episodes": n,
        "return": _spread(returns),
        "length": _spread(lengths.double()),
        "survived": 1.0 - fallen.double().mean().item(),
        "fell": fallen.double().mean().item(),
        "failed": failed.double().mean().item(),
        "measures": {name: _spread(values[values.isfinite()]) for name, values in measures.items()},
        "reward_per_step": {name: total.item() / steps for name, total in sums.items()},
        "returns": [round(value, 3) for value in returns.tolist()],
    }


def _spread(x: Tensor) -> dict[str, float]:
    if not len(x):
        return dict.fromkeys(("mean", "std", "min", "max"), float("nan"))
    std = x.std().item() if len(x) > 1 else 0.0
    return {"mean": x.mean().item(), "std": std, "min": x.min().item(), "max": x.max().item()}
