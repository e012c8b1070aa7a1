"""`sdpg bench gradient`: shares and cosines on directions whose signal is known, and the whole bench on tiny runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.runs import tiny

from sdpg.bench import gradient
from sdpg.errors import SdpgError
from sdpg.train import train


def _directions(signal: torch.Tensor, noise: float, draws: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draws)
    return signal + noise * torch.randn(draws, *signal.shape, generator=generator)


def test_the_share_of_signal_is_found() -> None:
    signal = torch.ones(8, 400, 3)
    signal[:4] = 0.0  # in the first half there is nothing but noise
    whole, common = gradient.power(_directions(signal, 2.0, draws=6))
    assert (common.sum() / whole.sum()).item() == pytest.approx(0.5 / 4.5, abs=0.01)
    assert gradient.by_quarter(common, whole) == pytest.approx([0.0, 0.0, 0.2, 0.2], abs=0.02)


def test_cosine_counts_noise_and_alignment_does_not() -> None:
    """Signals at 60 degrees; a power of noise three times that of the signal halves the cosine."""
    reference = torch.tensor([1.0, 0.0]).expand(4, 5000, 2)
    turned = torch.tensor([0.5, math.sqrt(0.75)]).expand(4, 5000, 2)
    d, r = _directions(turned, math.sqrt(1.5), 6), _directions(reference, 0.5, 4)
    found = gradient.agreement(d, r, gradient.power(d)[1], gradient.power(r)[1])
    assert found["alignment"] == pytest.approx(0.5, abs=0.02)
    assert found["cosine"] == pytest.approx(0.25, abs=0.02)


def test_the_error_of_a_cosine_is_how_far_it_strays() -> None:
    """Over many sets of rows, directions that have nothing in common."""
    torch.manual_seed(0)
    cosines, told = [], []
    for _ in range(200):
        d, r = torch.randn(4, 2, 30, 3), torch.randn(3, 2, 30, 3) + 1.0
        found = gradient.agreement(d, r, torch.ones(2), gradient.power(r)[1])
        cosines.append(found["cosine"])
        told.append(found["cosine_error"])
    assert sum(told) / len(told) == pytest.approx(float(np.std(cosines)), rel=0.2)


def test_errors_of_a_critic() -> None:
    found = gradient.errors(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 3.0, 4.0]))
    assert (found["bias"], found["rms"], found["mean_return"]) == pytest.approx((-1.0, 1.0, 3.0))
    assert found["correlation"] == pytest.approx(1.0)


@pytest.mark.parametrize("obs", ["state", "pixels"])
def test_the_bench_of_a_run(obs: str, tmp_path: Path) -> None:
    train(tiny("cartpole", obs, num_nominal=4, num_auxiliary=4, horizon=4, iterations=2), tmp_path / "run")
    figure = tmp_path / "figures" / "gradient.png"
    options = gradient.Options(
        tmp_path / "run", draws=2, repeats=2, times=(0, 2), steps=5, lams=(0.8, 0.95), threads=1, figure=figure
    )
    result = gradient.run(options)
    json.dumps(result)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert result["iteration"] == 2
    kinds = [(row["baseline"], row["lam"]) for row in result["rows"]]
    assert kinds == [("nominal", 0.8), ("nominal", 0.95), ("value", 0.8), ("value", 0.95)]
    assert all(row["share"] <= 1.0 and row["kl"] > 0.0 and len(row["share_by_quarter"]) == 4 for row in result["rows"])
    assert ("reference" in result) == (obs == "state")
    if obs == "state":
        assert set(result["critic"]) == {"nominals", "branches", "difference"}
        assert all(len(row["cosine_by_time"]) == len(options.times) for row in result["rows"])
        # At the checkpoint's own options nothing of it depends on which of them were measured before.
        again = gradient.run(gradient.Options(tmp_path / "run", "last", 2, (0.95,), (0, 2), 2, 5, 1))
        assert again["rows"][0] == next(row for row in result["rows"] if row["lam"] == 0.95)
        # Each length of branches by itself, and that of the segment is what the run has.
        each = gradient.run(
            gradient.Options(tmp_path / "run", "last", 2, (0.95,), (0, 2), 2, 5, 1, branch_steps=(2, 4))
        )
        assert [row["branch_steps"] for row in each["rows"]] == [2, 2, 4, 4]
        assert each["rows"][2] == again["rows"][0] != each["rows"][0] | {"branch_steps": 4}


def test_one_draw_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(SdpgError, match="draws"):
        gradient.run(gradient.Options(tmp_path, draws=1))
