"""The run loop: collect, update, log, save; stopped by iterations, time, signals or too many failed worlds."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from sdpg import checkpoint, track
from sdpg.algos.sdpg import Sdpg
from sdpg.build import collecting, default_threads, make_env
from sdpg.config import TrainCfg
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.folder import RunFolder, State, cant_write, cfg_from_dict, refuse_another, refuse_what_is_there, versions
from sdpg.log import RunLog
from sdpg.plan import make_plan, resident_bytes
from sdpg.quarantine import Quarantine
from sdpg.tasks.base import make_task
from sdpg.types import Metrics, Rollout

PATIENCE, RETRY = 60.0, 5.0  # seconds: how long, and how often, the last checkpoint is tried

Report = Callable[[str, Mapping[str, Any]], None]
"""(what, facts): "plan" (memory), "start", "iteration" (the row of metrics.jsonl), "saved", "warning" (its
"message"), "end"."""


def train(
    cfg: TrainCfg,
    run_dir: Path | str | None = None,
    resume: bool = False,
    report: Report = lambda what, facts: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run until `cfg.iterations`, `cfg.minutes` or `stop()`; the summary of the run.

    With `resume`, `run_dir` goes on from its last checkpoint, exactly as if it had never stopped.
    """
    started = time.monotonic()
    cfg.validate()
    if cfg.device == "cuda":
        raise SdpgError("device cuda: this version has physics on the CPU only; give --device cpu or auto")
    track.require(cfg.track)
    saved = checkpoint.load(checkpoint.find(Path(run_dir))) if resume and run_dir is not None else None
    before = cfg_from_dict(saved.cfg) if saved is not None else cfg
    if not cfg.algo.schedule_iterations:  # for good: a run that is prolonged keeps its schedules
        length = before.algo.schedule_iterations or cfg.iterations
        cfg = dataclasses.replace(cfg, algo=dataclasses.replace(cfg.algo, schedule_iterations=length))
    if saved is not None:
        refuse_another(before, cfg)
    elif run_dir is not None:
        refuse_what_is_there(Path(run_dir))
    plan = make_plan(cfg)
    plan.refuse_what_does_not_fit()
    report("plan", plan.facts())
    threads = cfg.threads or default_threads()
    torch.set_num_threads(threads)
    env = make_env(make_task(cfg.task), cfg.num_nominal, cfg.num_auxiliary, cfg.seed, threads, cfg.obs, cfg.max_value)
    algo = Sdpg(cfg.algo, env, env.task.inputs[cfg.obs], cfg.seed)
    earlier = 0.0  # seconds of other sessions
    if saved is not None:
        restore(saved, algo, env)
        earlier = float(saved.state["run"]["seconds"])
    folder = RunFolder(run_dir, cfg, env, resume, warn=lambda message: report("warning", {"message": message}))
    run = _Run(cfg, folder, env, algo, report, clock=lambda: earlier + time.monotonic() - started)
    report("start", {"run": str(folder.path), "task": cfg.task, "iteration": algo.iteration, "threads": threads})
    return run.loop(stop)


class _Run:
    """One session of a run; `clock` counts the seconds of all of its sessions."""

    def __init__(
        self, cfg: TrainCfg, folder: RunFolder, env: BranchedEnv, algo: Sdpg, report: Report, clock: Callable[[], float]
    ):
        self.cfg, self.folder, self.env, self.algo, self.report, self.clock = cfg, folder, env, algo, report, clock
        self.saved_at = algo.iteration
        self.due = algo.iteration + cfg.checkpoint_every
        self.row: dict[str, Any] = {}
        self.save_seconds = 0.0  # since the last row
        about = {"task": cfg.task, "versions": versions()}
        self.quarantine = Quarantine(env, folder.path, about, cfg.algo.horizon, algo.iteration, self.warn)
        try:
            resume_at = algo.iteration if algo.iteration else None
            self.log = RunLog(folder.path, self.warn, resume_at, track.open_trackers(cfg, folder.path, self.warn))
        except OSError as error:
            raise cant_write(folder.path, error) from error
        self.status("running")

    def warn(self, message: str) -> None:
        self.report("warning", {"message": message})

    def status(self, state: State, message: str = "") -> None:
        names = ("iteration", "iterations", "seconds", "mean_reward")
        summary = self._summary("")
        self.folder.status(state, {name: summary[name] for name in names}, message)

    def loop(self, stop: Callable[[], bool]) -> dict[str, Any]:
        try:
            summary = self._loop(stop)
        except BaseException as error:
            self.status("failed", str(error) or type(error).__name__)
            raise
        else:
            self.status("interrupted" if summary["reason"] == "stopped" else "finished")
        finally:
            self.log.close()
            self.folder.close()
        self.report("end", summary)
        return summary

    def _loop(self, stop: Callable[[], bool]) -> dict[str, Any]:
        cfg, algo = self.cfg, self.algo
        reason = "iterations"
        while algo.iteration < cfg.iterations:
            if stop():
                reason = "stopped"
                break
            if cfg.minutes is not None and self.clock() >= 60.0 * cfg.minutes:
                reason = "minutes"
                break
            self._iterate()
        self._save_at_last()
        return self._summary(reason)

    def _iterate(self) -> None:
        cfg, algo, env = self.cfg, self.algo, self.env
        start = time.perf_counter()
        with collecting(env):
            rollout = algo.collect(env)
        middle = time.perf_counter()
        failed = rollout.failed.float().mean().item()
        what = self.quarantine.write(algo.iteration + 1, stops=failed > cfg.max_failed)
        if failed > cfg.max_failed:  # before the update: the policy that is saved is still a sound one
            self._log({}, rollout, failed, middle - start, 0.0)
            self._save()
            raise SdpgError(self._failure(what[0], failed))
        metrics = algo.update(rollout, cfg.iterations)
        self._log(metrics, rollout, failed, middle - start, time.perf_counter() - middle)
        if self.due <= algo.iteration < cfg.iterations:  # the last one is saved by the loop
            self._save_and_go_on()

    def _save_and_go_on(self) -> None:
        start = time.perf_counter()
        trouble = self._save()
        every = self.cfg.checkpoint_every
        self.due = self.algo.iteration + (every if trouble is None else max(1, every // 10))
        if trouble is not None:
            self.warn(f"{trouble}; the run goes on and tries again after iteration {self.due}")
        self.save_seconds = time.perf_counter() - start

    def _log(self, metrics: Metrics, rollout: Rollout, failed: float, collecting: float, updating: float) -> None:
        cfg, env = self.cfg, self.env
        iteration = self.algo.iteration + (not metrics)  # an iteration that was given up has its row too
        worlds, steps = rollout.reward[0].numel(), rollout.reward.shape[0]  # N K, T
        mean_return, mean_length = env.mean_episode()
        sound = ~rollout.failed[-1, :, 0]  # (N,)
        self.row = {
            "iteration": iteration,
            "seconds": self.clock(),
            "Train/mean_reward": mean_return,
            "Train/mean_episode_length": mean_length,
            "Train/reward_per_step": rollout.reward[:, :, 0].mean().item() / cfg.algo.reward_scale,
            "Train/episodes": env.episodes,
            "Train/env_steps": iteration * worlds * steps,
            "Train/images": iteration * steps * cfg.num_nominal * (len(env.eyes.cameras) if env.eyes else 0),
            "Train/failed": failed,
            "Train/failed_nominal": int(rollout.failed[:, :, 0].sum()),
            "Train/failed_auxiliary": int(rollout.failed[:, :, 1:].sum()),
            "Train/dumps": len(self.quarantine.dumps),
            **{f"Episode_Reward/{name}": term[sound, 0].mean().item() for name, term in env.terms.items()},
            **metrics,
            "Perf/total_fps": worlds * steps / max(collecting + updating, 1e-9),
            "Perf/collect_seconds": collecting,
            "Perf/update_seconds": updating,
            "Perf/save_seconds": self.save_seconds,
            "Perf/memory_mb": resident_bytes() / 2**20,
        }
        self.save_seconds = 0.0
        self.log.write(self.row)
        self.report("iteration", self.row)

    def _save(self) -> str | None:
        """A checkpoint of now. What went wrong is returned: nothing is lost as long as the run goes on."""
        if self.algo.iteration == self.saved_at:
            return None
        state = {"algo": self.algo.state_dict(), "env": self.env.state_dict(), "run": {"seconds": self.clock()}}
        root, keep, score = self.folder.checkpoints, self.cfg.keep_checkpoints, self.env.mean_episode()[0]
        try:
            if not self.folder.whole:
                self.warn(f"the run folder {self.folder.path} was gone; made it anew, with what is known now")
                self.folder.mend()
            path = checkpoint.save(
                root,
                self.algo.iteration,
                state,
                dataclasses.asdict(self.cfg),
                keep,
                score if math.isfinite(score) else None,
            )
        except OSError as error:
            return f"can't save iteration {self.algo.iteration} in {root}: {error.strerror or error}"
        self.saved_at = self.algo.iteration
        self.status("running")
        self.report("saved", {"checkpoint": str(path)})
        return None

    def _save_at_last(self) -> None:
        """The one save that can't wait for a later one is tried for a while: space may be made, a disk come back."""
        given_up = time.monotonic() + PATIENCE
        trouble = self._save()
        if trouble is not None:
            self.warn(f"{trouble}; trying again for {PATIENCE:.0f} s: free some space")
        while trouble is not None and time.monotonic() < given_up:
            time.sleep(RETRY)
            trouble = self._save()
        if trouble is not None:
            raise SdpgError(f"{trouble}; older checkpoints are untouched; free some space and --resume")

    def _failure(self, what: str, failed: float) -> str:
        """The sentence that a run ends with; `what` was wrong first."""
        task, dumps = self.cfg.task, self.quarantine.dumps
        fixes = {
            "reward term": "mend that term",
            "the reward": "scale its terms down",
            "observation": "mend that observation",
            "action": "look at start() and the observations, from which the policy made it",
        }
        physics = "look at its actuators, contacts and timestep"
        fix = next((fix for kind, fix in fixes.items() if what.startswith(kind)), physics)
        look = f"`sdpg replay {dumps[-1]}` shows how it came about" if dumps else f"`sdpg check {task}` looks closer"
        return (
            f"task '{task}': {100 * failed:.0f} % of its world-steps gave a non-finite or exploded reward or state "
            f"({what}); {fix} ({look}), or allow more by --max-failed"
        )

    def _summary(self, reason: str) -> dict[str, Any]:
        mean_return, mean_length = self.env.mean_episode()
        return {
            "run": str(self.folder.path),
            "task": self.cfg.task,
            "algorithm": self.cfg.algorithm,
            "reason": reason,
            "iteration": self.algo.iteration,
            "iterations": self.cfg.iterations,
            "seconds": self.clock(),
            "mean_reward": mean_return if math.isfinite(mean_return) else None,
            "mean_episode_length": mean_length if math.isfinite(mean_length) else None,
            "fps": self.row.get("Perf/total_fps"),
            "env_steps": self.row.get("Train/env_steps"),
        }


def restore(saved: checkpoint.Checkpoint, algo: Sdpg, env: BranchedEnv | None) -> None:
    """Put a checkpoint's state into freshly built objects; without `env`, the algorithm alone."""
    try:
        algo.load_state_dict(saved.state["algo"])
        if env is not None:
            env.load_state_dict(saved.state["env"])
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SdpgError(
            f"the checkpoint of iteration {saved.iteration} does not fit this version's task and networks ({reason}); "
            "use the versions that the run's config.json names"
        ) from error


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT or SIGTERM asks the run to stop after its iteration; the second ends the process."""
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
