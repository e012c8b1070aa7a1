"""The runs of `sdpg bench paper`: which there are, and how each is made, gone on with, or taken as it is."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpg.algos.registry import ALGORITHMS
from sdpg.bench import curve
from sdpg.errors import SdpgError
from sdpg.report import curves
from sdpg.run import listing
from sdpg.run.folder import set_aside

# Who is compared with whom, by what the policy sees. Distillation has a teacher, which learns from state.
RIVALS = {
    "state": ("sdpg", "ppo", "a2c", "shac", "sapo"),
    "pixels": ("sdpg", "ppo", "drqv2", "dagger", "dva", "dreamer"),
}
STUDENT, TEACHER = "dagger", "ppo"  # from state it is the quickest: the student has most of the time
FIRST_SEED = 10  # smaller ones were used to choose presets
LOOK_EVERY = 1.0  # seconds

Tell = Callable[[str, bool], None]
"""(line, passing): a line that stays, or one that the next replaces."""


@dataclass(frozen=True)
class Combination:
    """One run of the benchmark."""

    task: str
    obs: str
    algorithm: str
    seed: int
    minutes: float

    @property
    def name(self) -> str:
        """Of its folder. Runs of other lengths have other names, so that they are never mixed."""
        name = f"{self.task}-{self.obs}-{self.algorithm}-{self.seed}-{self.minutes:.4g}min"
        return name.replace(":", ".").replace("/", ".")

    def __str__(self) -> str:
        return f"{self.task} from {self.obs}, {self.algorithm}, seed {self.seed}"


def rivals(obs: str) -> list[str]:
    """Who learns from what is seen, of the algorithms that are there."""
    return [name for name in RIVALS.get(obs, RIVALS["pixels"]) if name in ALGORITHMS.targets()]


def plan(
    tasks: Sequence[str], algorithms: Sequence[str], seeds: Mapping[str, int], minutes: Mapping[str, float]
) -> list[Combination]:
    """Every run, teachers before their students. `seeds` and `minutes` go by kind; no algorithms: all rivals."""
    for name in algorithms:
        ALGORITHMS.load(name)  # an unknown one is told at once
    found = []
    for task in tasks:
        for seed in range(FIRST_SEED, FIRST_SEED + max(seeds.values(), default=0)):
            for obs in sorted(seeds, key=lambda kind: kind != "state"):
                if seed >= FIRST_SEED + seeds[obs]:
                    continue
                for name in [each for each in rivals(obs) if each in algorithms] if algorithms else rivals(obs):
                    found.append(Combination(task, obs, name, seed, minutes[obs]))
    if not found:
        raise SdpgError(f"no run to make: {', '.join(algorithms)} learn from none of {', '.join(seeds)}")
    return found


def share_out(budget: float, tasks: Sequence[str], algorithms: Sequence[str], seeds: Mapping[str, int],
              minutes: Mapping[str, float]) -> dict[str, float]:  # fmt: skip
    """Minutes of a run by kind, so that all runs together take `budget`; they keep the proportion of `minutes`."""
    total = sum(run.minutes for run in plan(tasks, algorithms, seeds, minutes))
    return {kind: value * budget / total for kind, value in minutes.items()}


def make(run: Combination, folder: Path, threads: int, episodes: int, tell: Tell) -> dict[str, Any]:
    """Train, or go on, or take what is there; evaluate. The result is kept beside the run, and read if it is there."""
    if (kept := taken(run, folder, episodes)) is not None:
        return kept
    where = folder / "runs" / run.name
    taught = _teacher(run, folder, threads, tell)
    _finish(run, where, taught, threads, tell)
    tell(f"{run}: evaluating {episodes} episodes", True)
    result = curve.run(curve.Options(where, run.algorithm, episodes))
    result["command"] = shlex.join(["sdpg", *_command(run, Path("RUN"), taught and Path("TEACHER"), threads, False)])
    result |= {"algorithm": run.algorithm, "peak_mb": _peak(result), "teacher_minutes": _minutes(taught)}
    if taught is not None:
        result |= {"teacher_command": _began(taught), "teacher_env_steps": _env_steps(taught)}
    path = _kept(run, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), encoding="utf-8")
    return result


def taken(run: Combination, folder: Path, episodes: int) -> dict[str, Any] | None:
    """The result of an earlier call, if its policy was evaluated in as many episodes."""
    path = _kept(run, folder)
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return result if result and result["evaluation"]["episodes"] == episodes else None


def _kept(run: Combination, folder: Path) -> Path:
    return folder / "results" / f"{run.name}.json"


def _finish(run: Combination, where: Path, teacher: Path | None, threads: int, tell: Tell) -> None:
    """Train, or go on where it was interrupted; one that is finished is left alone.

    One that can't go on as if nothing had been is begun anew: it has no checkpoint yet, or its buffer is lost."""
    there = (where / listing.CONFIG).exists()
    if there and listing.look(where).state == "finished":
        return
    goes_on = there and any((where / "checkpoints").glob("[0-9]*")) and ALGORITHMS.load(run.algorithm).exact_resume
    if there and not goes_on:
        set_aside(where)
        tell(f"{run}: interrupted, and can't go on exactly: it is begun anew", False)
    _train(_command(run, where, teacher, threads, resume=goes_on), run, where, tell)


def _teacher(run: Combination, folder: Path, threads: int, tell: Tell) -> Path | None:
    """The state policy that a student learns from: that of the same task and seed, made if it is not there."""
    if run.algorithm != STUDENT:
        return None
    teacher = Combination(run.task, "state", TEACHER, run.seed, run.minutes / 6.0)
    where = folder / "runs" / teacher.name
    _finish(teacher, where, None, threads, tell)
    return where


def _command(run: Combination, where: Path, teacher: Path | None, threads: int, resume: bool) -> list[str]:
    if resume:
        return ["train", "--resume", str(where)]
    minutes = run.minutes - _minutes(teacher)
    words = ["train", run.task, "--algorithm", run.algorithm, "--obs", run.obs, "--seed", str(run.seed)]
    words += ["--minutes", f"{max(minutes, run.minutes / 10.0):.4g}", "--iterations", str(10**6), "--run", str(where)]
    words += ["--threads", str(threads)] if threads else []
    return words + (["--algo.teacher", str(teacher)] if teacher else [])


def _train(command: list[str], run: Combination, where: Path, tell: Tell) -> None:
    """In a process of its own: its memory is its own, and a failure of one method does not end the benchmark's."""
    where.parent.mkdir(parents=True, exist_ok=True)
    log = where.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", "sdpg", *command], stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                time.sleep(LOOK_EVERY)
                now = listing.look(where) if (where / listing.CONFIG).exists() else None
                if now is not None and now.minutes is not None:
                    told = "no episode yet" if now.mean_reward is None else f"return {now.mean_reward:.0f}"
                    tell(f"{run}: {now.minutes:.1f} of {run.minutes:.1f} minutes, {told}", True)
        finally:
            if process.poll() is None:
                process.terminate()  # it saves what it has: the next call goes on from there
                process.wait()
    if process.returncode:
        last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise SdpgError(f"{run} failed: {last.removeprefix('sdpg: ')}")


def _minutes(where: Path | None) -> float:
    """That a run has taken; 0 of none."""
    return 0.0 if where is None or not where.is_dir() else listing.look(where).minutes or 0.0


def _env_steps(where: Path) -> int:
    """That a run has made, over all of its worlds."""
    return int(curves.load(where)[1][-1]["Train/env_steps"])


def _began(where: Path) -> str:
    """The command that a run was begun with, without its folder."""
    words = listing.read_config(where)["sessions"][0]["argv"][1:]
    return shlex.join(["sdpg", *("RUN" if word == str(where) else word for word in words)])


def _peak(result: dict[str, Any]) -> float | None:
    """Megabytes of resident memory, the most that a run ever had; of one that did not tell, between iterations."""
    told = [*result["curve"]["peak_memory_mb"], *result["curve"]["memory_mb"]]
    return max((value for value in told if value is not None), default=None)
