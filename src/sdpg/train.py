"""The run loop: collect, update, log, save; stopped by iterations, time, signals or too many failed worlds."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import signal
import sys
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import mujoco
import numpy as np
import torch

import sdpg
from sdpg import checkpoint, track
from sdpg.algos.sdpg import Sdpg
from sdpg.build import collecting, default_threads, make_env
from sdpg.config import TrainCfg
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.log import RunLog
from sdpg.runs import CONFIG, read_config
from sdpg.tasks.base import make_task
from sdpg.types import Metrics, Rollout

Report = Callable[[str, Mapping[str, Any]], None]
"""(what, facts): "start", "iteration" (the row of metrics.jsonl), "saved", "warning" (its "message"), "end"."""


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
    if not cfg.algo.schedule_iterations:  # for good: a run that is prolonged keeps its schedules
        cfg = dataclasses.replace(cfg, algo=dataclasses.replace(cfg.algo, schedule_iterations=cfg.iterations))
    if cfg.device == "cuda":
        raise SdpgError("device cuda: this version has physics on the CPU only; give --device cpu or auto")
    track.require(cfg.track)
    saved = checkpoint.load(checkpoint.find(Path(run_dir))) if resume and run_dir is not None else None
    threads = cfg.threads or default_threads()
    torch.set_num_threads(threads)
    env = make_env(make_task(cfg.task), cfg.num_nominal, cfg.num_auxiliary, cfg.seed, threads, cfg.obs)
    algo = Sdpg(cfg.algo, env, env.task.inputs[cfg.obs], cfg.seed)
    before = 0.0  # seconds of earlier sessions
    if saved is not None:
        restore(saved, algo, env)
        before = float(saved.state["run"]["seconds"])
    folder = _prepare(run_dir, cfg, env, resume, report)
    run = _Run(cfg, folder, env, algo, report, clock=lambda: before + time.monotonic() - started)
    report("start", {"run": str(folder), "task": cfg.task, "iteration": algo.iteration, "threads": threads})
    return run.loop(stop)


class _Run:
    """One session of a run; `clock` counts the seconds of all of its sessions."""

    def __init__(
        self, cfg: TrainCfg, folder: Path, env: BranchedEnv, algo: Sdpg, report: Report, clock: Callable[[], float]
    ):
        self.cfg, self.folder, self.env, self.algo, self.report, self.clock = cfg, folder, env, algo, report, clock
        self.saved_at = algo.iteration
        self.due = algo.iteration + cfg.checkpoint_every
        self.row: dict[str, Any] = {}
        try:
            resume_at = algo.iteration if algo.iteration else None
            self.log = RunLog(folder, self.warn, resume_at, track.open_trackers(cfg, folder, self.warn))
        except OSError as error:
            raise _cant_write(folder, error) from error

    def warn(self, message: str) -> None:
        self.report("warning", {"message": message})

    def loop(self, stop: Callable[[], bool]) -> dict[str, Any]:
        cfg, algo = self.cfg, self.algo
        reason = "iterations"
        try:
            while algo.iteration < cfg.iterations:
                if stop():
                    reason = "stopped"
                    break
                if cfg.minutes is not None and self.clock() >= 60.0 * cfg.minutes:
                    reason = "minutes"
                    break
                self._iterate()
            self._save(final=True)
        finally:
            self.log.close()
        summary = self._summary(reason)
        self.report("end", summary)
        return summary

    def _iterate(self) -> None:
        cfg, algo, env = self.cfg, self.algo, self.env
        start = time.perf_counter()
        with collecting(env):
            rollout = algo.collect(env)
        middle = time.perf_counter()
        failed = rollout.failed.float().mean().item()
        if failed > cfg.max_failed:  # before the update: the policy that is saved is still a sound one
            self._log({}, rollout, failed, middle - start, 0.0)
            self._save(final=False)
            raise SdpgError(self._failure(rollout, failed))
        metrics = algo.update(rollout, cfg.iterations)
        self._log(metrics, rollout, failed, middle - start, time.perf_counter() - middle)
        if self.due <= algo.iteration < cfg.iterations:  # the last one is saved by the loop
            self._save(final=False)
            self.due = algo.iteration + cfg.checkpoint_every

    def _log(self, metrics: Metrics, rollout: Rollout, failed: float, collecting: float, updating: float) -> None:
        cfg, env = self.cfg, self.env
        iteration = self.algo.iteration + (not metrics)  # an iteration that was given up has its row too
        worlds, steps = rollout.reward[0].numel(), rollout.reward.shape[0]  # N K, T
        mean_return, mean_length = env.mean_episode()
        self.row = {
            "iteration": iteration,
            "seconds": self.clock(),
            "Train/mean_reward": mean_return,
            "Train/mean_episode_length": mean_length,
            "Train/reward_per_step": rollout.reward[:, :, 0].mean().item() / cfg.algo.reward_scale,
            "Train/episodes": env.episodes,
            "Train/env_steps": iteration * worlds * steps,
            "Train/failed": failed,
            **{f"Episode_Reward/{name}": term[:, 0].mean().item() for name, term in env.terms.items()},
            **metrics,
            "Perf/total_fps": worlds * steps / max(collecting + updating, 1e-9),
            "Perf/collect_seconds": collecting,
            "Perf/update_seconds": updating,
            "Perf/memory_mb": _memory_mb(),
        }
        self.log.write(self.row)
        self.report("iteration", self.row)

    def _save(self, final: bool) -> None:
        """A failure costs a warning, and is tried again at the next interval; at the end it is an error."""
        if self.algo.iteration == self.saved_at:
            return
        state = {"algo": self.algo.state_dict(), "env": self.env.state_dict(), "run": {"seconds": self.clock()}}
        root = self.folder / "checkpoints"
        try:
            path = checkpoint.save(
                root, self.algo.iteration, state, dataclasses.asdict(self.cfg), self.cfg.keep_checkpoints
            )
        except OSError as error:
            message = f"can't save iteration {self.algo.iteration} in {root}: {error.strerror or error}"
            if final:
                raise SdpgError(f"{message}; older checkpoints are untouched; free some space and --resume") from error
            self.warn(f"{message}; the run goes on and tries again in {self.cfg.checkpoint_every} iterations")
            return
        self.saved_at = self.algo.iteration
        self.report("saved", {"checkpoint": str(path)})

    def _failure(self, rollout: Rollout, failed: float) -> str:
        bad = [name for name, term in self.env.terms.items() if not torch.isfinite(term).all()]
        where = f"reward term '{bad[0]}' is NaN or infinite" if bad else "the physics diverged"
        fix = "mend that term" if bad else "look at its actuators, contacts and timestep"
        return (
            f"task '{self.cfg.task}': {100 * failed:.0f} % of its world-steps gave a non-finite reward or state "
            f"({where}); {fix} (`sdpg check {self.cfg.task}` looks closer), or allow more by --max-failed"
        )

    def _summary(self, reason: str) -> dict[str, Any]:
        mean_return, mean_length = self.env.mean_episode()
        return {
            "run": str(self.folder),
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


# --- the run folder ---------------------------------------------------------------------------------------------------


def _prepare(run_dir: Path | str | None, cfg: TrainCfg, env: BranchedEnv, resume: bool, report: Report) -> Path:
    """Make (or take up) the run's folder and write its config.json."""
    model_hash = _model_hash(env)
    session = {
        "started": datetime.datetime.now().isoformat(timespec="seconds"),
        "argv": sys.argv,
        "versions": versions(),
        "model_sha256": model_hash,
    }
    earlier: list[Any] = []
    if resume and run_dir is not None:
        folder = Path(run_dir)
        config = read_config(folder)
        earlier = config.get("sessions", [])
        if earlier and earlier[-1].get("model_sha256") != model_hash:
            report("warning", {"message": "the task's scene is not the one this run was started with"})
        checkpoint.clean(folder / "checkpoints")
    else:
        folder = _new_folder(run_dir, cfg)
    config = {"cfg": dataclasses.asdict(cfg), "sessions": [*earlier, session]}
    try:
        checkpoint.write_atomic(folder / CONFIG, json.dumps(config, indent=1).encode() + b"\n")
        (folder / "checkpoints").mkdir(exist_ok=True)
    except OSError as error:
        raise _cant_write(folder, error) from error
    return folder


def _new_folder(run_dir: Path | str | None, cfg: TrainCfg) -> Path:
    if run_dir is not None:
        folder = Path(run_dir)
        if folder.is_dir() and any(folder.iterdir()):
            fix = f"go on by --resume {folder}, or " if (folder / CONFIG).exists() else ""
            raise SdpgError(f"run folder '{folder}' is not empty; {fix}give another --run")
    else:
        stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        parent = Path("runs") / cfg.task.replace(":", ".").replace("/", ".") / cfg.algorithm
        names = (stamp if i == 1 else f"{stamp}-{i}" for i in range(1, 1000))
        folder = next(parent / name for name in names if not (parent / name).exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cant_write(folder, error) from error
    return folder


def _cant_write(folder: Path, error: OSError) -> SdpgError:
    return SdpgError(
        f"can't write the run folder '{folder}': {error.strerror or error}; free some space or give --run DIR"
    )


def cfg_from_dict(values: Mapping[str, Any]) -> TrainCfg:
    """The inverse of dataclasses.asdict after a trip through JSON."""
    cfg = _build(TrainCfg, values)
    cfg.validate()
    return cfg


def _build(cls: Any, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise SdpgError(f"the saved config has options that this sdpg does not know: {', '.join(sorted(unknown))}")
    made: dict[str, Any] = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]) and isinstance(value, Mapping):
            made[name] = _build(hints[name], value)
        else:
            made[name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**made)
    except TypeError as error:
        raise SdpgError(f"the saved config is not one of sdpg: {error}") from error


def versions() -> dict[str, str]:
    return {
        "sdpg": sdpg.__version__,
        "python": sys.version.split()[0],
        "mujoco": mujoco.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "safetensors": importlib.metadata.version("safetensors"),
    }


def _model_hash(env: BranchedEnv) -> str:
    """SHA-256 of the compiled scene; empty for engines without one."""
    model = getattr(env.sim, "model", None)
    if not isinstance(model, mujoco.MjModel):
        return ""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()


def _memory_mb() -> float:
    """Resident memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


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
