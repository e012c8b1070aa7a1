"""The contract of algorithms (sdpg/algos/api.py), for all that are registered and for a third party's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import random_search
from helpers.ranks import OneOf
from helpers.runs import SRC, TESTS, Recorder
from helpers.runs import tiny as helpers_tiny
from helpers.targets import Targets
from torch import Tensor

from sdpg import presets
from sdpg.algos.api import Carry, Context, Policy
from sdpg.algos.registry import ALGORITHMS, algorithm
from sdpg.bench import memory
from sdpg.build import make_env
from sdpg.config import TrainCfg
from sdpg.errors import SdpgError
from sdpg.evaluate import evaluate, run_episodes
from sdpg.run import checkpoint
from sdpg.train import train
from sdpg.watch.film import frames
from sdpg.watch.player import open_run

NAME = "random_search"
OBS = {"drqv2": "pixels", "dva": "pixels", "dreamer": "pixels"}  # of algorithms that are made for them
SMALL: dict[str, dict[str, object]] = {
    "drqv2": {"steps": 6, "buffer": 200, "batch": 4, "hidden": 8, "seed_steps": 24, "random_steps": 20},
    "dva": {"horizon": 6, "encoder": "small"},
    "ppo": {"horizon": 6, "epochs": 2, "minibatches": 2},
    "a2c": {"horizon": 6},
    "dagger": {"steps": 6, "buffer": 200, "seed_steps": 24, "max_updates": 3, "min_updates": 1, "batch": 4},
    "dreamer": {
        "steps": 6,
        "buffer": 200,
        "seed_steps": 24,
        "batch": 2,
        "length": 4,
        "train_ratio": 0.5,
        "imagination": 2,
    },
}


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with an installed distribution that brings an algorithm by entry point."""
    info = tmp_path / "site" / "search_for_sdpg-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: search-for-sdpg\nVersion: 1\n")
    target = f"{random_search.__name__}:{random_search.RandomSearchCfg.__name__}"
    (info / "entry_points.txt").write_text(f"[{ALGORITHMS.group}]\n{NAME} = {target}\n")
    monkeypatch.syspath_prepend(str(info.parent))
    yield info.parent


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from state, for algorithms that have a teacher."""
    run = tmp_path_factory.mktemp("runs") / "teacher"
    train(replace(tiny("sdpg"), iterations=1), run)
    return run


def tiny(name: str, teacher: Path | None = None, **changes: object) -> TrainCfg:
    cfg = presets.resolve("cartpole", obs=OBS.get(name, "state"), algorithm=name)
    cfg = replace(cfg, algo=replace(cfg.algo, **SMALL.get(name, {})))
    if hasattr(cfg.algo, "teacher"):
        cfg = replace(cfg, algo=replace(cfg.algo, teacher=str(teacher)))  # type: ignore[call-arg]
    fewest = cfg.algo.auxiliaries[0]
    cfg = replace(cfg, num_nominal=4, num_auxiliary=max(fewest, min(2, cfg.num_auxiliary)), threads=1, iterations=4)
    return replace(cfg, checkpoint_every=2, **changes)  # type: ignore[arg-type]


def tensors(run: Path, which: str | int = "last") -> dict[str, torch.Tensor]:
    flat = checkpoint.flatten(checkpoint.load(checkpoint.find(run, which)).state["algo"])
    return {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", [*ALGORITHMS.built_in, NAME])
def test_the_same_seed_gives_the_same_numbers_and_a_resume_goes_on(
    name: str, tmp_path: Path, third_party: Path, teacher: Path
) -> None:
    """1. The same seed gives the same numbers. 2. With `exact_resume`, k iterations, saved, loaded and k more are 2 k
    iterations, bit for bit; without, it is said. 4. The policy is evaluated and filmed."""
    cfg = tiny(name, teacher)
    schedule = replace(cfg, algo=replace(cfg.algo, schedule_iterations=4))
    train(schedule, tmp_path / "one")
    train(schedule, tmp_path / "two")
    train(replace(schedule, iterations=2), tmp_path / "parts")
    train(schedule, tmp_path / "parts", resume=True, report=(heard := Recorder()))
    one, two, parts = (tensors(tmp_path / run) for run in ("one", "two", "parts"))
    assert one and all(torch.equal(one[key], two[key]) for key in one)
    if cfg.algo.exact_resume:
        assert one.keys() == parts.keys() and all(torch.equal(one[key], parts[key]) for key in one)
    assert any("not bit for bit" in message for message in heard.messages()) != cfg.algo.exact_resume
    assert evaluate(tmp_path / "one", episodes=2, threads=1)["algorithm"] == name
    policy, env = open_run(tmp_path / "one", "last", seed=0)
    images = list(frames(policy, env, 1, 64, summary := {}))  # type: ignore[var-annotated]
    assert len(summary["returns"]) == 1 and images[0].std() > 0.0
    other = tmp_path / "other"
    train(replace(schedule, seed=1), other)
    assert any(not torch.equal(values, one[key]) for key, values in tensors(other).items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS.built_in)
def test_the_planned_memory_is_near_what_is_measured(name: str, teacher: Path) -> None:
    """Sizes at which what the algorithm keeps is a good part of the whole; its buffer, if it has one, is full."""
    obs = "state" if name in ("shac", "sapo") else "pixels"
    cfg = presets.resolve("cartpole", obs=obs, algorithm=name)
    options = memory.Options(
        "cartpole", obs, "cpu", name, cfg.num_nominal, cfg.num_auxiliary, iterations=1, threads=1,
        buffer=4000 if hasattr(cfg.algo, "buffer") else None,
        teacher=str(teacher) if hasattr(cfg.algo, "teacher") else None,
    )  # fmt: skip
    found = memory.run(options)
    assert found["planned_mb"] == pytest.approx(found["peak_mb"], rel=0.25)


@pytest.mark.parametrize("name", [*ALGORITHMS.built_in, NAME])
def test_what_a_trainer_asks_before_it_builds(name: str, third_party: Path, teacher: Path) -> None:
    kind = algorithm(name)
    assert kind.name == name
    fewest, most = kind.auxiliaries
    assert fewest >= 0 and (most is None or most >= fewest)
    for preset in ("cpu", "paper"):
        algo = presets.resolve("hopper", preset, algorithm=name).algo
        needs = {"teacher": str(teacher)} if hasattr(algo, "teacher") else {}
        assert all(replace(algo, **needs).rules().values())  # type: ignore[arg-type]


def test_auxiliaries_that_an_algorithm_cannot_use_are_refused(third_party: Path) -> None:
    with pytest.raises(SdpgError, match="random_search uses no auxiliaries: give --num-auxiliary 0"):
        replace(tiny(NAME), num_auxiliary=3).validate()
    with pytest.raises(SdpgError, match="sdpg needs --num-auxiliary 1 or more"):
        replace(tiny("sdpg"), num_auxiliary=0).validate()
    with pytest.raises(SdpgError, match=r"algo\.steps must be at least 1"):
        cfg = tiny(NAME)
        replace(cfg, algo=replace(cfg.algo, steps=0)).validate()  # type: ignore[call-arg]


def sdpg(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(SRC), str(TESTS), str(site)))
    command = [sys.executable, "-m", "sdpg", *words]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_a_third_partys_algorithm_trains_resumes_evaluates_and_films(tmp_path: Path, third_party: Path) -> None:
    """From the command line, by its entry point: no file of the package knows it."""
    run = tmp_path / "run"
    small = ["--num-nominal", "4", "--iterations", "3", "--threads", "1"]
    train_words = ["train", "cartpole", "--algorithm", NAME, *small, "--algo.std", "0.2", "--run", str(run), "--quiet"]
    done = sdpg(third_party, *train_words)
    assert done.returncode == 0, done.stderr
    done = sdpg(third_party, "train", "--resume", str(run), "--iterations", "5", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["iteration"] == 5 and json.loads(done.stdout)["algorithm"] == NAME
    done = sdpg(third_party, "eval", str(run), "--episodes", "3", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["algorithm"] == NAME, done.stderr
    film = tmp_path / "film.mp4"
    done = sdpg(third_party, "play", str(run), "--video", str(film), "--episodes", "1", "--size", "64")
    assert done.returncode == 0 and film.stat().st_size > 1000, done.stderr
    help_ = sdpg(third_party, "train", "cartpole", "--algorithm", NAME, "--help-algo").stdout
    assert "--algo.std" in help_ and "--algo.critic-lr" not in help_
    # Without the distribution, the run says what is missing; it does not guess.
    done = sdpg(tmp_path, "eval", str(run))
    assert done.returncode == 2 and "unknown algorithm 'random_search'" in done.stderr
    unknown = sdpg(third_party, "train", "cartpole", "--algorithm", "ppoo")
    assert unknown.returncode == 2 and "unknown algorithm 'ppoo'; known: " in unknown.stderr


def test_a_missing_extra_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    more = replace(ALGORITHMS, built_in={"fancy": "needs_more:Cfg"})
    with pytest.raises(
        SdpgError, match=r"algorithm 'fancy' needs a_package_that_is_not_there: pip install 'sdpg\[fancy\]'"
    ):
        more.load("fancy")


def test_random_search_learns() -> None:
    env = make_env(Targets(), 32, 0, seed=0, threads=1)
    algo = random_search.RandomSearchCfg(std=0.3, lr=0.3).build(Context(env))

    def total() -> float:
        return run_episodes(algo.policy(), make_env(Targets(), 16, 0, seed=9, threads=1))["return"]["mean"]

    before = total()  # it does nothing, and stays where it is
    for _ in range(40):
        algo.update(algo.collect(env))
    assert before == pytest.approx(-1.2) and total() > -1.05  # -0.64 to -0.84 with seeds 0, 1, 2


def test_one_that_can_not_resume_exactly_says_so_and_one_that_knows_no_ranks_is_refused(
    tmp_path: Path, third_party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SdpgError, match="random_search trains in one process: start it without torchrun"):
        train(tiny(NAME), tmp_path / "ranks", group=OneOf(0, 2))
    monkeypatch.setattr(random_search.RandomSearchCfg, "exact_resume", False)
    train(replace(tiny(NAME), iterations=1), tmp_path / "run")
    heard = Recorder()
    train(tiny(NAME), tmp_path / "run", resume=True, report=heard)
    (message,) = heard.messages()
    assert message.startswith("random_search does not save all that it knows: the run goes on, but not bit for bit")


def test_a_recurrent_policys_memory_begins_anew_with_an_episode() -> None:
    """Counts its steps in each world, and acts by that."""

    class Counting(Policy):
        def carry(self, num: int) -> Carry:
            return {"steps": torch.zeros(num)}

        def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
            steps = carry["steps"] + 1.0
            seen.append(steps.tolist())
            return torch.zeros(len(steps), 1), {"steps": steps}

    seen: list[list[float]] = []
    env = make_env(Targets(), 2, 0, seed=0, threads=1)
    env._clock[1] = 5  # its first episode ends five steps earlier
    run_episodes(Counting(), env)
    length = Targets.episode_steps
    assert [row[0] for row in seen] == [float(i) for i in range(1, length + 1)]
    assert [row[1] for row in seen] == [*(float(i) for i in range(1, length - 4)), *(float(i) for i in range(1, 6))]


def test_a_checkpoint_of_an_earlier_version_loads(tmp_path: Path) -> None:
    """Options, states and frames had other names, two options are gone, and all worlds were saved."""
    cfg = helpers_tiny("cartpole", "pixels", iterations=2)
    train(cfg, tmp_path / "run")
    saved = checkpoint.load(checkpoint.find(tmp_path / "run"))
    options = {**saved.cfg, "algo": dict(saved.cfg["algo"])}
    for name in ("origin", "motion"):
        options["algo"][f"picture_{name}"] = options["algo"].pop(f"image_{name}")
    options["algo"] |= {"average": 0.0, "kl_limit": None}  # gone since then; they were off
    del options["task_cfg"]
    env = dict(saved.state["env"])
    env["eyes.pixels"], env["sim.rows"] = env.pop("frames.pixels"), env.pop("sim.state").repeat_interleave(3, dim=0)
    for name in [name for name in env if name.startswith("sim.") and name != "sim.rows"]:
        env[name] = env[name].repeat_interleave(3, dim=0)
    old = {**saved.state, "env": env, "run": {"seconds": saved.state["run"]["seconds"]}}
    checkpoint.save(tmp_path / "old" / "checkpoints", 2, old, options)
    (tmp_path / "old" / "config.json").write_text(json.dumps({"cfg": options, "sessions": []}))
    longer = replace(cfg, iterations=4)
    train(longer, tmp_path / "run", resume=True)
    train(longer, tmp_path / "old", resume=True)
    new, found = tensors(tmp_path / "run"), tensors(tmp_path / "old")
    assert new.keys() == found.keys() and all(torch.equal(new[name], found[name]) for name in new)
