"""What several seeds say together: the interquartile mean, and how sure one can be of it (Agarwal et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 2000  # of the bootstrap
LEVEL = 0.95


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half. Values that lie partly in it count in part: of few values, all may have a say."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    edges = np.linspace(0.0, 1.0, len(ordered) + 1)  # value i covers the quantiles from edges[i] to edges[i + 1]
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return float((inside * ordered).sum() / inside.sum())


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Where the interquartile mean lies in 95 % of bootstrap draws. Of a single value nothing can be said: it alone."""
    drawn = np.random.default_rng(seed).choice(np.asarray(values, dtype=np.float64), (DRAWS, len(values)))
    means = [interquartile_mean(draw) for draw in drawn]
    low, high = np.quantile(means, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    return float(low), float(high)
