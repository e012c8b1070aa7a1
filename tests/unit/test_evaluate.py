from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from helpers.runs import tiny
from torch import Tensor

from sdpg import train
from sdpg.algos.api import Carry, Policy
from sdpg.build import make_env
from sdpg.errors import SdpgError
from sdpg.evaluate import evaluate, run_episodes
from sdpg.run import checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    train.train(tiny(iterations=2), folder)
    return folder


def test_an_evaluation_is_reproducible_and_needs_only_the_run(run: Path) -> None:
    first, second = evaluate(run, episodes=5, threads=1), evaluate(run, episodes=5, threads=1)
    assert first.pop("seconds") > 0 < second.pop("seconds")
    assert first == second
    assert first["iteration"] == 2
    assert first["episodes"] == len(first["returns"]) == 5
    assert first["fell"] + first["survived"] == pytest.approx(1.0)
    assert first["return"]["min"] <= first["return"]["mean"] <= first["return"]["max"]
    other = evaluate(run, episodes=5, seed=1, threads=1)
    assert other["returns"] != first["returns"]


def test_terms_per_step_add_up_to_the_return(run: Path) -> None:
    result = evaluate(run, episodes=4, threads=1)
    total = sum(result["reward_per_step"].values()) * result["length"]["mean"]
    assert total == pytest.approx(result["return"]["mean"], rel=1e-5)


def test_a_checkpoint_folder_alone_can_be_evaluated(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "policy"
    checkpoint.find(run).rename(moved)
    try:
        assert evaluate(moved, episodes=2, threads=1)["task"] == "cartpole"
    finally:
        moved.rename(run / "checkpoints" / "00000002")


def test_bad_requests_are_refused(run: Path) -> None:
    with pytest.raises(SdpgError, match="episodes must be at least 1"):
        evaluate(run, episodes=0)
    with pytest.raises(SdpgError, match="seed must be"):
        evaluate(run, seed=-1)
    with pytest.raises(SdpgError, match="has no checkpoint 00000009"):
        evaluate(run, which=9)


class _Still(Policy):
    """A policy that does nothing."""

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return torch.zeros(3, 1), carry


def test_every_world_counts_one_episode() -> None:
    """Worlds that fall early go on, but only their first episode counts."""
    env = make_env("cartpole", num_nominal=3, seed=4, threads=1)
    returns, lengths = [0.0] * 3, [0] * 3
    for world in range(3):  # by hand, world after world
        other = make_env("cartpole", num_nominal=3, seed=4, threads=1)
        while True:
            step = other.step(torch.zeros(3, 1, 1))
            returns[world] += step.reward[world, 0].item()
            lengths[world] += 1
            if (step.terminated | step.truncated)[world, 0]:
                break
    result = run_episodes(_Still(), env)
    assert result["returns"] == pytest.approx(returns, abs=1e-2)
    assert result["length"]["max"] == max(lengths)
    assert result["length"]["min"] == min(lengths)
