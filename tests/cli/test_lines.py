"""A slip of the finger costs one line that names the option and what it may be."""

from __future__ import annotations

import dataclasses
import importlib
import math
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import tiny

from sdpg import evaluate, machine, ranges, train
from sdpg.algos.drqv2_cfg import DrqV2Cfg
from sdpg.algos.sdpg import SdpgCfg
from sdpg.cli import deploying, examining, main, training, watching
from sdpg.config import TrainCfg
from sdpg.errors import SdpgError
from sdpg.report import compare
from sdpg.run import listing, memory

Capture = pytest.CaptureFixture[str]
QUICK = "--num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1 --algo.horizon 3 --quiet --run run".split()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines") / "run"
    train.train(tiny(iterations=1), folder)
    return folder


@pytest.fixture
def refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The one line of a command that is refused, in an empty folder that stays empty."""
    monkeypatch.chdir(tmp_path)

    def refuse(*argv: str) -> str:
        capsys.readouterr()
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("sdpg: ") and err.count("\n") == 1, err
        assert not list(tmp_path.iterdir())
        return err

    return refuse


# --- every number of every verb


def _all_options() -> Iterator[type[Any]]:
    yield from (TrainCfg, SdpgCfg, DrqV2Cfg, compare.Options, listing.Options)
    for verbs in (training, examining, watching, deploying):
        yield from (kind for kind in vars(verbs).values() if dataclasses.is_dataclass(kind) and isinstance(kind, type))
    for bench in examining.BENCHES:
        yield importlib.import_module(f"sdpg.bench.{bench}").Options


def _numbers(kind: type[Any]) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for name, hint in ((field.name, hints[field.name]) for field in dataclasses.fields(kind)):
        parts = {hint, *typing.get_args(hint)} | {
            deep for part in typing.get_args(hint) for deep in typing.get_args(part)
        }
        if parts & {int, float}:
            yield name


@pytest.mark.parametrize("kind", list(_all_options()), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_number_has_a_range(kind: type[Any]) -> None:
    named = {name for names in ranges._OURS.values() for name in names.split()}
    if kind is SdpgCfg:  # an algorithm has its own rules
        sentences = SdpgCfg(
            vector_widths=(1,), kl_target=1.0, branch_steps=1
        ).rules()  # what is not given is not judged
        named |= {sentence.split()[0].removeprefix("algo.").replace("-", "_") for sentence in sentences}
    elif kind is DrqV2Cfg:
        named |= {sentence.split()[0].removeprefix("algo.").replace("-", "_") for sentence in DrqV2Cfg().rules()}
    assert set(_numbers(kind)) <= named


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e6])
def test_no_float_of_a_run_is_wild(bad: float) -> None:
    cfg = tiny()
    for part, prefix in ((cfg, ""), (cfg.algo, "algo.")):
        floats = [name for name, value in vars(part).items() if isinstance(value, float)]
        assert "max_failed" in floats or "reward_scale" in floats
        for name in [*floats, *(["minutes", "memory_gb"] if part is cfg else [])]:
            broken: Any = dataclasses.replace(part, **{name: bad})  # type: ignore[type-var]
            whole = broken if part is cfg else dataclasses.replace(cfg, algo=broken)
            with pytest.raises(SdpgError, match=rf"^{prefix}{name.replace('_', '-')} must be .*not {bad}"):
                whole.validate()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--algo.reward-scale", "0", "algo.reward-scale must be positive, not 0"),
        ("--algo.reward-scale", "nan", "algo.reward-scale must be a finite number, not nan"),
        ("--algo.temperature-lr", "-5", "algo.temperature-lr must be at least 0, not -5"),
        ("--algo.max-grad-norm", "0", "algo.max-grad-norm must be positive"),
        ("--algo.critic-lr", "inf", "algo.critic-lr must be a finite number, not inf"),
        ("--algo.critic-batch", "99999999999999999999", "algo.critic-batch must be at most 2147483647"),
        ("--algo.log-std-bounds", "x", "--algo.log-std-bounds must be two numbers, not 'x'"),
        ("--algo.actor-widths", "x", "--algo.actor-widths can't be 'x'"),
        ("--minutes", "x", "--minutes must be a number, not 'x'"),
        ("--seed", "1.5", "--seed must be a whole number, not '1.5'"),
        ("--threads", "100000", "threads must be between 0 and 1024, not 100000"),
        ("--track-project", " ", "track-project must not be empty"),
        ("--run", "", "run must not be empty"),
    ],
)
def test_a_bad_value_of_training(option: str, value: str, said: str, refused: Any) -> None:
    assert said in refused("train", "cartpole", *QUICK, option, value)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("view cartpole --policy zero --seconds nan", "seconds must be a finite number, not nan"),
        ("view cartpole --policy zero --port x", "--port must be a whole number, not 'x'"),
        ("bench iteration cartpole --iterations 0", "iterations must be at least 1, not 0"),
        ("bench sim cartpole --repeats 0", "repeats must be at least 1, not 0"),
        ("bench smoothing --deltas nan", "deltas must be a finite number, not nan"),
        ("eval nowhere --threads -1", "threads must be between 0 and 1024, not -1"),
    ],
)
def test_a_bad_value_of_other_verbs(argv: str, said: str, refused: Any) -> None:
    assert said in refused(*argv.split())


def test_an_empty_word_is_none(refused: Any) -> None:
    assert "which task? sdpg train TASK" in refused("train", "")
    assert "which run? sdpg eval RUN" in refused("eval", "")
    assert "which task?" in refused("check", "")
    assert "which run?" in refused("play", "")
    assert "out must not be empty" in refused("compare", "x", "--out", "")


# --- more than the machine has


def test_threads_that_the_system_does_not_let_start(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit of processes, where OpenMP would end in a segmentation fault."""
    start, alive = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(alive) >= 400:
            raise RuntimeError("can't start new thread")
        alive.append(self)
        start(self)

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", limited)
    line = refused("train", "cartpole", *QUICK, "--threads", "1000")
    assert "1000 threads are more than this system lets start; give --threads 100" in line
    assert threading.active_count() == before
    machine.use_threads(1)  # as many as there are cores need no trial
    assert len(alive) == 400


def test_episodes_that_do_not_fit_into_memory(run: Path, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "episodes must be at most 2147483647" in refused("eval", str(run), "--episodes", "1000000000000")
    line = refused("eval", str(run), "--episodes", "2000000000")
    assert "this evaluation would take about" in line and "give --episodes" in line
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**30)
    most = int(refused("eval", str(run), "--episodes", "2000000000").split("--episodes ")[1].split()[0])
    with pytest.raises(SdpgError, match="this evaluation"):
        evaluate.evaluate(run, episodes=2 * most)


# --- where things are written


def test_a_folder_where_a_film_should_go(run: Path, tmp_path: Path, capsys: Capture) -> None:
    for place in (".", str(tmp_path)):
        assert main(["play", str(run), "--video", place, "--size", "64"]) == 2
        err = capsys.readouterr().err
        assert f"'{place}' is a folder; give --video a file in it" in err and err.count("\n") == 1
    (tmp_path / "file").write_text("")
    assert main(["play", str(run), "--frames", str(tmp_path / "file"), "--size", "64"]) == 2
    assert "is a file; give --frames a folder" in capsys.readouterr().err


def test_a_place_where_no_run_can_be(refused: Any) -> None:
    line = refused("train", "cartpole", *QUICK, "--run", "/proc/x")
    assert "can't write the run folder '/proc/x'" in line and "give --run a folder that can be written" in line
    assert "space" not in line
