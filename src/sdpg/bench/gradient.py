"""What an ascent direction is worth at a frozen checkpoint: how much of it is signal, and where that points.

Noise is drawn anew several times from one simulator state. With d_i the directions (T, N, A) of the draws,

    signal share = mean_{i != j} <d_i, d_j> / mean_i |d_i|^2

is the part of their power that does not depend on the noise. A policy that sees the state is also held against a
reference: at a few times of the segment a single action is perturbed, and the policy itself goes on from there, long
enough that no critic is needed. With r_k that direction, estimated several times, and S = mean_{i != j} <., .>,

    cosine = <d_i, r> / (|d_i| sqrt S_r)        of one direction, noise and all
    alignment = <d, r> / sqrt(S_d S_r)          of what is signal in it: 1 if it is only noisy, less if it is biased

Corrected for what noise adds to the lengths, both may pass 1 by chance. The same long returns tell what the critic is
wrong about: values of nominals, of branches at the end of a segment, and their difference, which actions are judged by.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sdpg.algos.sdpg import advantage, ascent_direction, divergence, exploration_noise, squash
from sdpg.bench import machine
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.machine import default_threads, use_threads
from sdpg.run import checkpoint
from sdpg.run.policy import build_algorithm, restore
from sdpg.run.resume import cfg_from_dict
from sdpg.tasks.base import make_task
from sdpg.types import Rollout

QUARTERS = 4  # of a segment, which shares are told for
DRAW = 1_000_003  # between the seeds of two draws of the noise
FAR = 1000  # draws that are left to those of the directions; the reference's come after them
BASELINES: tuple[Literal["nominal", "value"], ...] = ("nominal", "value")
ALWAYS: dict[str, Any] = {"denominator": "sigma", "causal": True, "eligibility_trace": True}


@dataclass(frozen=True)
class Options:
    """Signal, noise and bias of the ascent direction at a checkpoint; errors of the critic."""

    run: Path = Path()
    """A run folder."""
    checkpoint: str = "last"
    """"last", "best", or an iteration."""
    draws: int = 8
    """Times that the noise is drawn anew."""
    lams: tuple[float, ...] = (0.5, 0.8, 0.95, 1.0)
    """Lambda of the returns that directions are made of."""
    times: tuple[int, ...] = (0, 8, 16, 24)
    """Steps of the segment at which the reference perturbs an action."""
    repeats: int = 4
    """Times that each of them is estimated."""
    steps: int = 400
    """Of the reference's returns and of those that the critic is compared with."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    task: str | None = None
    """The run's task, if it is a module:Class: its code is imported because you say so, not because a file does."""
    figure: Path | None = None
    """Save the figure here (PNG)."""
    branch_steps: tuple[int, ...] = ()
    """Steps after which branches become their nominals again, each measured by itself; as the run has it, if not
    given."""


# --- sums over draws --------------------------------------------------------------------------------------------------


def power(d: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (D, T, N, A) of D draws -> of every time, the mean of |d_i|^2 and of <d_i, d_j>, i != j: (T,) each."""
    count = len(d)
    own = d.square().sum((0, 2, 3))
    total = d.sum(0).square().sum((1, 2))
    return own / count, (total - own) / (count * (count - 1))


def by_quarter(signal: Tensor, whole: Tensor) -> list[float]:
    """Signal share within each quarter of the segment."""
    pairs = zip(signal.tensor_split(QUARTERS), whole.tensor_split(QUARTERS), strict=True)
    return [(s.sum() / w.sum()).item() if len(s) else float("nan") for s, w in pairs]


def agreement(d: Tensor, reference: Tensor, signal: Tensor, reference_signal: Tensor) -> dict[str, float]:
    """Cosine of one of the directions d (D, R, N, A), and alignment of their signal, with the reference (C, R, N, A),
    over the R times of the reference; `signal` (R,) each. The cosine's standard error is that over rows: another N
    rows would have given another one."""
    rows = (d.mean(0) * reference.mean(0)).sum((0, 2))  # (N,)
    length = d.square().sum((1, 2, 3)).mean().sqrt()
    own, true = (x.sum().clamp(min=0.0).sqrt() for x in (signal, reference_signal))
    return {
        "cosine": (rows.sum() / (length * true)).item(),
        "cosine_error": (rows.std() * len(rows) ** 0.5 / (length * true)).item(),
        "alignment": (rows.sum() / (own * true)).item(),
    }


def errors(value: Tensor, truth: Tensor) -> dict[str, float]:
    """Of a critic's values (n,) against returns (n,)."""
    both = torch.stack((value, truth)).double()
    return {
        "count": len(value),
        "mean_return": both[1].mean().item(),
        "bias": (both[0] - both[1]).mean().item(),
        "rms": (both[0] - both[1]).square().mean().sqrt().item(),
        "correlation": torch.corrcoef(both)[0, 1].item(),
    }


# --- what is simulated ------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A run at a checkpoint, which every measurement begins from again."""

    algo: Any  # the paper's
    env: BranchedEnv
    algo_state: dict[str, Any]
    env_state: dict[str, Tensor]

    @property
    def sees_state(self) -> bool:
        return self.algo.sources == ("state",)

    def again(self, cfg: Any, draw: int = 0) -> None:
        """Back to the checkpoint, with these options and another noise."""
        self.algo.load_state_dict(copy.deepcopy(self.algo_state))
        self.env.load_state_dict(self.env_state)
        self.algo.cfg, self.algo.seed = cfg, DRAW * (draw + 1)

    def rollouts(self, cfg: Any, count: int) -> list[Rollout]:
        drawn = []
        for draw in range(count):
            self.again(cfg, draw)
            drawn.append(self.algo.collect(self.env))
        return drawn

    def direction(self, rollout: Rollout, cfg: Any) -> Tensor:
        """(T, N, A) of the mean."""
        self.algo.cfg = cfg
        returns, _ = self.algo._returns(rollout)
        weight = advantage(returns, None, normalize=True)
        return ascent_direction(weight, rollout.noise, rollout.log_std.exp(), cfg.denominator)[0]

    @torch.no_grad()
    def follow(self, steps: int) -> Tensor:
        """(N, K) discounted returns of every world under the policy itself, until it ends or for so many steps."""
        algo, env, cfg = self.algo, self.env, self.algo.cfg
        alive = torch.ones(env.grid, dtype=torch.bool, device=env.device)
        total, discount = torch.zeros(env.grid, device=env.device), cfg.reward_scale
        for _ in range(steps):  # without restarts: what has ended goes on, and nobody counts it
            mean, _ = algo.actor({"state": env.observe().state})
            step = env.step(squash(mean, cfg.mean_bound))
            total += torch.where(alive, discount * step.reward, 0.0)
            alive &= ~step.terminated
            discount *= algo.gamma
        return total

    @torch.no_grad()
    def reference(self, cfg: Any, time: int, repeat: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """The direction (N, A) at a time of the segment, and of its nominals (N,) the critic's value and the return."""
        self.again(cfg, FAR + repeat)
        algo, env, k = self.algo, self.env, self.env.num_branches
        env.branch()
        for t in range(time + 1):
            obs = env.observe()
            mean, log_std = algo._bounded(*algo.actor(obs.sources))
            noise = exploration_noise(algo.seed, time, env.rows, (1, k - 1, mean.shape[-1]), cfg.antithetic)[0]
            std = log_std.exp()[:, None] if t == time else 0.0
            step = env.step(squash(mean[:, None] + std * noise, cfg.mean_bound))
            if t < time:
                env.restart(step)
        first = cfg.reward_scale * step.reward
        returns = first + torch.where(step.terminated, 0.0, algo.gamma * self.follow(steps))
        weight = advantage(returns[None], None, normalize=True)
        direction = ascent_direction(weight, noise[None], log_std.exp()[None], cfg.denominator)[0][0]
        value = algo._target_value(obs.state[None])[0]
        return direction, value[:, 0], returns[:, 0]

    @torch.no_grad()
    def branch_values(self, cfg: Any, steps: int) -> dict[str, dict[str, float]]:
        """Errors of the critic at the end of a segment, of branches that were on their own all the time."""
        self.again(cfg)
        self.algo.collect(self.env)
        value = self.algo._target_value(self.env.observe().state[None])[0]
        apart = self.env.steps_since_branch == cfg.horizon  # (N, K)
        truth = self.follow(steps)
        return {
            "branches": errors(value[apart], truth[apart]),
            "difference": errors((value - value[:, :1])[apart], (truth - truth[:, :1])[apart]),
        }

    def update(self, rollouts: list[Rollout], directions: Tensor, cfg: Any) -> dict[str, float]:
        """One update with the first draw: its KL, and its first-order gain by its own direction and by the others'."""
        first = rollouts[0]
        self.again(cfg)
        self.algo.update(first)
        with torch.no_grad():
            sources = {name: source.flatten(0, 1) for name, source in first.sources.items()}
            mean, log_std = self.algo._bounded(*self.algo.actor(sources))
        new = mean.view_as(first.mean), log_std.view_as(first.mean)
        change, kl = new[0] - first.mean, divergence(first.mean, first.log_std, *new)  # of the old from the new one
        self.again(cfg)
        gain = (change[None] * directions).mean((1, 2, 3))  # (D,)
        return {
            "kl": kl.mean().item(),
            "gain_own": gain[0].item(),
            "gain_held_out": gain[1:].mean().item(),
            "std_change": (new[1] - first.log_std).mean().item(),
        }


def load(options: Options) -> Bench:
    folder = checkpoint.find(options.run, options.checkpoint)
    saved = checkpoint.load(folder)
    cfg = cfg_from_dict(saved.cfg, options.task)
    if cfg.algorithm != "sdpg":
        raise SdpgError(f"this is a run of {cfg.algorithm}: it has no branches whose noise gives a direction")
    threads = options.threads or default_threads()
    use_threads(threads)
    task = make_task(cfg.task, cfg.task_cfg)
    env = make_env(task, cfg.num_nominal, cfg.num_auxiliary, cfg.seed, threads, cfg.obs, cfg.max_value)
    algo = build_algorithm(cfg, env)
    restore(saved, algo, env)
    return Bench(algo, env, copy.deepcopy(algo.state_dict()), copy.deepcopy(env.state_dict()))


def run(options: Options) -> dict[str, Any]:
    if not 2 <= options.draws <= FAR or options.repeats < 2:
        raise SdpgError(
            "draws and repeats must be at least 2, because what two of them share is signal; draws at most 1000"
        )
    bench = load(options)
    base = replace(bench.algo.cfg, **ALWAYS)
    if max(options.times, default=0) >= base.horizon:
        raise SdpgError(f"times must be below the horizon of {base.horizon}")
    result: dict[str, Any] = {
        "kind": "gradient",
        "machine": machine.describe(options.threads or None),
        "run": options.run.name,
        "iteration": bench.algo.iteration,
        "draws": options.draws,
        "std": bench.algo.actor.log_std.exp().mean().item() if bench.algo.actor.log_std_head is None else None,
    }
    reference = None
    if bench.sees_state:
        reference = _reference(bench, base, options, result)
    rows = []
    for steps in options.branch_steps or (base.branch_steps or base.horizon,):
        rollouts = bench.rollouts(replace(base, branch_steps=steps), options.draws)
        for baseline, lam in itertools.product(BASELINES, options.lams):
            cfg = replace(base, branch_steps=steps, baseline=baseline, lam=lam)
            directions = torch.stack([bench.direction(rollout, cfg) for rollout in rollouts])  # (D, T, N, A)
            row = _row(bench, rollouts, directions, cfg, reference, options)
            rows.append({"branch_steps": steps, "baseline": baseline, "lam": lam} | row)
    if bench.sees_state:
        result["critic"] |= bench.branch_values(replace(base, branch_steps=None), options.steps)
    result["rows"] = rows
    if options.figure is not None:
        _draw(result, options.figure)
    return result


def _reference(bench: Bench, cfg: Any, options: Options, result: dict[str, Any]) -> Tensor:
    """(C, R, N, A) of C repeats at R times. Into `result`: its own share of signal, the errors of nominals' values."""
    found = [[bench.reference(cfg, t, i, options.steps) for t in options.times] for i in range(options.repeats)]
    reference = torch.stack([torch.stack([direction for direction, _, _ in row]) for row in found])
    whole, signal = power(reference)
    value, truth = (torch.cat([measured[part] for measured in found[0]]) for part in (1, 2))
    result["reference"] = {"times": list(options.times), "share": (signal / whole).tolist()}
    result["critic"] = {"nominals": errors(value, truth)}
    return reference


def _row(
    bench: Bench, rollouts: list[Rollout], d: Tensor, cfg: Any, reference: Tensor | None, options: Options
) -> dict[str, Any]:
    whole, signal = power(d)
    row: dict[str, Any] = {"share": (signal.sum() / whole.sum()).item(), "share_by_quarter": by_quarter(signal, whole)}
    if reference is not None:
        times = list(options.times)
        true = power(reference)[1]
        row |= agreement(d[:, times], reference, signal[times], true)
        single = (agreement(d[:, [t]], reference[:, [i]], signal[[t]], true[[i]]) for i, t in enumerate(times))
        row["cosine_by_time"] = [found["cosine"] for found in single]
    return row | bench.update(rollouts, d, cfg)


def _draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    keys = ["share", "cosine"] if "cosine" in result["rows"][0] else ["share"]
    figure, grid = plt.subplots(1, 1 + len(keys), figsize=(4 * (1 + len(keys)), 3.6), layout="constrained")
    several = len({row["branch_steps"] for row in result["rows"]}) > 1
    lines = itertools.groupby(result["rows"], lambda row: (row["branch_steps"], row["baseline"]))
    for i, ((steps, baseline), members) in enumerate(lines):
        rows, label = list(members), "own value" if baseline == "value" else "nominal's return"
        label = f"{label}, {steps} steps" if several else label
        for axes, key in zip(grid[1:], keys, strict=True):
            axes.plot([row["lam"] for row in rows], [row[key] for row in rows], "o-", color=f"C{i}", label=label)
            axes.set(xlabel="lambda", title=key)
        middle = min(rows, key=lambda row: abs(row["lam"] - 0.95))
        grid[0].plot(range(1, QUARTERS + 1), middle["share_by_quarter"], "o-", color=f"C{i}", label=label)
    grid[0].set(xlabel="quarter of the segment", title="share, lambda nearest to 0.95", xticks=range(1, QUARTERS + 1))
    grid[0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
