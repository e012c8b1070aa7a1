"""`--minutes`: the schedules are fitted to the iterations that it gives, which stay exact from then on.

Time is what a test says: `Clock` lets every iteration take two seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.ranks import ranks
from helpers.runs import Recorder, assert_same, tiny

from sdpg import train
from sdpg.algos.base import cosine_lr, linear_lr
from sdpg.config import TrainCfg
from sdpg.distributed import Group
from sdpg.report import compare
from sdpg.run import checkpoint, folder, log, resume
from sdpg.run.pace import Pace


class Clock(Recorder):
    """Time that passes when an iteration is reported."""

    def __init__(self, seconds: float = 2.0, stop_after: int | None = None):
        super().__init__(stop_after)
        self.seconds, self.time = seconds, 1000.0

    def __call__(self, what: str, facts: Mapping[str, Any]) -> None:
        super().__call__(what, facts)
        if what == "iteration":
            self.time += self.seconds

    def now(self) -> float:
        return self.time


def slow(**changes: Any) -> TrainCfg:
    """A minute of iterations of two seconds, with a warm-up that is longer than all of them."""
    cfg = tiny(**({"iterations": 1000, "minutes": 1.0, "checkpoint_every": 3, "keep_checkpoints": 100} | changes))
    return replace(cfg, algo=replace(cfg.algo, warmup=100, critic_schedule="linear"))


def go(cfg: TrainCfg, run: Path, clock: Clock | None = None, resume: bool = False) -> dict[str, Any]:
    clock = clock or Clock()
    return train.train(cfg, run, resume, clock, clock.stop, now=clock.now)


def schedule(run: Path) -> tuple[int, int]:
    algo = resume.cfg_from_dict(folder.read_config(run)["cfg"]).algo
    return algo.schedule_iterations, algo.schedule_from


def rates(run: Path, name: str = "Loss/actor_lr") -> list[float]:
    return [row[name] for row in log.read(run)]


# --- the run


def test_a_short_run_gets_its_whole_schedule(tmp_path: Path) -> None:
    cfg, clock = slow(), Clock()
    summary = go(cfg, tmp_path, clock)
    assert (summary["reason"], summary["iteration"]) == ("minutes", 30)
    assert schedule(tmp_path) == (30, 4)
    assert [facts for what, facts in clock.events if what == "schedule"] == [{"iterations": 30}]
    assert checkpoint.load(checkpoint.find(tmp_path)).cfg["algo"]["schedule_iterations"] == 30
    actor = rates(tmp_path)
    top = actor.index(max(actor))
    assert max(actor) == pytest.approx(cfg.algo.actor_lr)  # out of the warm-up
    assert actor[: top + 1] == sorted(actor[: top + 1]) and actor[top:] == sorted(actor[top:], reverse=True)
    assert actor[-1] < 0.1 * cfg.algo.actor_lr  # and down again
    assert max(b - a for a, b in pairwise(actor)) < 0.15 * cfg.algo.actor_lr  # without a jump
    critic = rates(tmp_path, "Loss/critic_lr")
    assert critic == sorted(critic, reverse=True) and critic[-1] < 0.2 * critic[0]


def test_a_run_that_has_time_enough_keeps_to_its_iterations(tmp_path: Path) -> None:
    go(slow(iterations=20), tmp_path)
    assert schedule(tmp_path) == (20, 4)


def test_a_schedule_that_is_given_stays(tmp_path: Path) -> None:
    cfg = slow()
    go(replace(cfg, algo=replace(cfg.algo, schedule_iterations=40)), tmp_path)
    assert schedule(tmp_path) == (40, 0)


def test_the_recorded_numbers_make_the_same_run(tmp_path: Path) -> None:
    go(slow(), tmp_path / "timed")
    length, since = schedule(tmp_path / "timed")
    cfg = slow(minutes=None, iterations=30)
    cfg = replace(cfg, algo=replace(cfg.algo, schedule_iterations=length, schedule_from=since))
    go(cfg, tmp_path / "given", Clock(seconds=0.1))
    assert_same(tmp_path / "timed", tmp_path / "given")


def test_minutes_count_all_sessions(tmp_path: Path) -> None:
    assert go(slow(), tmp_path, Clock(stop_after=20))["reason"] == "stopped"
    summary = go(slow(), tmp_path, resume=True)
    assert (summary["reason"], summary["iteration"], summary["seconds"]) == ("minutes", 30, 60.0)
    assert go(slow(), tmp_path, resume=True)["iteration"] == 30


# --- going on


def test_a_resumed_run_does_not_estimate_again(tmp_path: Path) -> None:
    go(slow(), tmp_path / "whole")
    go(slow(), tmp_path / "parts", Clock(stop_after=15))
    slower = Clock(seconds=3.0)
    go(slow(minutes=1.25), tmp_path / "parts", slower, resume=True)  # 15 x 2 s, 15 x 3 s
    assert not [what for what, _ in slower.events if what == "schedule"]
    assert schedule(tmp_path / "parts") == (30, 4)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_was_killed_goes_on_with_the_number_it_had_recorded(tmp_path: Path) -> None:
    """Its last checkpoint is from before the estimate, its config.json from after."""
    go(slow(), tmp_path / "whole")
    go(slow(), tmp_path / "killed")
    (tmp_path / "killed" / "checkpoints" / "last").write_text("00000003")
    assert checkpoint.load(checkpoint.find(tmp_path / "killed")).cfg["algo"]["schedule_iterations"] == 0
    go(slow(iterations=30), tmp_path / "killed", Clock(seconds=0.5), resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_run_that_was_stopped_before_the_estimate_makes_it_later(tmp_path: Path) -> None:
    go(slow(), tmp_path, Clock(stop_after=3))
    assert schedule(tmp_path) == (0, 0)
    clock = Clock(seconds=1.0)
    assert go(slow(), tmp_path, clock, resume=True)["iteration"] == 57  # 3 x 2 s, 54 x 1 s
    assert schedule(tmp_path) == (57, 10)
    actor = rates(tmp_path)
    assert max(b - a for a, b in pairwise(actor)) < 0.15 * max(actor) and actor[-1] < 0.1 * max(actor)


def test_without_its_limit_it_goes_on_to_its_iterations(tmp_path: Path) -> None:
    go(slow(), tmp_path, Clock(stop_after=3))
    go(slow(minutes=None, iterations=12), tmp_path, resume=True)
    assert schedule(tmp_path) == (12, 3)


def test_a_run_without_minutes_knows_its_length_from_the_start(tmp_path: Path) -> None:
    cfg = slow(minutes=None, iterations=6)
    go(cfg, tmp_path)
    assert schedule(tmp_path) == (6, 0)
    algo = cfg.algo
    assert rates(tmp_path) == [cosine_lr(i, 6, algo.actor_lr, algo.actor_lr_min, 100) for i in range(6)]


def test_seeds_of_one_time_are_still_one_line(tmp_path: Path) -> None:
    for seed, seconds in enumerate((2.0, 2.5)):
        go(slow(seed=seed), tmp_path / str(seed), Clock(seconds))
    assert schedule(tmp_path / "0") != schedule(tmp_path / "1")
    options = compare.Options(
        (tmp_path / "0", tmp_path / "1"), str(tmp_path / "out"), metric="Loss/actor_lr", group=True
    )
    assert {run["label"] for run in compare.compare(options, resume.RESUMABLE)["runs"]} == {"0 and 1 more"}


# --- ranks


def _train_by_clocks_that_differ(group: Group, run: str) -> None:
    clock = Clock(seconds=2.0 + group.rank)
    clock.time += 100.0 * group.rank
    seen = []
    real = train._Run._fit_schedules

    def look(self: train._Run) -> None:
        real(self)
        seen.append((self.algo.cfg.schedule_iterations, self.cfg.algo.schedule_from))
        if group.rank:  # nobody reports to it
            clock.time += clock.seconds

    train._Run._fit_schedules = look  # type: ignore[method-assign]
    cfg = slow(num_nominal=4, minutes=0.8, iterations=26)
    train.train(cfg, run, report=clock, group=group, now=clock.now)
    (Path(run).parent / f"seen-{group.rank}").write_text(json.dumps(seen))


@pytest.mark.slow
def test_all_ranks_take_the_number_of_the_first(tmp_path: Path) -> None:
    ranks("test_minutes", "_train_by_clocks_that_differ", tmp_path / "run")
    first, second = (json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in (0, 1))
    assert first == second and first[3:5] == [[0, 0], [24, 4]]


# --- the parts


def test_the_pace_is_that_of_iterations_after_the_first() -> None:
    pace = Pace(minutes=10.0, most=10_000)
    told = [pace.iterations(i, seconds=30.0 + (0 if i == 0 else 20.0 + 1.5 * i)) for i in range(12)]
    assert told[:11] == [None] * 11 and told[11] == 11 + 356  # (600 - 66.5) / 1.5
    assert Pace(10.0, 100).iterations(0, 0.0) is None


def test_where_iterations_take_long_a_few_are_enough() -> None:
    pace = Pace(minutes=2.0, most=1000)
    assert [pace.iterations(i, 20.0 * i) for i in range(4)] == [None, None, None, 6]
    late = Pace(minutes=1.0, most=1000)
    assert [late.iterations(i, 100.0 * i) for i in range(4)][3] == 4  # over time already


@pytest.mark.parametrize("warmup", [0, 2, 10, 100, 400])
@pytest.mark.parametrize(("total", "since"), [(1000, 11), (60, 11), (30, 11), (24, 11), (9, 3), (300, 3), (400, 200)])
def test_learning_rates_have_no_jump(total: int, since: int, warmup: int) -> None:
    rate = [cosine_lr(i, 0 if i < since else total, 1.0, 0.01, warmup, since) for i in range(total + 5)]
    assert rate == [cosine_lr(i, total, 1.0, 0.01, warmup, since) for i in range(total + 5)]  # known beforehand, or not
    top = rate.index(max(rate))
    assert rate[: top + 1] == sorted(rate[: top + 1])
    assert rate[top : total + 1] == sorted(rate[top : total + 1], reverse=True)
    rises = [b - a for a, b in pairwise(rate)]
    assert max(rises, default=0.0) <= 1.0 / min(since, warmup or 1) + 1e-9
    if total >= 4 * since:
        assert max(rate) == pytest.approx(1.0, abs=0.01) and rate[total] == pytest.approx(0.01)
        assert min(rises[: total + 1]) > -4.0 / total
    line = [linear_lr(i, total, 1.0, 0.1, since) for i in range(total + 1)]
    assert line[since] == 1.0 and line[total] == pytest.approx(0.1) and line == sorted(line, reverse=True)


def test_a_total_that_is_known_from_the_start_gives_the_numbers_it_always_gave() -> None:
    def before(iteration: int, total: int, peak: float, floor: float, warmup: int) -> float:
        warmup = min(warmup, total // 2)
        if iteration < warmup:
            return peak * (iteration + 1) / warmup
        progress = min(1.0, (iteration - warmup) / max(1, total - warmup))
        return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))

    for total in (1, 2, 7, 150, 1000):
        for i in range(total + 3):
            assert cosine_lr(i, total, 2e-3, 1e-5, 100) == before(i, total, 2e-3, 1e-5, 100)


def test_a_run_makes_one_iteration_however_short_its_time(tmp_path: Path) -> None:
    assert go(slow(minutes=1e-6), tmp_path)["iteration"] == 1
