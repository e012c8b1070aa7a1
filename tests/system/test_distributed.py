"""One rank and several take the same steps; a rank that dies ends the run with one line, and it goes on from there."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import OneOf, ranks
from helpers.runs import NAN_TASK, subprocess_env, tiny
from helpers.tasks import Fragile
from torch import Tensor

from sdpg import train
from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg, SdpgCfg
from sdpg.build import make_env
from sdpg.config import TrainCfg
from sdpg.distributed import ALONE, Group
from sdpg.env import BranchedEnv, join_rows, part_of_rows
from sdpg.episodes import WINDOW
from sdpg.errors import SdpgError
from sdpg.machine import default_threads
from sdpg.run import checkpoint, failures, log
from sdpg.run.memory import make_plan
from sdpg.sim.toy import ToyTask

# --- what needs no words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["cartpole", "hopper"])
def test_the_first_segment_of_two_ranks_is_that_of_one_bit_for_bit(task: str) -> None:
    """Noise, starts, physics and actions. (Of fewer than four rows a matrix product may round differently.)"""
    cfg = tiny(task, horizon=12).algo

    def segment(rank: int, ranks: int) -> Any:
        rows = 8 // ranks
        env = make_env(task, rows, 3, seed=5, threads=1, first_row=rank * rows)
        return Sdpg(cfg, Context(env, seed=5, group=OneOf(rank, ranks))).collect(env)

    whole, *parts = segment(0, 1), segment(0, 2), segment(1, 2)
    for name in ("noise", "state", "next_state", "mean", "log_std", "reward", "terminated", "done", "failed"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts], dim=1)), name


@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_rows_are_joined_and_parted(obs: str) -> None:
    """A checkpoint looks as if one process had written it."""
    whole = make_env("hopper", 6, 2, 3, 1, obs)
    parts = [make_env("hopper", 3, 2, 3, 1, obs, first_row=first) for first in (0, 3)]
    for env in (whole, *parts):
        env.observe()  # looks, if it has frame_stacks
    joined = join_rows([env.state_dict() for env in parts])
    expected = whole.state_dict()
    assert list(joined) == list(expected)
    for name, values in expected.items():
        assert torch.equal(joined[name], values), name
    for rank, env in enumerate(parts):
        mine = env.state_dict()
        env.load_state_dict(part_of_rows(expected, rank, 2))
        for name, values in env.state_dict().items():
            assert torch.equal(mine[name], values), name


def test_nominals_that_can_not_be_shared_are_refused() -> None:
    with pytest.raises(SdpgError, match="num-nominal 7 can't be shared by 3 ranks; give 6"):
        train.train(tiny(num_nominal=7), group=OneOf(1, 3))
    with pytest.raises(SdpgError, match="num-nominal 1 can't be shared by 3 ranks; give 3"):
        train.train(tiny(num_nominal=1), group=OneOf(0, 3))


def test_ranks_share_the_cores_and_the_memory_of_a_machine() -> None:
    assert default_threads(10**6) == 1 and default_threads(1) == default_threads()
    cfg = tiny(num_nominal=64, memory_gb=8.0)
    alone, one_of_four = make_plan(cfg), make_plan(cfg, OneOf(0, 4))
    assert one_of_four.limit == alone.limit / 4  # type: ignore[operator]
    assert one_of_four.parts["physics"] * 4 == alone.parts["physics"]
    small = replace(one_of_four, limit=float(one_of_four.total - 1))
    with pytest.raises(SdpgError, match=rf"each of the 4 ranks .* give --num-nominal {small.largest * 4} or less"):
        small.require_room()


def test_a_rank_waits_for_torchrun_to_end_it() -> None:
    with train.stop_on_signals(OneOf(0, 2)) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # the cluster's, and torchrun's
        assert stop()


def test_episodes_of_all_ranks_are_averaged_in_the_order_of_one_process() -> None:
    """Each rank's last 100 are enough to know the last 100 of all."""
    toy = ToyTask(limit=0.5, start_std=0.6, episode_steps=2)
    whole, *parts = (BranchedEnv(toy, toy.sim(n), n, seed=1, first_row=first) for n, first in ((6, 0), (3, 0), (3, 3)))
    for env in (whole, *parts):
        for _ in range(100):
            env.restart(env.step(torch.zeros(*env.grid, 1)))
    told = [(list(env.episodes._unshared), env.episodes._unshared_count) for env in parts]

    class Heard(Group):
        def all_gather(self, thing: Any) -> list[Any]:
            assert thing in told
            return told

    expected = whole.episodes.means()
    assert whole.episodes.count > 2 * WINDOW
    whole.episodes.share(ALONE)
    assert whole.episodes.means() == expected
    for env in parts:
        env.episodes.share(Heard())
        assert (env.episodes.means(), env.episodes.count) == (expected, whole.episodes.count)
        assert torch.equal(env.state_dict()["finished"], whole.state_dict()["finished"])


# --- one rank and two -------------------------------------------------------------------------------------------------


def _state(run: Path) -> dict[str, Any]:
    return dict(sorted(checkpoint.flatten(checkpoint.load(checkpoint.find(run)).state).items()))


def _parameters(run: Path) -> dict[str, Tensor]:
    flat = {key.removeprefix("algo/"): v for key, v in _state(run).items() if key.startswith("algo/")}
    networks = {
        name: torch.cat([v.flatten() for k, v in flat.items() if k.startswith(f"{name}/") and v.dtype == torch.float32])
        for name in ("actor", "critic", "target_critic")  # float64 are their normalisers
    }
    return networks | {key: v for key, v in flat.items() if key.startswith("normalizers/")}


def _assert_close(one: Path, other: Path) -> None:
    """Networks and statistics within 1e-5 of their norms, and a checkpoint and a log of the same form."""
    mine, theirs = _parameters(one), _parameters(other)
    for name, values in mine.items():
        distance = (values - theirs[name]).norm() / values.norm()
        assert distance <= 1e-5, f"{name}: {distance:.2g}"
    states = [_state(run) for run in (one, other)]
    assert [(k, getattr(v, "shape", None)) for k, v in states[0].items()] == [
        (k, getattr(v, "shape", None)) for k, v in states[1].items()
    ]
    for exact in ("env/clock", "env/start_rng", "env/step_rng", "env/episodes"):
        assert torch.equal(states[0][exact], states[1][exact]), exact
    for mine_row, their_row in zip(log.read(one), log.read(other), strict=True):
        assert list(mine_row) == list(their_row)
        for name, value in mine_row.items():
            if name == "seconds" or name.startswith("Perf/"):
                continue
            close = value if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)  # None: no episode has ended
            assert their_row[name] == close, name


def _cfg(task: str, iterations: int, obs: str = "state") -> TrainCfg:
    """Its episodes end now and then, and its learning rates do not depend on where it stops."""
    cfg = tiny(task, obs, iterations=iterations, num_nominal=8, num_auxiliary=3, horizon=12, checkpoint_every=100)
    return replace(cfg, algo=replace(cfg.algo, schedule_iterations=10))


KINDS = [("cartpole", "state"), ("hopper", "state"), ("cartpole", "pixels")]


def _fragile(group: Group, folder: str) -> None:
    """A few iterations in which some auxiliaries fail, on the toy."""
    task = Fragile(gain=2.0)
    rows = 8 // group.size
    env = BranchedEnv(task, task.sim(rows * 9), rows, seed=0, first_row=group.rank * rows)
    cfg = SdpgCfg(horizon=6, actor_widths=(16,), critic_widths=(16,), critic_batch=64, initial_std=1.0, warmup=2,
                  schedule_iterations=10,
                  entropy=True, auto_temperature=True, regression_steps=2, regression_fraction=0.5,
                  guide_passes=1)  # fmt: skip
    algo = Sdpg(cfg, Context(env, group=group))
    failed, rows_of_metrics = 0.0, []
    for _ in range(5):
        rollout = algo.collect(env)
        failed += group.sums({"failed": int(rollout.failed.sum())})["failed"]
        rows_of_metrics.append(algo.update(rollout))
    networks = [p.detach().flatten() for module in algo.modules.values() for p in module.parameters()]
    every = group.all_gather(torch.cat(networks))
    assert all(torch.equal(theirs, every[0]) for theirs in every)  # ranks stay the same to the last bit
    if group.rank == 0:
        torch.save(
            {"failed": failed, "networks": every[0], "metrics": rows_of_metrics}, Path(folder) / f"{group.size}.pt"
        )


def _two_ranks_train(group: Group, folder: str) -> None:
    _fragile(group, folder)
    for task, obs in KINDS:
        train.train(_cfg(task, 10, obs), Path(folder) / f"{task}-{obs}-2", group=group)
    asked = iter([False] * 4 + [group.rank == 1])  # one rank is asked to stop
    summary = train.train(_cfg("hopper", 10), Path(folder) / "parts", stop=asked.__next__, group=group)
    assert (summary["reason"], summary["iteration"]) == ("stopped", 4)
    train.train(_cfg("hopper", 4), Path(folder) / "2-1-2", group=group)
    if group.rank == 0:
        (Path(folder) / "nan_task_of_ranks.py").write_text(NAN_TASK)
    group.all_gather(None)
    sys.path.insert(0, folder)
    with pytest.raises(SdpgError, match=r"100 % of its world-steps .*\(reward term 'speed' is nan\); fix"):
        train.train(tiny("nan_task_of_ranks:Broken", num_nominal=4), Path(folder) / "bad", group=group)


def _two_ranks_go_on(group: Group, folder: str) -> None:
    train.train(_cfg("hopper", 10), Path(folder) / "parts", resume=True, group=group)
    train.train(_cfg("hopper", 10), Path(folder) / "2-1-2", resume=True, group=group)


@pytest.mark.slow
def test_one_rank_and_two_take_the_same_steps(tmp_path: Path) -> None:
    ranks(__name__, "_two_ranks_train", tmp_path)
    for task, obs in KINDS:
        train.train(_cfg(task, 10, obs), tmp_path / f"{task}-{obs}-1")
        _assert_close(tmp_path / f"{task}-{obs}-1", tmp_path / f"{task}-{obs}-2")
    assert log.read(tmp_path / "hopper-state-2")[-1]["Train/episodes"] > 0  # else nothing was shared
    # Failed worlds are left out alike.
    _fragile(ALONE, str(tmp_path))
    one, two = (torch.load(tmp_path / f"{size}.pt") for size in (1, 2))
    assert one["failed"] > 0 and one["failed"] == two["failed"]
    assert (one["networks"] - two["networks"]).norm() <= 1e-5 * one["networks"].norm()
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3, abs=1e-5)
    # The world that a run stops with is dumped by rank 0, and is the one that one process would have dumped.
    (dump,) = (tmp_path / "bad" / "bad").iterdir()
    assert failures.load(dump).about["row"] == 0
    assert log.read(tmp_path / "bad")[-1]["Train/failed_nominal"] == 6 * 4
    # Two ranks go on bit for bit; two, one and two within rounding.
    train.train(_cfg("hopper", 7), tmp_path / "2-1-2", resume=True)
    ranks(__name__, "_two_ranks_go_on", tmp_path)
    whole, parts = _state(tmp_path / "hopper-state-2"), _state(tmp_path / "parts")
    for name, value in whole.items():
        if name != "run/seconds":
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(parts[name])), name
    _assert_close(tmp_path / "hopper-state-1", tmp_path / "2-1-2")


def _drift(group: Group, folder: str) -> None:
    made: list[Sdpg] = []
    build = train._build

    def building(*arguments: Any) -> tuple[BranchedEnv, Sdpg]:
        env, algo = build(*arguments)
        made.append(algo)
        return env, algo

    def nudge() -> bool:
        if group.rank == 1 and made[0].iteration == 1:
            made[0].critic.value.bias.data.add_(1e-3)
        return False

    train._build = building  # type: ignore[assignment]
    messages: list[str] = []
    train.train(
        _cfg("cartpole", 2), Path(folder) / "run", stop=nudge, group=group,
        report=lambda what, facts: messages.append(facts["message"]) if what == "warning" else None,
    )  # fmt: skip
    assert len(messages) == (group.rank == 0) and all("all have those of rank 0 now" in m for m in messages)
    biases = group.all_gather(made[0].critic.value.bias.item())
    assert biases[0] == biases[1]


def test_ranks_that_drifted_apart_are_told_and_aligned(tmp_path: Path) -> None:
    """Machines of two kinds may round differently."""
    ranks(__name__, "_drift", tmp_path)


# --- under torchrun ---------------------------------------------------------------------------------------------------


class _Job:
    """`torchrun ... -m sdpg train cartpole --run RUN --resume auto` on two ranks."""

    def __init__(self, run: Path, iterations: int, *launcher: str):
        self.run = run
        options = "--num-nominal 8 --num-auxiliary 1 --threads 1 --checkpoint-every 5 --json".split()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *launcher]
        # The two dashes: torchrun takes --run for a short form of its own --run-path.
        command += ["-m", "sdpg", "--", "train", "cartpole", "--run", str(run), "--resume", "auto", *options]
        self.process = subprocess.Popen(
            [*command, "--iterations", str(iterations)],
            env=subprocess_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=run.parent,
        )  # fmt: skip

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < deadline
            if self.process.poll() is not None:
                pytest.fail(self.process.communicate()[1])
            time.sleep(0.05)

    def saved(self) -> int:
        """The iteration of the newest checkpoint."""
        root = self.run / "checkpoints"
        return int((root / "last").read_text()) if (root / "last").exists() else 0

    def kill(self, rank: int) -> None:
        """SIGKILL; rank 0 has told its process id."""
        first = json.loads((self.run / "status.json").read_text())["pid"]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert str(first) in children and len(children) == 2
        os.kill(first if rank == 0 else next(int(pid) for pid in children if int(pid) != first), signal.SIGKILL)

    def end(self, within: float) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=within)
        finally:
            self.process.terminate()
        return self.process.returncode, out, err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc")
def test_a_killed_rank_ends_the_job_with_one_line_and_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = _Job(run, 10**6)
    job.wait_until(lambda: job.saved() > 0)
    job.kill(rank=1)
    code, out, err = job.end(within=60)
    assert code != 0 and out == ""
    lines = [line for line in err.splitlines() if line.startswith("sdpg: ")]
    assert len(lines) == 1 and lines[0].startswith("sdpg: rank 1 is gone (")
    assert lines[0].endswith("; the last checkpoint is good: start again with --resume auto")
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed" and "rank 1 is gone" in status["message"]
    saved = checkpoint.load(checkpoint.find(run)).iteration
    # Again, by the same command; torchrun itself starts it anew when rank 0 dies; SIGTERM stops it.
    job = _Job(run, 10**6, "--max-restarts", "1")
    job.wait_until(lambda: job.saved() > saved)
    before = json.loads((run / "status.json").read_text())["pid"]
    job.kill(rank=0)
    job.wait_until(lambda: json.loads((run / "status.json").read_text())["pid"] != before)
    saved = job.saved()
    job.wait_until(lambda: job.saved() > saved)
    job.process.send_signal(signal.SIGTERM)
    code, out, err = job.end(within=60)
    assert "rank 0 is gone (" in err
    summary = json.loads(out)  # one object: rank 0 alone prints
    assert summary["reason"] == "stopped" and summary["iteration"] == checkpoint.load(checkpoint.find(run)).iteration
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    rows = [row["iteration"] for row in log.read(run)]
    assert rows == list(range(1, summary["iteration"] + 1))
    assert all(math.isfinite(row["seconds"]) for row in log.read(run))


@pytest.mark.slow
def test_a_mistake_under_torchrun_is_one_line(tmp_path: Path) -> None:
    job = _Job(tmp_path / "run", 0)
    code, out, err = job.end(within=120)
    assert code != 0 and out == ""
    assert [line for line in err.splitlines() if line.startswith("sdpg: ")] == [
        "sdpg: iterations must be at least 1, not 0"
    ]
