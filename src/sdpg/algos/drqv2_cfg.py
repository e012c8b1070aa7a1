"""Options of DrQ-v2; the algorithm itself is in drqv2.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sdpg.algos.api import AlgoCfg, Algorithm, Context, Need, Shapes
from sdpg.nn.encoders import Convolutions, image_cost
from sdpg.ranges import rules


@dataclass(frozen=True)
class DrqV2Cfg(AlgoCfg):
    """Defaults are the official code's. Steps are control steps of one world: N worlds make N of them at once."""

    name = "drqv2"
    exact_resume = False  # the buffer would be gigabytes in every checkpoint

    steps: int = 32
    """Control steps of every world in an iteration."""
    gamma: float = 0.99
    """Discount of a control step."""
    n_step: int = 3
    """Rewards in a critic's target before its bootstrap."""
    buffer: int = 1_000_000
    """Observations that are remembered, over all worlds."""
    seed_steps: int = 2000
    """Steps in the buffer before learning begins, after a resume too."""
    random_steps: int = 2000
    """Steps at the start of a run with uniformly random actions."""
    updates_per_step: float = 0.5
    """Updates of all networks for each step of a world."""
    batch: int = 256
    """Samples of an update."""
    lr: float = 1e-4
    """Learning rate of encoder, actor and critic."""
    target_rate: float = 0.01
    """Share of the critic that its target takes over in an update."""
    first_std: float = 1.0
    """Exploration noise at the start."""
    last_std: float = 0.1
    """Exploration noise in the end."""
    std_steps: int = 500_000
    """Steps over which the noise goes from the one to the other."""
    noise_clip: float = 0.3
    """Largest noise on actions in updates; when acting, it is not clipped."""
    shift: int = 4
    """Images of a batch are shifted by up to so many pixels either way; 0: not at all."""
    encoder: Convolutions = "drqv2"
    """Convolutions: drqv2 (the paper's), nature, half (on images of half the size), small (and half as wide)."""
    features: int = 50
    """Size of the projection between encoder and heads."""
    hidden: int = 1024
    """Width of the two hidden layers of actor and critics."""

    def rules(self) -> dict[str, bool]:
        ranges = {
            "at least 1": "steps n_step buffer batch std_steps features hidden",
            "at least 0": "seed_steps random_steps first_std last_std shift",
            "positive": "updates_per_step lr noise_clip",
            "in (0, 1]": "gamma target_rate",
        }
        return rules(vars(self), ranges, "algo.")

    def std(self, step: int) -> float:
        """Exploration noise after so many steps of the run."""
        share = min(1.0, step / self.std_steps)
        return (1.0 - share) * self.first_std + share * self.last_std

    def memory(self, shapes: Shapes) -> Need:
        slot = 4 * shapes.action + 13  # action, reward, age, end
        convolutions, projections, passes = 0, 0, 0
        for image in shapes.images:
            shape = (image.channels, image.height, image.width)
            small, large = (image_cost(shape, image.depth, self.encoder, size) for size in (1, 2))
            projections += (large.parameters - small.parameters) * self.features
            convolutions += small.parameters - (large.parameters - small.parameters)
            slot += image.frame_channels * image.height * image.width
            # Two observations as bytes, once stacked and once shifted; as floats, outputs, what ReLU keeps, gradients.
            passes += 4 * math.prod(shape) + 4 * (math.prod(shape) + 3 * small.outputs)
        heads = 3 * (self.features * self.hidden + self.hidden**2)
        fixed = {
            "replay buffer": self.buffer * slot,
            # Weights, gradients, two moments; as many again in passing when a checkpoint is written. Projections of
            # actor, critic and target, which has weights alone.
            "networks": 4 * 8 * (convolutions + 2 * projections + heads) + 4 * 2 * projections,
            "passes through the networks": self.batch * passes,
        }
        return Need(fixed, fix="give a smaller --algo.buffer")

    def build(self, context: Context) -> Algorithm:
        from sdpg.algos.drqv2 import DrqV2

        return DrqV2(self, context)
