"""Options of the first-order algorithms: SHAC's, and what differs in SAPO and D.Va. The algorithm is in
first_order.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sdpg.algos.api import AlgoCfg, Algorithm, Context, GuidedSearch, Need, Shapes
from sdpg.nn.encoders import Convolutions, Origin, image_cost
from sdpg.nn.modules import Exploration
from sdpg.ranges import rules


@dataclass(frozen=True)
class ShacCfg(AlgoCfg):
    """Short-horizon actor-critic."""

    name = "shac"

    horizon: int = 32
    """Steps of a segment, through which gradients flow back."""
    gamma: float = 0.99
    """Discount."""
    lam: float = 0.95
    """TD(lambda) coefficient of the critic's target."""
    decoupled: bool = False
    """What the policy sees is a constant to the gradient: actions are improved along the trajectory, and the policy
    follows them. Needed for images, which have no gradient."""
    critics: int = 1
    """Value functions. The smallest makes the critic's targets, their mean the end of the actor's return."""
    target_decay: float = 0.2
    """Share of the old target critic that is kept; 0: there is none beside the critic."""

    exploration: Exploration = "shared"
    """Log-std: one learned vector, a function of the observation ("state"), or "fixed"."""
    initial_std: float = math.exp(-1.0)
    """Exploration std at the start; its value for good when fixed."""
    log_std_bounds: tuple[float, float] | None = (-5.0, 2.0)
    """Range of the log-std."""
    entropy: bool = False
    """Maximise entropy beside the return, in the rewards of actor and critic."""
    temperature: float = 1.0
    """Its weight at the start; it is tuned towards a target entropy of -1/2 an action dimension."""
    temperature_lr: float = 5e-3
    """Learning rate of the temperature."""

    encoder: Convolutions = "drqv2"
    """Convolutions for images: drqv2 (the paper's), nature, half (of half the size), small (and half as wide)."""
    image_origin: Origin = "grey"
    """What is subtracted from an image: grey, or the run's first image."""
    image_motion: bool = False
    """Show the convolutions the newest frame and the changes between frames, in place of a stack."""
    encoder_features: int = 128
    """Features that an image is encoded into."""
    actor_chunk: int = 256
    """Decoupled: samples of one pass through the policy; gradients of several are added up."""
    actor_widths: tuple[int, ...] = (128, 64, 32)
    """Widths of the policy's layers, after its encoders."""
    critic_widths: tuple[int, ...] = (64, 64)
    """Widths of the critics' layers."""
    output_gain: float = 1.0
    """Gain of the orthogonal initialisation of the policy's mean."""
    actor_lr: float = 2e-3
    """Learning rate of the actor at the start; it falls linearly to last_lr."""
    critic_lr: float = 2e-3
    """Learning rate of the critics at the start; it falls linearly to last_lr."""
    last_lr: float = 1e-5
    """Learning rates in the end."""
    betas: tuple[float, float] = (0.7, 0.95)
    """Of Adam's moments."""
    weight_decay: float = 0.0
    """Of AdamW; 0: Adam."""
    critic_passes: int = 16
    """Passes over the segment."""
    critic_batches: int = 4
    """Steps of the critics in a pass, each with its share of the samples."""
    max_grad_norm: float = 1.0
    """Longer gradients are scaled down to this norm."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this."""

    @property
    def history(self) -> int:
        return self.horizon

    def rules(self) -> dict[str, bool]:
        low, high = self.log_std_bounds or (0.0, 0.0)
        ranges = {
            "at least 1": "horizon critics critic_passes critic_batches actor_chunk encoder_features actor_widths "
            "critic_widths",
            "at least 0": "output_gain temperature_lr last_lr weight_decay",
            "positive": "initial_std temperature actor_lr critic_lr max_grad_norm reward_scale",
            "between 0 and 1": "lam",
            "in (0, 1]": "gamma",
            "in [0, 1)": "target_decay betas",
        }
        return rules(vars(self), ranges, "algo.") | {
            f"algo.log-std-bounds must be low high, not {low} {high}": low <= high
        }

    def guided_search(self) -> GuidedSearch:
        return GuidedSearch("gradients of physics", 1, 1)

    def memory(self, shapes: Shapes) -> Need:
        t, d, a = self.horizon, shapes.state, shapes.action
        image_parameters = passes = 0
        for image in shapes.images:
            shape = (image.channels, image.height, image.width)
            cost = image_cost(shape, image.depth, self.encoder, image.features or self.encoder_features)
            passes += image.bytes + 4 * cost.kept  # drawn from the segment as bytes; as floats
            image_parameters += cost.parameters
        chunk = min(self.actor_chunk, t * shapes.num_nominal)
        fixed = {"networks": 4 * 8 * image_parameters, "passes through the networks": passes * chunk}
        # Of every layer: what goes in, what comes out, what is normalised; the critics' once, at the end of a segment.
        layers = 0 if self.decoupled else 5 * sum(self.actor_widths) + 3 * d
        step = 4 * (layers + 8 * d + 8 * a + self.critics * 4 * sum(self.critic_widths) // t) + 128
        copies = 1 + shapes.directions
        return Need(
            fixed,
            {
                "segment": t * step,
                "images": t * sum(image.bytes for image in shapes.images),
                "jacobians": t * 4 * shapes.directions**2,
                # The engine's, what is given to it, what it gives back, and differences in passing.
                "perturbed worlds": copies * 4 * shapes.world,
            },
            fix="give a shorter --algo.horizon",
        )

    def build(self, context: Context) -> Algorithm:
        from sdpg.algos.first_order import FirstOrder

        return FirstOrder(self, context)


@dataclass(frozen=True)
class SapoCfg(ShacCfg):
    """Soft analytic policy optimisation."""

    name = "sapo"

    critics: int = 2
    """Value functions. The smallest makes the critic's targets, their mean the end of the actor's return."""
    target_decay: float = 0.0
    """Share of the old target critic that is kept; 0: there is none beside the critic."""
    exploration: Exploration = "state"
    """Log-std: one learned vector, a function of the observation ("state"), or "fixed"."""
    entropy: bool = True
    """Maximise entropy beside the return, in the rewards of actor and critic."""
    critic_lr: float = 5e-4
    """Learning rate of the critics at the start; it falls linearly to last_lr."""
    weight_decay: float = 0.01
    """Of AdamW; 0: Adam."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm."""


@dataclass(frozen=True)
class DvaCfg(ShacCfg):
    """Decoupled visual analytic policy gradient."""

    name = "dva"

    decoupled: bool = True
    """What the policy sees is a constant to the gradient: actions are improved along the trajectory, and the policy
    follows them. Needed for images, which have no gradient."""
