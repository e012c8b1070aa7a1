"""The run loop: collect, update, log, save; stopped by iterations, time, signals or too many failed worlds.

All ranks run the same loop, each on its own rows. Rank 0 alone reads and writes the run's folder, and reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from sdpg.algos.api import Algorithm
from sdpg.build import make_env
from sdpg.config import TrainCfg
from sdpg.distributed import ALONE, Group
from sdpg.engines import choose_engine
from sdpg.env import BranchedEnv, join_rows
from sdpg.errors import SdpgError
from sdpg.machine import collecting, default_threads, peak_bytes, resident_bytes, use_threads
from sdpg.run import checkpoint, trackers
from sdpg.run.failures import FailureRecorder
from sdpg.run.folder import RunFolder, cant_write, require_empty
from sdpg.run.listing import State
from sdpg.run.log import RunLog
from sdpg.run.memory import Plan, make_plan
from sdpg.run.pace import Pace
from sdpg.run.policy import build_algorithm, restore
from sdpg.run.provenance import versions
from sdpg.run.resume import cfg_from_dict, engine_of, require_same_options, saved_options
from sdpg.tasks.base import make_task
from sdpg.types import Counts, Metrics

PATIENCE, RETRY = 60.0, 5.0  # seconds: how long, and how often, the last checkpoint is tried

Report = Callable[[str, Mapping[str, Any]], None]
"""(what, facts): "plan" (memory), "start", "schedule" (its "iterations", once they are known of a run of some minutes),
"iteration" (the row of metrics.jsonl), "saved", "warning" (its "message"), "end"."""


def _silent(what: str, facts: Mapping[str, Any]) -> None:
    """Reports to nobody."""


def train(
    cfg: TrainCfg,
    run_dir: Path | str | None = None,
    resume: bool = False,
    report: Report = _silent,
    stop: Callable[[], bool] = lambda: False,
    group: Group = ALONE,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Trains until `cfg.iterations`, `cfg.minutes` or `stop()`, and returns the summary of the run.

    With `resume`, `run_dir` goes on from its last checkpoint, exactly as if it had never stopped; it must be of
    `cfg.task`, the only task that is ever imported. Every rank of `group` makes this call; they stop if `stop()` holds
    on one of them. `now` is the clock of `cfg.minutes`, in seconds.
    """
    started = now()
    cfg.validate()
    if cfg.num_nominal % group.size:
        nearest = max(1, round(cfg.num_nominal / group.size)) * group.size
        raise SdpgError(f"num-nominal {cfg.num_nominal} can't be shared by {group.size} ranks; give {nearest}")
    if group.size > 1 and not cfg.algo.ranks:
        raise SdpgError(f"{cfg.algorithm} trains in one process: start it without torchrun")
    if group.rank:
        report = _silent

    def warn(message: str) -> None:
        report("warning", {"message": message})

    saved = group.on_rank_zero(lambda: _look(cfg, None if run_dir is None else Path(run_dir), resume, warn))
    before = cfg_from_dict(saved.cfg, cfg.task) if saved is not None else cfg
    cfg = _with_schedules(cfg, before.algo.schedule_iterations, before.algo.schedule_from)
    if saved is not None:
        if not cfg.algo.exact_resume:
            warn(f"{cfg.algorithm} does not save all that it knows: the run goes on, but not bit for bit")
        require_same_options(before, cfg)
        cfg = dataclasses.replace(cfg, sim=engine_of(before))
    if cfg.minutes is None:  # for good: a run that is prolonged keeps its schedules. Those of minutes are fitted later
        cfg = _with_schedules(cfg, cfg.iterations, saved.iteration if saved is not None else 0)
    engine = group.on_all_ranks(lambda: choose_engine(cfg.sim, cfg.device))
    if len(set(group.all_gather(engine.device))) > 1:
        raise SdpgError("some ranks can use a GPU and others can't; give --device cpu, or cuda to hear why")
    cfg = dataclasses.replace(cfg, sim=engine.sim)  # for good: a run keeps its engine
    if cfg.deterministic and engine.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
    plan = group.on_all_ranks(lambda: _plan(cfg, group))
    report("plan", plan.facts())
    threads = cfg.threads or default_threads(group.local_size)
    use_threads(threads)
    env, algo = group.on_all_ranks(lambda: _build(cfg, engine.device, saved, threads, group))
    algo.load_state_dict(
        group.on_rank_zero(algo.state_dict)
    )  # machines of two kinds may not initialise to the same bit
    earlier = saved.seconds if saved is not None else 0.0  # of other sessions

    def open_run() -> _Run:
        folder: RunFolder | None = None
        if group.rank == 0:
            folder = RunFolder(run_dir, cfg, env, resume, warn)
        made = _made(saved, cfg, env)
        return _Run(cfg, folder, env, algo, report, lambda: earlier + now() - started, group, made)

    run = group.on_all_ranks(open_run)
    facts = {"task": cfg.task, "iteration": algo.iteration, "threads": threads, "ranks": group.size}
    facts |= {"sim": engine.sim, "device": str(env.device)}
    report("start", {"run": str(run.path), **facts})
    return run.loop(stop)


def _look(cfg: TrainCfg, run: Path | None, resume: bool, warn: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """The checkpoint that the run goes on from; None for a new run, whose folder must be empty."""
    trackers.require(cfg.track)
    if run is not None and resume:
        saved = checkpoint.newest_sound(run, warn)
        recorded = cfg_from_dict(saved_options(run), cfg.task).algo  # it may have become known after this checkpoint
        known = _with_schedules(
            cfg_from_dict(saved.cfg, cfg.task), recorded.schedule_iterations, recorded.schedule_from
        )
        return dataclasses.replace(saved, cfg=dataclasses.asdict(known))
    if run is not None:
        require_empty(run)
    return None


def _with_schedules(cfg: TrainCfg, length: int, since: int) -> TrainCfg:
    """`cfg` with schedules of this length, if it has none yet."""
    if cfg.algo.schedule_iterations:
        return cfg
    algo = dataclasses.replace(cfg.algo, schedule_iterations=length, schedule_from=since)
    return dataclasses.replace(cfg, algo=algo)


def _plan(cfg: TrainCfg, group: Group) -> Plan:
    plan = make_plan(cfg, group)
    plan.require_room()
    return plan


def _build(
    cfg: TrainCfg, device: str, saved: checkpoint.Checkpoint | None, threads: int, group: Group
) -> tuple[BranchedEnv, Algorithm]:
    """The environment with this rank's rows, and the algorithm that learns from the rows of all ranks."""
    rows = cfg.num_nominal // group.size
    env = make_env(
        make_task(cfg.task, cfg.task_cfg),
        rows,
        cfg.num_auxiliary,
        cfg.seed,
        threads,
        cfg.obs,
        cfg.max_value,
        group.rank * rows,
        cfg.sim,
        device,
        cfg.deterministic,
    )
    algo = build_algorithm(cfg, env, group)
    if saved is not None:
        restore(saved, algo, env, group)
    env.take_counts()  # what was drawn to build networks is not part of the run
    return env, algo


class _Run:
    """One session of a run. `clock` counts the seconds of all sessions; `made` are the world-steps and images of the
    earlier ones. Only rank 0 has a `folder`."""

    def __init__(
        self,
        cfg: TrainCfg,
        folder: RunFolder | None,
        env: BranchedEnv,
        algo: Algorithm,
        report: Report,
        clock: Callable[[], float],
        group: Group,
        made: tuple[int, int],
    ):
        self.cfg, self.folder, self.env, self.algo = cfg, folder, env, algo
        self.report, self.clock, self.group = report, clock, group
        self.path = folder.path if folder is not None else Path()
        self.saved_at = algo.iteration
        self.due = algo.iteration + cfg.checkpoint_every
        self.row: dict[str, Any] = {}
        self.pace = Pace(cfg.minutes, cfg.iterations) if cfg.minutes is not None else None
        self.env_steps, self.images = made  # by all sessions
        self.save_seconds = 0.0  # since the last row
        self.enlarged = 0  # how often the engine made more room for contacts, as far as was told
        about = {"task": cfg.task, "sim": cfg.sim, "versions": versions()}
        self.failures = FailureRecorder(env, self.path, about, cfg.algo.history, algo.iteration, self.warn, group)
        self.log: RunLog | None = None
        if folder is not None:
            try:
                resume_at = algo.iteration if algo.iteration else None
                self.log = RunLog(self.path, self.warn, resume_at, trackers.open_trackers(cfg, self.path, self.warn))
            except OSError as error:
                raise cant_write(self.path, error) from error
        self.status("running")

    def warn(self, message: str) -> None:
        self.report("warning", {"message": message})

    def status(self, state: State, message: str = "") -> None:
        if self.folder is None:
            return
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
            if self.log is not None:
                self.log.close()
            if self.folder is not None:
                self.folder.close()
        self.report("end", summary)
        return summary

    def _loop(self, stop: Callable[[], bool]) -> dict[str, Any]:
        cfg, algo = self.cfg, self.algo
        reason = "iterations"
        while algo.iteration < cfg.iterations:
            # However short its time, a run makes one iteration: it then has something to show and to go on from.
            over = cfg.minutes is not None and self.clock() >= 60.0 * cfg.minutes and algo.iteration > 0
            ends = self.group.sums({"stopped": stop(), "minutes": over})  # how many ranks say so
            if any(ends.values()):
                reason = next(name for name, ranks in ends.items() if ranks)
                break
            self._fit_schedules()
            self._iterate()
        trouble = self._save(PATIENCE)
        if trouble is not None:
            raise SdpgError(f"{trouble}; older checkpoints are untouched; free some space and --resume")
        return self._summary(reason)

    def _fit_schedules(self) -> None:
        """Fit the schedules of a run limited by minutes to the iterations that rank 0 expects: once, for good."""
        pace, iteration = self.pace, self.algo.iteration
        if pace is None or self.cfg.algo.schedule_iterations or not self.algo.warm:
            return
        length = self.group.on_rank_zero(lambda: pace.iterations(iteration, self.clock()))
        if length is None:
            return
        algo = dataclasses.replace(self.cfg.algo, schedule_iterations=length, schedule_from=iteration)
        self.algo.cfg, self.cfg = algo, dataclasses.replace(self.cfg, algo=algo)
        if self.folder is not None:
            try:
                self.folder.record(self.cfg)
            except OSError as error:  # the next checkpoint has it, too
                self.warn(str(cant_write(self.path, error)))
        self.report("schedule", {"iterations": length})

    def _iterate(self) -> None:
        cfg, algo, env, group = self.cfg, self.algo, self.env, self.group
        start = time.perf_counter()
        with collecting(images=env.frame_stacks is not None):
            batch = algo.collect(env)
        middle = time.perf_counter()
        self._tell_of_room()
        env.episodes.share(group)
        counts = _summed(env.take_counts(), group)
        self.env_steps += counts.world_steps
        self.images += counts.images
        failed = (counts.failed_nominal + counts.failed_auxiliary) / max(1, counts.world_steps)
        what = self.failures.write(algo.iteration + 1, stops=failed > cfg.max_failed) if failed else []
        if failed > cfg.max_failed:  # before the update: the policy that is saved is still a sound one
            self._log({}, counts, failed, middle - start, 0.0)
            self._save()
            raise SdpgError(self._failure(what[0], failed))
        metrics = algo.update(batch)
        self.env_steps += int(metrics.get("Train/perturbed_steps", 0.0))  # in a simulator of their own
        self._log(metrics, counts, failed, middle - start, time.perf_counter() - middle)
        if self.due <= algo.iteration < cfg.iterations:  # the last one is saved by the loop
            self._save_and_go_on()

    def _tell_of_room(self) -> None:
        enlarged = getattr(self.env.sim, "enlarged", 0)
        if enlarged > self.enlarged:
            self.enlarged = enlarged
            self.warn("worlds had more contacts than there was room for; now there is, and those steps were made again")

    def _save_and_go_on(self) -> None:
        start = time.perf_counter()
        trouble = self._save()
        every = self.cfg.checkpoint_every
        self.due = self.algo.iteration + (every if trouble is None else max(1, every // 10))
        if trouble is not None:
            self.warn(f"{trouble}; the run goes on and tries again after iteration {self.due}")
        self.save_seconds = time.perf_counter() - start

    def _log(self, metrics: Metrics, counts: Counts, failed: float, collecting: float, updating: float) -> None:
        env = self.env
        iteration = self.algo.iteration + (not metrics)  # an iteration that was given up has its row too
        means = env.episodes.means()
        nominal_steps = max(1, counts.steps * self.cfg.num_nominal)
        self.row = {
            "iteration": iteration,
            "seconds": self.clock(),
            "Train/mean_reward": means.total,
            "Train/mean_episode_length": means.length,
            "Train/reward_per_step": counts.reward / nominal_steps,
            "Train/episodes": env.episodes.count,
            "Train/env_steps": self.env_steps,
            "Train/images": self.images,
            "Train/failed": failed,
            "Train/failed_nominal": counts.failed_nominal,
            "Train/failed_auxiliary": counts.failed_auxiliary,
            "Train/dumps": len(self.failures.dumps),
            **{f"Episode/{name}": value for name, value in means.measures.items()},
            **{
                f"Episode_Reward/{name}": total / counts.sound if counts.sound else math.nan
                for name, total in counts.terms.items()
            },
            **metrics,
            "Perf/total_fps": counts.world_steps / max(collecting + updating, 1e-9),
            "Perf/collect_seconds": collecting,
            "Perf/update_seconds": updating,
            "Perf/save_seconds": self.save_seconds,
            **self.group.sums(
                {"Perf/memory_mb": resident_bytes() / 2**20, "Perf/peak_memory_mb": peak_bytes() / 2**20}
            ),
        }
        self.save_seconds = 0.0
        if self.log is not None:
            self.log.write(self.row)
        self.report("iteration", self.row)

    def _save(self, patience: float | None = None) -> str | None:
        """Write a checkpoint of all ranks. Returns what went wrong: nothing is lost as long as the run goes on.

        The one save that can't wait for a later one is tried for `patience` seconds: space may be made, a disk come
        back.
        """
        if self.algo.iteration == self.saved_at:
            return None
        self._keep_in_step()
        states = self.group.gather(self.env.state_dict())
        trouble = self.group.on_rank_zero(lambda: self._write(states, patience))
        if trouble is None:
            self.saved_at = self.algo.iteration
        return trouble

    def _keep_in_step(self) -> None:
        """Every rank takes the same steps, to the last bit on machines of one kind; on others, rank 0's word counts."""
        state = checkpoint.flatten(self.algo.state_dict())
        tensors = [x.detach().contiguous() for x in state.values() if isinstance(x, torch.Tensor) and x.dim()]
        bits = torch.stack([x.view(torch.uint8).sum() for x in tensors])
        every = self.group.stack(bits)  # (ranks, tensors)
        if (every != every[0]).any():
            self.warn("the ranks' networks were no longer the same to the last bit; all have those of rank 0 now")
            self.algo.load_state_dict(self.group.on_rank_zero(self.algo.state_dict))

    def _write(self, states: Sequence[dict[str, torch.Tensor]], patience: float | None) -> str | None:
        trouble = self._try_to_write(states)
        if trouble is None or patience is None:
            return trouble
        given_up = time.monotonic() + patience
        self.warn(f"{trouble}; trying again for {patience:.0f} s: free some space")
        while trouble is not None and time.monotonic() < given_up:
            time.sleep(RETRY)
            trouble = self._try_to_write(states)
        return trouble

    def _try_to_write(self, states: Sequence[dict[str, torch.Tensor]]) -> str | None:
        assert self.folder is not None
        state = {"algo": self.algo.state_dict(), "env": join_rows(states), "run": self._so_far()}
        root, keep, score = self.folder.checkpoints, self.cfg.keep_checkpoints, self.env.episodes.means().total
        try:
            if not self.folder.exists:
                self.warn(f"the run folder {self.path} was gone; made it anew, with what is known now")
                self.folder.write_config()
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
        self.status("running")
        self.report("saved", {"checkpoint": str(path)})
        return None

    def _so_far(self) -> dict[str, float]:
        """The counts that a later session goes on from."""
        return {"seconds": self.clock(), "env_steps": self.env_steps, "images": self.images}

    def _failure(self, what: str, failed: float) -> str:
        """The sentence that a run ends with; `what` was wrong first."""
        task, dumps = self.cfg.task, self.failures.dumps
        fixes = {
            "reward term": "fix that term",
            "the reward": "scale its terms down",
            "observation": "fix that observation",
            "action": "look at start() and the observations, from which the policy made it",
        }
        physics = "look at its actuators, contacts and timestep"
        fix = next((fix for kind, fix in fixes.items() if what.startswith(kind)), physics)
        look = f"`sdpg check {task}` looks closer"
        if dumps:
            typed = f" --task {task}" if ":" in task else ""
            look = f"`sdpg replay {dumps[-1]}{typed}` shows how it came about"
        return (
            f"task '{task}': {100 * failed:.0f} % of its world-steps gave a non-finite or exploded reward or state "
            f"({what}); {fix} ({look}), or allow more by --max-failed"
        )

    def _summary(self, reason: str) -> dict[str, Any]:
        means = self.env.episodes.means()
        return {
            "run": str(self.path),
            "task": self.cfg.task,
            "algorithm": self.cfg.algorithm,
            "reason": reason,
            "iteration": self.algo.iteration,
            "iterations": self.cfg.iterations,
            "seconds": self.clock(),
            "mean_reward": means.total if math.isfinite(means.total) else None,
            "mean_episode_length": means.length if math.isfinite(means.length) else None,
            "fps": self.row.get("Perf/total_fps"),
            "env_steps": self.row.get("Train/env_steps"),
        }


def _made(saved: checkpoint.Checkpoint | None, cfg: TrainCfg, env: BranchedEnv) -> tuple[int, int]:
    """World-steps and images of a run's earlier sessions. Older checkpoints do not tell: every segment was alike."""
    if saved is None:
        return 0, 0
    rows = saved.iteration * cfg.algo.history * cfg.num_nominal
    told, cameras = saved.state["run"], len(env.frame_stacks.cameras) if env.frame_stacks is not None else 0
    return int(told.get("env_steps", rows * (1 + cfg.num_auxiliary))), int(told.get("images", rows * cameras))


def _summed(counts: Counts, group: Group) -> Counts:
    """The counts of all ranks; every rank makes the same number of control steps."""
    numbers = {
        name: value for name, value in vars(counts).items() if isinstance(value, int | float) and name != "steps"
    }
    total = group.sums(numbers | {f"term {name}": value for name, value in counts.terms.items()})
    terms = {name: total[f"term {name}"] for name in counts.terms}
    whole = {name: round(total[name]) for name, value in numbers.items() if isinstance(value, int)}
    return Counts(steps=counts.steps, reward=total["reward"], terms=terms, **whole)


@contextlib.contextmanager
def stop_on_signals(group: Group = ALONE) -> Iterator[Callable[[], bool]]:
    """Within this context, the first SIGINT or SIGTERM stops the run after its iteration; the second ends the process.

    A rank may get the first one twice, from a cluster that tells every process and from torchrun that passes it on; it
    is torchrun that ends those who take too long.
    """
    caught: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if caught and group.size == 1:
            os._exit(128 + number)
        caught.append(number)

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
