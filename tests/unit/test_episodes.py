"""What an environment keeps about finished episodes."""

from __future__ import annotations

import math

import torch

from sdpg.distributed import ALONE
from sdpg.episodes import WINDOW, Episodes


def _ended(*totals: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, returns and lengths of episodes that ended in one step."""
    return torch.arange(len(totals)), torch.tensor(totals), torch.full((len(totals),), 3)


def test_means_look_back_on_the_last_episodes() -> None:
    episodes = Episodes()
    means = episodes.means()
    assert math.isnan(means.total) and math.isnan(means.length) and means.measures == {}
    for i in range(WINDOW + 10):
        episodes.add(*_ended(float(i)), {"success": torch.tensor([i % 2])})
    # 10 .. 109: their mean is 59.5, half of them are odd.
    means = episodes.means()
    assert (means.total, means.length, dict(means.measures)) == (59.5, 3.0, {"success": 0.5})
    assert episodes.count == WINDOW + 10


def test_a_measure_that_is_not_finite_does_not_count() -> None:
    episodes = Episodes()
    episodes.add(*_ended(1.0, 2.0, 3.0), {"distance": torch.tensor([4.0, math.nan, 6.0])})
    assert episodes.means().measures["distance"] == 5.0
    alone = Episodes()
    alone.add(*_ended(1.0), {"distance": torch.tensor([math.nan])})
    assert math.isnan(alone.means().measures["distance"])


def test_a_state_brings_back_averages_and_counts() -> None:
    episodes, restored = Episodes(), Episodes()
    episodes.add(*_ended(1.0, 2.0), {"success": torch.tensor([1.0, 0.0]), "level": torch.tensor([3.0, 5.0])})
    episodes.share(ALONE)
    episodes.tick()
    episodes.add(*_ended(6.0), {"success": torch.tensor([1.0]), "level": torch.tensor([1.0])})
    restored.load_state_dict(episodes.state_dict())
    assert restored.means() == episodes.means() and restored.count == 3
    assert restored.means().total == 3.0 and restored.means().measures["level"] == 3.0
    # A checkpoint of a task without measures has none, and can be loaded.
    plain = Episodes()
    plain.add(*_ended(1.0), {})
    restored.load_state_dict(plain.state_dict())
    assert restored.means().measures == {} and restored.count == 1
