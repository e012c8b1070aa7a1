"""The whole of it: the method trains a robot to a threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg
from sdpg.build import make_env
from sdpg.evaluate import evaluate, run_episodes
from sdpg.presets import resolve
from sdpg.run import checkpoint, log
from sdpg.train import restore, train


@pytest.mark.slow
def test_the_cpu_preset_learns_to_balance_the_pole(tmp_path: Path) -> None:
    """No policy returns more than 300; a random one gets about 30."""
    train(resolve("cartpole"), tmp_path / "run")
    result = evaluate(tmp_path / "run", episodes=32)
    assert result["return"]["mean"] > 240.0
    assert result["survived"] > 0.9


@pytest.mark.slow
def test_the_pole_is_balanced_from_pixels(tmp_path: Path) -> None:
    """Half of the preset's iterations, and the same threshold: as much as from state."""
    cfg = resolve("cartpole", obs="pixels")
    train(replace(cfg, iterations=cfg.iterations // 2), tmp_path / "run")
    assert evaluate(tmp_path / "run", episodes=32)["return"]["mean"] > 240.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("algorithm", "obs"), [("shac", "state"), ("sapo", "state"), ("dva", "state"), ("dva", "pixels")]
)
def test_first_order_algorithms_balance_the_pole(algorithm: str, obs: str, tmp_path: Path) -> None:
    train(resolve("cartpole", obs=obs, algorithm=algorithm), tmp_path / "run")
    assert evaluate(tmp_path / "run", episodes=32)["return"]["mean"] > 240.0


RARE = """
import torch
from sdpg.tasks.cartpole import Cartpole

class Rare(Cartpole):
    '''About one world-step in a thousand gives NaN: half of them in the reward, the others in the controls, so that the
    engine itself gives up. Which ones is a pure function of the state, as good as random.'''

    def unlucky(self, x, factor):
        mixed = (x.qpos * torch.tensor([1.0, 3.0])).sum(-1) + (x.qvel * torch.tensor([0.7, 0.2])).sum(-1)
        return torch.frac(mixed.abs() * factor + 0.5) < 5e-4

    def control(self, x, memory, action):
        return torch.where(self.unlucky(x, 911.0)[..., None], torch.nan, super().control(x, memory, action))

    def reward(self, x, memory, action):
        terms = super().reward(x, memory, action)
        return terms | {"calm": torch.where(self.unlucky(x, 1327.0), torch.nan, terms["calm"])}
"""


@pytest.mark.slow
def test_nan_now_and_then_does_not_keep_it_from_learning(stranger: Callable[[str, str], str], tmp_path: Path) -> None:
    """The same threshold as without, on the same task without NaN."""
    name = stranger("rare_nan_task", RARE)
    cfg = replace(resolve("cartpole"), task=f"{name}:Rare", threads=2)  # the same numbers on any number of cores
    train(cfg, tmp_path / "run")
    rows = log.read(tmp_path / "run")
    assert 3e-4 < sum(row["Train/failed"] for row in rows) / len(rows) < 3e-3
    assert not any(row["Loss/actor_skipped"] or row["Loss/critic_skipped"] for row in rows)
    env = make_env("cartpole", 32, 0, seed=1000)
    algo = Sdpg(cfg.algo, Context(env, seed=cfg.seed))
    restore(checkpoint.load(checkpoint.find(tmp_path / "run")), algo, None)
    result = run_episodes(algo.policy(), env)
    assert result["return"]["mean"] > 240.0
    assert result["survived"] > 0.9
