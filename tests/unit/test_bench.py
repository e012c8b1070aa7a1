"""The benches run and say what they promise; never an assertion on seconds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from helpers.runs import tiny

from sdpg.algos import sdpg as algorithm
from sdpg.bench import curve, encoder, iteration, memory, plot, render, sim, smoothing
from sdpg.errors import SdpgError
from sdpg.train import train


def test_smoothing(tmp_path: Path) -> None:
    figure = tmp_path / "figures" / "smoothing.png"
    options = smoothing.Options(deltas=(0.2, 0.5), num_auxiliary=(4, 64), points=61, repeats=32, figure=figure)
    result = smoothing.run(options)
    json.dumps(result)
    assert figure.read_bytes().startswith(b"\x89PNG")
    few, many = (next(r for r in result["rows"] if r["delta"] == 0.5 and r["num_auxiliary"] == m) for m in (4, 64))
    assert few["rms_error"] / many["rms_error"] == pytest.approx(4.0, rel=0.15)  # sqrt(64 / 4)
    assert abs(many["bias"]) < 5 * many["rms_error"] / math.sqrt(61 * 32)


@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_smoothing_in_closed_form(delta: float) -> None:
    """The smoothed function by quadrature, and its gradient by autograd."""
    a = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    eps = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    density = torch.exp(-0.5 * eps**2) / math.sqrt(2 * math.pi)
    for x in a.detach()[::10]:
        expected = torch.trapezoid(smoothing.function(x + delta * eps) * density, eps)
        torch.testing.assert_close(smoothing.smoothed(x, delta), expected, rtol=0, atol=1e-4)
    value = smoothing.smoothed(a, delta)
    (slope,) = torch.autograd.grad(value.sum(), a)
    torch.testing.assert_close(smoothing.smoothed_gradient(a.detach(), delta), slope, rtol=1e-6, atol=1e-6)


def test_sim() -> None:
    result = sim.run(sim.Options(task="cartpole", num_worlds=4, steps=3, repeats=1, threads=(1, 2)))
    json.dumps(result)
    assert [row["threads"] for row in result["rows"]] == [1, 2]
    assert all(row[key] > 0 for row in result["rows"] for key in row)
    assert result["machine"]["cores"] >= 1


@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_iteration(obs: Literal["state", "pixels"]) -> None:
    before = algorithm.exploration_noise
    result = iteration.run(
        iteration.Options(task="cartpole", obs=obs, num_nominal=2, num_auxiliary=2, iterations=2, warmup=1, threads=1)
    )
    json.dumps(result)
    assert algorithm.exploration_noise is before  # the stopwatch has let go
    seconds = result["seconds"]
    assert set(seconds) == {
        "noise", "acting", "physics", "task functions", "restarts", "failure records", "actor update",
        "critic update", "normaliser", "other",
    } | ({"rendering"} if obs == "pixels" else set())  # fmt: skip
    assert result["renderer"] == ("raster" if obs == "pixels" else None)
    assert (0 < result["rendering_share"] < 1) is (obs == "pixels")
    assert all(value > 0 for value in seconds.values())
    assert 0 < result["ratio_to_raw"] < 1 and result["iteration_seconds"] > result["raw_seconds"]


def test_render(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = render.Options(
        task="cartpole", num_nominal=3, width=16, height=8, repeats=2, calls=2, threads=1, gl_seconds=30.0
    )
    result = render.run(tiny)
    json.dumps(result)
    speeds, ms = result["images_per_second"], result["ms_per_image"]
    assert set(speeds) == set(ms) == {"raster", "warp", "opengl"}
    assert speeds["raster"] * ms["raster"] == pytest.approx(1000) and result["raster_to_warp"] > 0
    assert (result["renderer"], result["images"], result["width"], result["height"]) == ("raster", 3, 16, 8)
    assert (speeds["opengl"] is None) == ("no usable GL library" in result["opengl"])

    # No GL: nothing hangs, nothing breaks, and the reason is there.
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(render, "_CHILD", "import sys; sys.exit('no display')")
    assert render.run(tiny)["opengl"] == "no usable GL library (egl: no display)"
    monkeypatch.setattr(render, "_CHILD", "import time; time.sleep(60)")
    result = render.run(replace(tiny, gl_seconds=0.2))
    assert result["ms_per_image"]["opengl"] is None and "no answer" in result["opengl"]


def test_encoder() -> None:
    result = encoder.run(encoder.Options(batch=2, size=36, features=4, repeats=2))
    json.dumps(result)
    assert set(result["encoders"]) == {"drqv2", "nature", "half", "small"}
    assert all(row["with_gradients_ms"] > 0 and row["forward_ms"] > 0 for row in result["encoders"].values())


@pytest.mark.slow
def test_memory_of_a_process_of_its_own() -> None:
    small, large = (
        memory.run(memory.Options("cartpole", "state", "cpu", "sdpg", 4, m, iterations=1, threads=1)) for m in (1, 4000)
    )
    assert 100 < small["import_mb"] < small["peak_mb"] < large["peak_mb"]
    assert small["planned_mb"] < large["planned_mb"]
    with pytest.raises(SdpgError, match=r"could not be measured: .*unknown task"):
        memory.run(memory.Options("carpole"))


@pytest.mark.parametrize(("obs", "iterations"), [("state", 1), ("pixels", 0)])
def test_memory_of_iterations_and_of_segments(obs: str, iterations: int) -> None:
    peak = memory._measure("cartpole", obs, "cpu", "sdpg", 2, 1, iterations, 1)
    assert 0 < peak["import_mb"] <= peak["peak_mb"] and peak["planned_mb"] > 0


def test_memory_scaling_draws_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def peak(options: memory.Options, n: int, m: int, iterations: int) -> dict[str, float]:
        asked.append((n, m))
        return {"peak_mb": 100.0 + n}

    monkeypatch.setattr(memory, "_peak", peak)
    figure = tmp_path / "figures" / "memory.png"
    result = memory.run(memory.Options(scaling=True, num_nominal=64, environments=(64, 256), figure=figure))
    assert asked == [(64, 0), (64, 0), (256, 0), (64, 3)]
    assert result["rows"][1] == {"environments": 256, "rendered": 356.0, "physics_only": 164.0}
    assert figure.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SdpgError, match="environments 100 is not a multiple of num-nominal 64"):
        memory.run(memory.Options(scaling=True, environments=(64, 100), figure=figure))


def test_the_stopwatch_counts_nested_phases_once() -> None:
    class Thing:
        def outer(self) -> int:
            return self.inner() + 1

        def inner(self) -> int:
            return 1

    thing, stopwatch = Thing(), iteration.Stopwatch()
    stopwatch.watch(thing, "outer", "a")
    stopwatch.watch(thing, "inner", "b")
    assert thing.outer() == 2
    assert stopwatch.seconds["a"] > 0 and stopwatch.seconds["b"] == 0
    thing.inner()
    assert stopwatch.seconds["b"] > 0
    stopwatch.reset()
    assert stopwatch.seconds == {"a": 0.0, "b": 0.0}
    stopwatch.release()
    assert not vars(thing)


def test_curve_and_plot(tmp_path: Path) -> None:
    train(tiny(iterations=5), tmp_path / "run")
    result = curve.run(curve.Options(tmp_path / "run", "cpu preset", episodes=3))
    assert (result["kind"], result["task"], result["label"], result["seed"]) == (
        "learning",
        "cartpole",
        "cpu preset",
        0,
    )
    assert result["curve"]["iteration"] == [1, 2, 3, 4, 5] and len(result["curve"]["return"]) == 5
    assert result["evaluation"]["episodes"] == 3 and result["evaluation"]["iteration"] == 5
    assert min(result["curve"]["memory_mb"]) > 0 and 0 < result["saving"] < 1
    assert str(tmp_path) not in json.dumps({**result, "command": ""})
    results = tmp_path / "results"
    results.mkdir()
    (results / "cartpole.json").write_text(json.dumps(result))
    (results / "other.json").write_text(json.dumps(result | {"label": "other", "seed": 1}))
    (results / "sim.json").write_text('{"kind": "sim"}')
    figure = tmp_path / "out" / "learning.png"
    drawn = plot.run(plot.Options(results, figure=figure))
    assert drawn["curves"] == 2 and drawn["tasks"] == ["cartpole"]
    assert figure.read_bytes().startswith(b"\x89PNG")

    with pytest.raises(SdpgError, match="no such learning curves"):
        plot.run(plot.Options(results, "both", figure))  # of state alone
    (results / "pixels.json").write_text(json.dumps(result | {"obs": "pixels"}))
    (results / "hopper.json").write_text(json.dumps(result | {"task": "hopper"}))
    assert plot.run(plot.Options(results, "pixels", figure))["curves"] == 1
    compared = plot.run(plot.Options(results, "both", figure))
    assert compared["curves"] == 2 and compared["tasks"] == ["cartpole"]  # one of each, with the preset


def test_a_long_curve_is_thinned_and_keeps_its_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"cfg": {"task": "hopper", "preset": "cpu", "seed": 3}}')
    rows = [
        {"iteration": i, "seconds": 6.0 * i, "Train/mean_reward": None if i < 5 else 1.23456789} for i in range(1, 1002)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = curve.learning(tmp_path, "x", "y")["curve"]
    assert len(made["iteration"]) <= curve.POINTS and made["iteration"][-1] == 1001
    assert made["minutes"][-1] == 100.1 and made["return"][-1] == 1.2346 and made["length"][-1] is None


def test_bad_input_in_plain_words(tmp_path: Path) -> None:
    with pytest.raises(SdpgError, match="not a run folder"):
        curve.learning(tmp_path, "x", "y")
    with pytest.raises(SdpgError, match="no such learning curves"):
        plot.run(plot.Options(tmp_path, tmp_path / "x.png"))
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(SdpgError, match="not a JSON result"):
        plot.load(tmp_path)
