"""The whole of it: the method trains a robot to a threshold."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpg.evaluate import evaluate
from sdpg.presets import resolve
from sdpg.train import train


@pytest.mark.slow
def test_the_cpu_preset_learns_to_balance_the_pole(tmp_path: Path) -> None:
    """No policy returns more than 300; a random one gets about 30."""
    train(resolve("cartpole"), tmp_path / "run")
    result = evaluate(tmp_path / "run", episodes=32)
    assert result["return"]["mean"] > 240.0
    assert result["survived"] > 0.9
