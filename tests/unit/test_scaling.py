"""The cost model, and the bench that measures, fits and tells it. Never an assertion on seconds."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdpg.algos.api import Context, Shapes
from sdpg.algos.sdpg import Sdpg
from sdpg.bench import costs, measured, scaling, scaling_page
from sdpg.bench.costs import Setup, Work
from sdpg.bench.measured import Job, MeasuredTraining
from sdpg.build import cameras_of, image_shape, make_env
from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.presets import resolve
from sdpg.sim.cpu import CpuSim
from sdpg.tasks.base import make_task

ROOT = Path(__file__).parents[2]


# --- the model ---


def test_the_prices_of_synthetic_seconds_are_found_again() -> None:
    """Seconds that follow the formula exactly, on the configurations that are really measured."""
    cfg, task = resolve("hopper", obs="pixels"), make_task("hopper")
    # Batches that samples do not always fill: otherwise calls go with units, and prices can't be told apart.
    cfg = replace(cfg, algo=replace(cfg.algo, critic_batch=4096, critic_branches=1.0))  # type: ignore[call-arg]
    fitted, held = scaling.design((84, 63, 48), threads=2, quick=False)
    amounts = [costs.work(cfg, task, setup) for setup in fitted]
    true = {}
    for phase, base in amounts[0].items():  # work that costs about as much as the calls
        unit = 1e-3 * base.calls / max(1.0, base.units)
        true[phase] = {"fixed": 1e-3, "serial": unit, "parallel": 3 * unit, "crowding": unit / 2, "message": 2e-4}
    seconds = [costs.predict(setup, amount, true) for setup, amount in zip(fitted, amounts, strict=True)]
    prices = costs.fit(fitted, amounts, seconds)
    for phase in ("actor update", "critic update"):  # the two that have all five
        assert prices[phase] == pytest.approx(true[phase], rel=1e-4, abs=0)
    assert prices["physics"] == pytest.approx(true["physics"] | {"message": 0.0}, rel=1e-4, abs=0)
    for setup in held:
        amount = costs.work(cfg, task, setup)
        assert costs.predict(setup, amount, prices) == pytest.approx(costs.predict(setup, amount, true), rel=1e-6)


def test_one_busy_core_more_costs_what_the_formula_says() -> None:
    prices = {"physics": {"fixed": 10.0, "serial": 1.0, "parallel": 6.0, "crowding": 2.0, "message": 100.0}}
    amounts = {"physics": Work(calls=3, units=5, messages=0)}
    # 3 * 10 + 5 * (1 + 6) alone; 3 * 10 + 5 * (1 + 6 / 2 + 2 * 1 / 2) with two threads.
    assert costs.predict(Setup(1, 1, 1, threads=1), amounts, prices) == {"physics": 65.0}
    assert costs.predict(Setup(1, 1, 1, threads=2), amounts, prices) == {"physics": 55.0}
    # Another rank on the other core: 5 * (1 + 6 + 2 * 1), and a message.
    with_message = {"physics": Work(3, 5, messages=1)}
    assert costs.predict(Setup(2, 1, 1, threads=1, ranks=2), with_message, prices) == {"physics": 175.0}


def test_least_squares_without_negatives() -> None:
    a = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    assert costs.nonnegative_least_squares(a, a @ [2.0, 3.0, 0.0]) == pytest.approx([2.0, 3.0, 0.0])
    # Free, the second would be -1: without negatives the first alone does it, (1 * 0 + 3 * 5 + 1 * 1) / (1 + 9 + 1).
    assert costs.nonnegative_least_squares(a, a @ [2.0, -1.0, 0.0]) == pytest.approx([16 / 11, 0.0, 0.0])
    assert costs.nonnegative_least_squares(a, np.full(3, -1.0)).tolist() == [0.0, 0.0, 0.0]


def test_amounts_of_work() -> None:
    cfg, task = resolve("hopper", "paper"), make_task("hopper")
    work = costs.work(cfg, task, Setup(64, 63, 32))
    assert work["physics"] == Work(32, 32 * 4096 * task.substeps)
    assert "rendering" not in work
    assert (
        work["critic update"].calls == 2 * 32 and work["critic update"].messages == 0
    )  # 2 passes of 32 x 4096 samples
    shared = costs.work(cfg, task, Setup(64, 63, 32, ranks=2))
    assert shared["physics"].units == work["physics"].units / 2
    assert shared["critic update"].calls == shared["critic update"].messages == 2 * 32
    assert shared["critic update"].units == work["critic update"].units / 2
    cpu = costs.work(resolve("hopper", "cpu"), task, Setup(64, 63, 32))
    assert cpu["actor update"].units == 4 * 0.5 * work["actor update"].units


@pytest.mark.parametrize(("task_name", "obs"), [("hopper", "state"), ("cartpole", "pixels")])
def test_multiply_adds_are_those_of_the_networks(task_name: str, obs: str) -> None:
    """Counted by torch itself, on the networks that are trained."""
    from torch.utils.flop_counter import FlopCounterMode

    task, cfg = make_task(task_name), resolve(task_name, obs=obs)
    env = make_env(task, 1, 1, threads=1, obs=obs)
    algo = Sdpg(replace(cfg.algo, precision="float32"), Context(env, task.inputs[obs]))
    seen, counts = env.observe(), []
    for act in (lambda: algo.actor(seen.sources), lambda: algo.critic(seen.state[0, 0])):
        with FlopCounterMode(display=False) as counter:
            act()
        counts.append(counter.get_total_flops() // 2)
    images = tuple(image_shape(camera) for camera in cameras_of(task, obs).values())
    shapes = Shapes(1, 1, task.state_size, task.action_size, images, () if images else (task.state_size,))
    assert cfg.algo._multiply_adds(shapes) == tuple(counts)


def test_images_are_resized() -> None:
    cameras = make_task("hopper").cameras
    (camera,) = costs.resized(cameras, 48).values()
    assert (camera.width, camera.height, camera.stack) == (48, 48, 3)
    assert costs.resized(cameras, None) == dict(cameras) and costs.resized({}, 48) == {}
    cfg = resolve("hopper", obs="pixels")
    large, small = (costs.work(cfg, make_task("hopper"), Setup(4, 1, 2, size=size)) for size in (84, 42))
    assert large["rendering"].units == 4 * small["rendering"].units
    assert large["acting"].units > 4 * small["acting"].units  # there are no pixels at the borders to begin with


def test_cards_that_are_not_here() -> None:
    gpu = costs.Gpu(physics_steps=100.0, pixels=50.0, flops=10.0, efficiency=0.5, bandwidth=20.0, world_bytes=2.0)
    prices = {
        phase: {"fixed": 1.0, "serial": 9.0, "parallel": 9.0, "crowding": 9.0, "message": 9.0} for phase in costs.PHASES
    }
    amounts = {phase: Work(calls=2, units=100) for phase in costs.PHASES}
    seconds = costs.on_gpu(Setup(1, 1, 1), amounts, prices, gpu)
    assert seconds == {
        "physics": 3.0, "rendering": 4.0, "acting": 42.0, "actor update": 122.0, "critic update": 122.0,
        "the rest": 12.0, "logging": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("images", [(), (84, 63, 48)])
@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("quick", [True, False])
def test_what_is_measured(images: tuple[int, ...], threads: int, quick: bool) -> None:
    fitted, held = scaling.design(images, threads, quick)
    assert not set(fitted) & set(held) and held
    assert all(
        setup.ranks * setup.threads <= threads and setup.num_nominal % setup.ranks == 0 for setup in fitted + held
    )
    assert any(setup.ranks == 2 for setup in fitted) == (threads > 1)
    if not quick:
        varied = {name: {getattr(s, name) for s in fitted} for name in ("num_nominal", "num_auxiliary", "horizon")}
        assert all(len(values) >= 3 for values in varied.values())
        assert {2**k for k in range(4) if 2**k <= threads} <= {setup.threads for setup in fitted if setup.ranks == 1}


# --- the bench ---


def _result(monkeypatch: pytest.MonkeyPatch, obs: str = "state") -> dict[str, Any]:
    """Of turns that nobody took: seconds by a formula."""
    cfg, task = resolve("hopper", obs=obs), make_task("hopper")
    prices = {
        phase: {"fixed": 1e-3, "serial": 1e-9, "parallel": 3e-8, "crowding": 0.0, "message": 1e-4}
        for phase in costs.PHASES
    }

    def turns(options: scaling.Options, setups: list[Setup]) -> list[dict[str, Any]]:
        def heard(setup: Setup, slow: float) -> dict[str, Any]:
            phases = costs.predict(setup, costs.work(cfg, task, setup), prices)
            row = {"seconds": slow * sum(phases.values()), "phases": {n: slow * s for n, s in phases.items()}}
            return {"rows": [row], "peak_mb": 100.0, "planned_mb": 110.0}

        return [scaling._row(setup, [heard(setup, slow) for slow in (1.0, 1.5, 1.0)]) for setup in setups]

    monkeypatch.setattr(scaling, "_take_turns", turns)
    monkeypatch.setattr(scaling, "default_threads", lambda: 2)
    return {"command": "sdpg bench scaling"} | scaling.run(scaling.Options("hopper", obs))  # type: ignore[arg-type]


@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_what_the_result_says(monkeypatch: pytest.MonkeyPatch, obs: str) -> None:
    result = json.loads(json.dumps(_result(monkeypatch, obs)))
    assert {row["use"] for row in result["measured"]} == {"fitted", "held out"}
    assert result["held_out_error"]["worst"] < 1e-6 and result["fit_error"]["worst"] < 1e-6
    assert result["memory_error"]["worst"] == pytest.approx(0.1)
    assert result["prices"]["physics"]["parallel"]["value"] == pytest.approx(3e-8, rel=1e-4)
    assert result["prices"]["physics"]["parallel"]["unit"] == "seconds per physics step of a world"
    assert ("rendering" in result["prices"]) == (obs == "pixels")
    row = result["measured"][0]
    assert row["quartiles"] == [row["seconds"], pytest.approx(1.25 * row["seconds"])] and row["iterations"] == 3
    # Two ranks have the same rows as one, on the same cores.
    assert result["ranks"] and all(pair["ranks"] * pair["threads"] == 2 for pair in result["ranks"])
    pair, one = result["ranks"][0], result["measured"][0 if obs == "state" else 1]
    assert pair["ratio"] == pytest.approx(pair["seconds"] / one["seconds"])
    predicted = result["predictions"]
    assert predicted["prediction"] is True and len(predicted["assumptions"]) >= 5
    assert predicted["RTX 4080"]["seconds"] == pytest.approx(sum(predicted["RTX 4080"]["phases"].values()))
    assert predicted["8 x RTX 4080, 8 times N"]["num_nominal"] == 512


def test_figure_and_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = []
    for obs in ("state", "pixels"):
        files.append(tmp_path / f"{obs}.json")
        files[-1].write_text(json.dumps(_result(monkeypatch, obs)))
    figure, page = tmp_path / "figures" / "scaling.png", tmp_path / "page.md"
    page.write_text(f"before\n{scaling_page.BEGIN}\nold\n{scaling_page.END}\nafter\n")
    made = scaling.run(scaling.Options(of=tuple(files), figure=figure, page=page))
    assert made["results"] == 2 and figure.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "### hopper, state" in text and "### hopper, pixels" in text
    assert "| physics | parallel | 30 ns | physics step of a world |" in text
    assert text.count("a prediction") == 1 and all(text.count(f"- {line}") == 1 for line in costs.ASSUMPTIONS)
    scaling.run(scaling.Options(of=tuple(files), page=page))
    assert page.read_text() == text


def test_the_tables_of_the_docs_are_those_of_the_results() -> None:
    files = sorted((ROOT / "benchmarks" / "results").glob("scaling-*.json"), reverse=True)  # state before pixels
    text = (ROOT / "docs" / "scaling.md").read_text()
    assert text == scaling_page.filled(text, [scaling.load(path) for path in files])


def test_durations() -> None:
    assert [scaling_page.duration(x) for x in (1.5, 2e-3, 34e-6, 5.67e-9, 8e-12)] == [
        "1.5 s", "2 ms", "34 µs", "5.67 ns", "8 ps",
    ]  # fmt: skip


def test_mistakes_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text('{"kind": "sim"}')
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "page.md").write_text("no marks")
    for arguments, words in {
        "carpole": "unknown task 'carpole'",
        "cartpole --rounds 0": "rounds must be at least 1, not 0",
        "cartpole --threads 1000": "threads is 1000; give 1 to",
        "cartpole --obs sound": "obs",
        f"--of {tmp_path}/other.json": "not a result of sdpg bench scaling",
        f"--of {tmp_path}/torn.json": "not a JSON result",
        f"--of {tmp_path}/none.json": "not a JSON result",
    }.items():
        assert main(["bench", "scaling", *arguments.split()]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
    with pytest.raises(SdpgError, match="has no place for tables"):
        scaling_page.put([], tmp_path / "page.md")
    with pytest.raises(SdpgError, match="can't write"):
        scaling_page.put([], tmp_path / "none.md")


def test_a_measured_training_takes_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = CpuSim.step
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n1\n"))  # asked for two iterations, for one, then for no more
    measured.main(json.dumps(asdict(Job("cartpole", "state", "cpu", 0, Setup(2, 1, 3), str(tmp_path / "run")))))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(turn["rows"]) for turn in said] == [0, 2, 1]
    for row in said[1]["rows"] + said[2]["rows"]:
        assert set(row["phases"]) == set(costs.PHASES) - {"rendering"}
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"])
        assert all(seconds > 0 for seconds in row["phases"].values())
    assert said[2]["peak_mb"] > 0 and said[2]["planned_mb"] > 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3  # it was a training
    assert CpuSim.step is step  # the stopwatch has let go


def test_a_measured_training_that_fails_says_why(tmp_path: Path) -> None:
    lost = MeasuredTraining(
        Job("carpole", "state", "cpu", 0, Setup(2, 1, 2), str(tmp_path / "run")), tmp_path / "training"
    )
    try:
        with pytest.raises(SdpgError, match=r"'N 2, M 1, T 2; 1 x 1' could not be measured: unknown task 'carpole'"):
            lost.ready()
        with pytest.raises(SdpgError, match="unknown task 'carpole'"):
            lost.turn(1)
    finally:
        lost.end()


@pytest.mark.slow
@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_a_quick_measurement(tmp_path: Path, obs: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scaling.json"
    assert main(["bench", "scaling", "cartpole", "--obs", obs, "--quick", "--json", "--write", str(file)]) == 0
    result = json.loads(file.read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert result["command"].startswith("sdpg bench scaling cartpole") and result["machine"]["cores"] >= 1
    for row in result["measured"]:
        assert row["iterations"] == 2 and row["seconds"] > 0 and row["predicted_seconds"] > 0
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"], rel=0.5)  # of two: medians do not add up
        assert all(seconds > 0 for seconds in row["phases"].values())
        assert row["peak_mb"] > 0 and row["planned_mb"] > 0
    assert ("rendering" in result["prices"]) == (obs == "pixels")
    assert result["held_out_error"]["worst"] is not None and result["predictions"]["prediction"] is True
