"""The paper's 1-D example: a function, its Gaussian-smoothed surrogate, and the estimator of the surrogate's gradient.

    J(a) = cos(a) + 0.3 sin(14 a) + [a > 0.8] - 0.2 |a|

oscillates and jumps: its own gradient is dominated by the ripple and does not see the jump at all. Every part has its
smoothed form in closed form (E sin(w (a + delta eps)) = sin(w a) exp(-w^2 delta^2 / 2), the jump becomes the normal
distribution function, |a| a folded normal's mean), so the estimator can be held against the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdpg.algos.sdpg import advantage, ascent_direction, exploration_noise
from sdpg.bench import machine

RIPPLE, FREQUENCY, JUMP_AT, KINK = 0.3, 14.0, 0.8, 0.2


@dataclass(frozen=True)
class Options:
    """The estimator of the smoothed gradient on a function of one number."""

    deltas: tuple[float, ...] = (0.05, 0.2, 0.5)
    """Exploration std."""
    num_auxiliary: tuple[int, ...] = (1, 15, 63, 255)
    """Noises per estimate [M]."""
    points: int = 241
    """Where the function is looked at, between -3 and 3."""
    repeats: int = 64
    """Estimates per point."""
    antithetic: bool = False
    seed: int = 0
    figure: Path | None = None
    """Save the figure here (PNG)."""


def function(a: Tensor) -> Tensor:
    return torch.cos(a) + RIPPLE * torch.sin(FREQUENCY * a) + (a > JUMP_AT).to(a) - KINK * a.abs()


def gradient(a: Tensor) -> Tensor:
    """Of the function itself, where it has one."""
    return -torch.sin(a) + RIPPLE * FREQUENCY * torch.cos(FREQUENCY * a) - KINK * a.sign()


def smoothed(a: Tensor, delta: float) -> Tensor:
    """E J(a + delta eps)"""
    fade, ripple_fade = math.exp(-0.5 * delta**2), math.exp(-0.5 * (FREQUENCY * delta) ** 2)
    jump = torch.special.ndtr((a - JUMP_AT) / delta)
    density = torch.exp(-0.5 * (a / delta) ** 2) / math.sqrt(2 * math.pi)
    folded = 2 * delta * density + a * (2 * torch.special.ndtr(a / delta) - 1)
    return fade * torch.cos(a) + RIPPLE * ripple_fade * torch.sin(FREQUENCY * a) + jump - KINK * folded


def smoothed_gradient(a: Tensor, delta: float) -> Tensor:
    fade, ripple_fade = math.exp(-0.5 * delta**2), math.exp(-0.5 * (FREQUENCY * delta) ** 2)
    jump = torch.exp(-0.5 * ((a - JUMP_AT) / delta) ** 2) / (delta * math.sqrt(2 * math.pi))
    ripple = RIPPLE * FREQUENCY * ripple_fade * torch.cos(FREQUENCY * a)
    return -fade * torch.sin(a) + ripple + jump - KINK * torch.erf(a / (delta * math.sqrt(2)))


def estimates(a: Tensor, delta: float, m: int, options: Options) -> Tensor:
    """(repeats, points): the algorithm's own estimator; points are its rows, repeats its time steps."""
    rows = torch.arange(len(a))
    noise = exploration_noise(options.seed, 0, rows, (options.repeats, m, 1), options.antithetic)  # (R, P, 1 + M, 1)
    returns = function(a[None, :, None] + delta * noise[..., 0])
    std = torch.full((options.repeats, len(a), 1), delta)
    return ascent_direction(advantage(returns, None, normalize=False), noise, std, "delta")[0][..., 0]


def run(options: Options) -> dict[str, Any]:
    a = torch.linspace(-3, 3, options.points)
    rows = []
    for delta in options.deltas:
        exact = smoothed_gradient(a, delta)
        for m in options.num_auxiliary:
            error = estimates(a, delta, m, options) - exact
            rows.append(
                {
                    "delta": delta,
                    "num_auxiliary": m,
                    "rms_gradient": exact.square().mean().sqrt().item(),
                    "rms_error": error.square().mean().sqrt().item(),  # of one estimate: falls as 1 / sqrt(M)
                    "bias": error.mean().item(),
                }
            )
    if options.figure is not None:
        _draw(a, options)
    return {
        "kind": "smoothing",
        "machine": machine.describe(),
        "rms_gradient_unsmoothed": gradient(a).square().mean().sqrt().item(),
        "figure": str(options.figure) if options.figure else None,
        "rows": rows,
    }


def _draw(a: Tensor, options: Options) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    delta, m = options.deltas[-1], options.num_auxiliary[-1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    fine = torch.linspace(-3, 3, 2001)
    left.plot(fine, function(fine), color="0.7", lw=0.8, label="J")
    right.plot(fine, gradient(fine), color="0.85", lw=0.8, label="dJ/da (without the jump)")
    for i, width in enumerate(options.deltas):
        left.plot(fine, smoothed(fine, width), color=f"C{i}", label=f"smoothed, $\\delta$ = {width:g}")
    last = f"C{len(options.deltas) - 1}"
    estimate = estimates(a, delta, m, options)
    right.plot(a, estimate[0], ".", ms=3, color="0.3", label=f"one estimate, M = {m}")
    right.plot(
        fine, smoothed_gradient(fine, delta), color=last, label=f"gradient of the smoothed J, $\\delta$ = {delta:g}"
    )
    for axes, title in ((left, "function"), (right, "gradient")):
        axes.set(xlabel="a", title=title)
        axes.legend(fontsize=7)
    assert options.figure is not None
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.figure, dpi=120)
    plt.close(figure)
