"""Trainings that take turns: each in processes of its own, as `sdpg train` runs it, and all but one of them waiting.

A noisy moment of the machine then hits all of them, and ratios hold. A training is asked for a number of
iterations on its standard input, writes one line of JSON when they are done, and waits for the next number. It stops
when its input ends.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from sdpg.algos.api import AlgoCfg, Algorithm, Context
from sdpg.bench.costs import PHASES, Setup, configured, resized
from sdpg.bench.iteration import Stopwatch, watch_phases
from sdpg.errors import SdpgError
from sdpg.presets import resolve

PATIENCE = 3600.0  # seconds that a rank waits for its training's turn
GOODBYE = 120.0  # seconds that a training may take to end


@dataclass(frozen=True)
class Job:
    """What is trained, and where."""

    task: str
    obs: str
    preset: str
    seed: int
    setup: Setup
    run: str  # its folder


class MeasuredTraining:
    """The other end of a job's processes."""

    def __init__(self, job: Job, folder: Path):
        self.job, self._errors = job, folder / "stderr.txt"
        folder.mkdir(parents=True)
        ranks = str(job.setup.ranks)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks] if ranks != "1" else []
        command = [sys.executable, *launcher, "-m", "sdpg.bench.measured", json.dumps(asdict(job))]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def ready(self) -> None:
        self._hear()

    def turn(self, iterations: int) -> dict[str, Any]:
        """{"rows": [{"seconds": ..., "phases": ...}, ...], "peak_mb": ..., "planned_mb": ...}"""
        try:
            _pipe(self._process.stdin).write(f"{iterations}\n")
            _pipe(self._process.stdin).flush()
        except OSError:
            raise self._lost() from None
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        for line in _pipe(self._process.stdout):
            if line.startswith("{"):  # whatever else a task may print
                return json.loads(line)
        raise self._lost()

    def _lost(self) -> SdpgError:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        said = [line.partition("SdpgError: ")[2] for line in lines if "SdpgError: " in line]  # torchrun adds pages
        why = (said or lines[-1:] or ["it was killed, perhaps for want of memory"])[0]
        return SdpgError(f"'{self.job.setup.name}' could not be measured: {why}")

    def dismiss(self) -> None:
        """Let it stop when its iteration is done."""
        with contextlib.suppress(OSError):
            _pipe(self._process.stdin).close()

    def end(self) -> None:
        """Wait until it has; end it if it takes long."""
        self.dismiss()
        try:
            self._process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # torchrun passes it on
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


# --- within the training's processes ----------------------------------------------------------------------------------


@dataclass
class _Turns:
    """What rank 0 hears of its training, and says of it."""

    seconds: dict[str, float]  # by phase, since they were last set to 0
    planned_mb: float = 0.0
    over: bool = False
    _left: int = 0
    _since: float = 0.0
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def report(self, what: str, facts: Mapping[str, Any]) -> None:
        """Called by `train`, which goes on when this returns."""
        if what == "plan":
            self.planned_mb = facts["total_mb"]
        elif what == "iteration":
            total = time.perf_counter() - self._since
            rest = total - sum(self.seconds.values())
            self._rows.append({"seconds": total, "phases": self.seconds | {"the rest": rest}})
            self._left -= 1
        if what in ("start", "iteration"):
            if self._left == 0:
                self._wait()
            for name in self.seconds:
                self.seconds[name] = 0.0
            self._since = time.perf_counter()

    def _wait(self) -> None:
        from sdpg.machine import peak_bytes

        said = {"rows": self._rows, "peak_mb": peak_bytes() / 2**20, "planned_mb": self.planned_mb}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        self._rows = []
        asked = sys.stdin.readline().strip()
        self.over, self._left = not asked, int(asked or 0)


def main(argument: str) -> None:
    """One process of a measured training."""
    from sdpg import distributed
    from sdpg.render.stack import FrameStacks
    from sdpg.run.log import RunLog
    from sdpg.sim.cpu import CpuSim
    from sdpg.tasks.base import make_task
    from sdpg.train import train

    fields = json.loads(argument)
    job = Job(**fields | {"setup": Setup(**fields["setup"])})
    if job.setup.size is not None:  # of the class: `train` makes the task
        kind = type(make_task(job.task))
        kind.cameras = resized(kind.cameras, job.setup.size)
    if job.setup.ranks > 1:
        distributed.TIMEOUT = PATIENCE
    cfg = configured(resolve(job.task, job.preset, job.obs), job.setup)
    cfg = replace(cfg, seed=job.seed, iterations=10**6, checkpoint_every=10**6)  # until it is told to stop
    stopwatch = Stopwatch()  # of classes: their objects are made by `train`
    stopwatch.watch(CpuSim, "step", "physics")
    if job.obs != "state":
        stopwatch.watch(FrameStacks, "look", "rendering")
    stopwatch.watch(RunLog, "write", "logging")
    _watch_what_is_built(type(cfg.algo), stopwatch)
    turns = _Turns(stopwatch.seconds)
    try:
        with distributed.join() as group:
            train(cfg, job.run, report=turns.report, stop=lambda: turns.over, group=group)
    finally:
        stopwatch.release()


def _watch_what_is_built(kind: type[AlgoCfg], stopwatch: Stopwatch) -> None:
    """The phases of the algorithm that `train` will build: those that the cost model has."""
    build = kind.build

    def build_and_watch(self: AlgoCfg, context: Context) -> Algorithm:
        algo = build(self, context)
        watch_phases(stopwatch, algo, PHASES)
        return algo

    kind.build = build_and_watch  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1])
