"""Options of PPO and A2C; the algorithm itself is in ppo.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import rsl_rl  # noqa: F401  its absence is told when the options are asked for, not when a run has been built

from sdpg.algos.api import Algorithm, Context, GuidedSearch, Need, Shapes
from sdpg.algos.networks import NetworkCfg
from sdpg.nn.modules import Exploration
from sdpg.ranges import rules


@dataclass(frozen=True)
class PpoCfg(NetworkCfg):
    """Defaults are those of SDPG's authors for the hopper."""

    name = "ppo"

    horizon: int = 32
    """Steps of every world in an iteration."""
    gamma: float = 0.99
    """Discount."""
    lam: float = 0.95
    """GAE's lambda."""
    epochs: int = 5
    """Passes over an iteration's samples."""
    minibatches: int = 4
    """Parts that a pass is split into, at random; each is an optimiser step."""
    clip: float = 0.2
    """A sample no longer counts once its probability has changed by more than this share."""
    value_clip: bool = True
    """The critic, too, gains nothing from moving further than `clip` from its old value."""
    value_weight: float = 2.0
    """Weight of the critic's squared error in the loss."""
    entropy_weight: float = 0.0
    """Weight of the policy's entropy in the loss."""
    lr: float = 3e-4
    """Learning rate; with the adaptive schedule, the first one."""
    schedule: Literal["adaptive", "linear", "constant"] = "adaptive"
    """adaptive: 1.5 times as large or small, within 1e-5 and 1e-2, whenever a step's KL divergence is below half of
    or above twice desired_kl; linear: to a tenth over the run."""
    desired_kl: float = 0.008
    """Of the adaptive schedule: KL divergence of the policy from the one that acted."""
    max_grad_norm: float = 1.0
    """Longer gradients are scaled down to this norm, the actor's and the critic's each."""
    exploration: Exploration = "shared"
    """Log-std: one learned vector, a function of the observation ("state"), or "fixed"."""
    initial_std: float = 1.0
    """Exploration std at the start; its value for good when fixed."""
    log_std_bounds: tuple[float, float] = (-5.0, 2.0)
    """Range of the log-std."""
    bounds: Literal["clip", "tanh"] = "clip"
    """How what the Gaussian draws becomes an action in [-1, 1]. Probabilities are of what it draws."""
    critic_widths: tuple[int, ...] = (128, 64, 32)
    """Widths of the critic's layers; it reads the state, whatever the policy sees."""
    normalize_values: bool = True
    """The critic learns returns less their running mean, over their running std."""
    reward_scale: float = 0.01
    """Rewards are multiplied by this before returns are made of them."""

    def rules(self) -> dict[str, bool]:
        low, high = self.log_std_bounds
        ranges = {
            "at least 1": "horizon epochs minibatches encoder_features actor_widths critic_widths vector_widths",
            "at least 0": "output_gain value_weight entropy_weight",
            "positive": "clip lr desired_kl max_grad_norm initial_std reward_scale",
            "between 0 and 1": "lam",
            "in (0, 1]": "gamma",
        }
        return rules(vars(self), ranges, "algo.") | {
            f"algo.log-std-bounds must be low high, not {low} {high}": low <= high
        }

    def guided_search(self) -> GuidedSearch:
        return GuidedSearch("likelihood ratios", 1, self.epochs * self.minibatches)

    def memory(self, shapes: Shapes) -> Need:
        t, d, a = self.horizon, shapes.state, shapes.action
        parameters, sample = self.image_memory(shapes)
        widths = sum(self.actor_widths) + sum(self.critic_widths)
        # Weights, gradients, two moments; as many again in passing when a checkpoint is written.
        fixed = {"networks": 4 * 8 * parameters}
        # State, then once more after the step and as it is normalised; actions, means, log-stds; numbers of a step.
        segment = t * (4 * (3 * d + sum(shapes.vectors) + 5 * a) + 64 + sum(image.bytes for image in shapes.images))
        drawn = t / self.minibatches * (sample + 4 * (2 * d + 6 * a + 6 * widths))
        return Need(
            fixed, {"segment": segment, "passes through the networks": int(drawn)}, "give a smaller --algo.horizon"
        )

    def build(self, context: Context) -> Algorithm:
        from sdpg.algos.ppo import Ppo

        return Ppo(self, context)


@dataclass(frozen=True)
class A2cCfg(PpoCfg):
    """PPO with one step on the whole batch: probabilities are still those that acted, and nothing is clipped."""

    name = "a2c"

    epochs: int = 1
    """Passes over an iteration's samples: with more than one, this is PPO."""
    minibatches: int = 1
    """Parts that a pass is split into: with more than one, this is PPO."""
    value_clip: bool = False
    """Without effect in the only step."""
    schedule: Literal["adaptive", "linear", "constant"] = "linear"
    """linear: to a tenth over the run. adaptive goes by the divergence before a step, which is none here."""
    horizon: int = 16
    """Steps of every world in an iteration."""
    lr: float = 1e-3
    """Learning rate at the start."""

    def rules(self) -> dict[str, bool]:
        return super().rules() | {
            "a2c takes one step on all samples: give algo.epochs 1 and algo.minibatches 1, or --algorithm ppo": (
                self.epochs == self.minibatches == 1
            ),
            "a2c has no divergence to adapt to: give algo.schedule linear or constant": self.schedule != "adaptive",
        }
