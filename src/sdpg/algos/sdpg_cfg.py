"""Options of the Stochastic Decoupled Policy Gradient; the algorithm itself is in sdpg.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sdpg.algos.api import AlgoCfg, Algorithm, Context, GuidedSearch, ImageShape, Need, Shapes, Work
from sdpg.nn.encoders import Convolutions, ImageCost, Origin, image_cost
from sdpg.nn.modules import Exploration, multiply_adds
from sdpg.ranges import rules


@dataclass(frozen=True)
class SdpgCfg(AlgoCfg):
    """The paper's symbols are in brackets."""

    name = "sdpg"
    auxiliaries = (1, None)
    ranks = True

    horizon: int = 32
    """Steps of a segment [H]."""
    branch_steps: int | None = None
    """Steps after which branches become their nominals again, in mid-segment; returns that are climbed end there in the
    critic's value. None: at the end of the segment, as in the paper. A branch acts blindly: it is compared with its
    nominal only as long as it is near."""
    gamma: float = 0.99
    """Discount."""
    final_gamma: float | None = None
    """What the discount rises to over the run, 1 - gamma by the same factor in every iteration. Beyond the paper."""
    lam: float = 0.95
    """TD(lambda) coefficient of the critic's target and, with the eligibility trace, of the actor's return."""
    causal: bool = True
    """Return-to-go for the actor; off: one return per stretch between restarts, against the nominal's from there on."""
    eligibility_trace: bool = True
    """TD(lambda) in the actor's return; off: bootstrap at the end of the segment only."""
    denominator: Literal["sigma", "delta", "none"] = "sigma"
    """What a return difference is divided by: its std per (nominal, time), the exploration std (REINFORCE), nothing."""
    stakes: float = 0.0
    """Exponent p: the direction of a row at a time, whose sigma makes all alike, counts (sigma / rms sigma)^p. 0: as in
    the paper; 1: as much as is at stake there. Beyond the paper."""
    antithetic: bool = False
    """Draw the auxiliaries' noise in pairs of opposite sign. Beyond the paper."""
    nominal_noise: float = 0.0
    """Exploration noise that a row's worlds have in common: the nominal acts with mu + c_n delta eta_t, branch j with
    mu + delta (c_n eta_t + eps_t^j). Rows' shares c_n are spread evenly from 0, as in evaluation, to this. Policy and
    critic see states around the mean's, and what follows when the policy answers to noise. Beyond the paper."""
    baseline: Literal["nominal", "value"] = "nominal"
    """What a branch is compared with: its nominal's return, or, beyond the paper, also the value of its own state,
    [J_t^j - V(s_t^j)] - [J_t^0 - V(s_t^0)]: what earlier noise did to the state no longer counts."""

    exploration: Exploration = "shared"
    """Log-std [delta tilde]: one learned vector, a function of the observation ("state"), or "fixed"."""
    initial_std: float = 1.0
    """Exploration std at the start; its value for good when fixed."""
    final_std: float | None = None
    """With fixed exploration: what the std falls to over the run, by the same factor in every iteration. Beyond the
    paper."""
    mean_bound: float | None = 2.0
    """The pre-tanh action is clipped to +- this."""
    log_std_bounds: tuple[float, float] | None = (-5.0, 2.0)
    """Range of the log-std."""

    entropy: bool = False
    """Entropy regularisation of the actor."""
    auto_temperature: bool = False
    """Tune the temperature towards target_std."""
    temperature: float = 0.01
    """Initial (or constant) temperature [alpha]."""
    target_std: float = 0.15
    """Exploration std that the temperature aims at."""
    soft_critic: bool = False
    """Entropy in the rewards that returns are made of."""
    temperature_lr: float = 1e-3
    """Learning rate of the temperature."""

    encoder: Convolutions = "drqv2"
    """Convolutions for images: the paper's, or cheaper ones."""
    image_origin: Origin = "grey"
    """What is subtracted from an image: grey, as in the paper, or the run's first image. Beyond the paper."""
    image_motion: bool = False
    """Show the convolutions the newest frame and the changes between frames, in place of a stack. Beyond the paper."""
    encoder_features: int = 128
    """Features that an image is encoded into."""
    vector_widths: tuple[int, ...] = ()
    """Widths of an MLP encoder for vector sources; none: they are passed through."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the policy; auto: bfloat16 for images where the machine has it in hardware."""
    actor_chunk: int = 2048
    """Samples of one forward and backward pass; gradients of several are added up, so that memory stays small."""
    actor_widths: tuple[int, ...] = (128, 64, 32)
    """Widths of the policy's layers, after its encoders."""
    critic_widths: tuple[int, ...] = (64, 64)
    """Widths of the critic's layers."""
    output_gain: float = math.sqrt(2)
    """Gain of the orthogonal initialisation of the policy's mean."""
    actor_lr: float = 2e-3
    """Learning rate of the actor: the highest of its schedule."""
    actor_schedule: Literal["cosine", "constant"] = "cosine"
    """Cosine from actor_lr to actor_lr_min after a linear warm-up."""
    actor_lr_min: float = 1e-5
    """Where its cosine ends."""
    warmup: int = 100
    """Iterations of linear warm-up of the actor's learning rate."""
    kl_target: float | None = None
    """KL divergence of the policy after an iteration from that before it, which the learning rate is led to: times 2/3
    beyond twice as much, times 3/2 below half as much, never beyond its schedule. None: as scheduled. Beyond the
    paper."""
    guide_passes: int = 0
    """Passes over an iteration's samples, in batches of critic_batch, by which a small network g of the privileged
    state, the guide, learns where actions should go; the policy is then regressed onto g(s). Noise averages out in it,
    where an encoder of images learns each sample's by heart. 0: no guide, as in the paper."""
    guide_memory: float = 0.9
    """Share b of what the policy did not follow yet that stays a target: the guide learns mu + b (g - mu) + d."""
    search_steps: int = 1
    """How often the actions of a segment climb before the policy is regressed onto them. For each beyond the first, the
    segment is played again from its start, with the improved actions and new noise: guided policy search."""
    regression_steps: int = 1
    """Steps of regression onto the targets of one batch. More than one is beyond the paper."""
    regression_fraction: float = 1.0
    """Share of the batch that each of these steps draws at random."""
    critic_lr: float = 2e-4
    """Learning rate of the critic."""
    critic_schedule: Literal["linear", "constant"] = "linear"
    """Linear: to a tenth over the run."""
    critic_passes: int = 2
    """Passes over the batch [K_c]."""
    critic_batch: int = 4096
    """Samples of a critic step [B]."""
    critic_branches: float = 1.0
    """Weight w of a branch in the critic's loss, sum_n e_n^2 + w sum_nj e_nj^2; 0: nominals alone. A branch repeats its
    nominal's actions wherever it is: its return is not quite the policy's. Beyond the paper."""
    target_decay: float = 0.01
    """Share of the old target critic that is kept [rho]."""
    max_grad_norm: float = 1.0
    """Longer gradients are scaled down to this norm."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before returns are made of them."""

    @property
    def history(self) -> int:
        return self.horizon  # auxiliaries leave their nominals when a segment begins

    def rules(self) -> dict[str, bool]:
        low, high = self.log_std_bounds or (0.0, 0.0)
        ranges = {
            "at least 1": "horizon branch_steps search_steps regression_steps critic_passes critic_batch actor_chunk "
            "encoder_features actor_widths critic_widths vector_widths",
            "at least 0": "stakes nominal_noise warmup output_gain temperature_lr actor_lr_min critic_branches "
            "guide_passes",
            "positive": "initial_std final_std temperature target_std mean_bound actor_lr critic_lr max_grad_norm "
            "reward_scale kl_target",
            "between 0 and 1": "lam guide_memory",
            "in (0, 1]": "gamma regression_fraction",
            "in [0, 1)": "target_decay final_gamma",
        }
        return rules(vars(self), ranges, "algo.") | {
            f"algo.log-std-bounds must be low high, not {low} {high}": low <= high,
            f"algo.stakes is for algo.denominator sigma: give 0 for {self.denominator}": self.denominator == "sigma"
            or not self.stakes,
            "algo.final-std is for algo.exploration fixed: a std that is learned goes where it will": self.exploration
            == "fixed"
            or self.final_std is None,
            "algo.final-gamma needs an algo.gamma below 1 to begin with": self.final_gamma is None or self.gamma < 1.0,
            "algo.search-steps must be at most 16": self.search_steps <= 16,  # streams of noise, `exploration_noise`
            "algo.search-steps beyond 1 knows no algo.nominal-noise: give 0": self.search_steps == 1
            or not self.nominal_noise,
            "algo.search-steps beyond 1 knows no algo.branch-steps: give None": self.search_steps == 1
            or self.branch_steps is None,
        }

    def guided_search(self) -> GuidedSearch:
        return GuidedSearch("random perturbations", self.search_steps, self.regression_steps)

    def memory(self, shapes: Shapes) -> Need:
        t, k, d, a = self.horizon, shapes.branches, shapes.state, shapes.action
        activations, parameters = 0, 0
        for image in shapes.images:
            cost = self._image_cost(image)
            activations += image.bytes + 4 * cost.kept  # drawn from the segment as bytes; as floats
            parameters += cost.parameters
        guide = [self._guide_widths(shapes)] if self.guide_passes else []
        for mlp in (*shapes.vector_mlps(self.vector_widths), *shapes.state_mlps, *shapes.state_mlps, *guide):
            parameters += multiply_adds(mlp)  # of the critic twice: its target
        networks = 4 * 4 * parameters  # weights, gradients, two moments
        passes = activations * min(self.actor_chunk, t * shapes.num_nominal)
        # A checkpoint's copy of the networks is made when the passes are over.
        fixed = {"networks": networks, "passes through the networks": max(passes, networks)}
        # Before and after the step, once in a list and once stacked; normalised and shuffled for the critic; noise,
        # flags.
        step = 4 * (6 * d + 3 * a) + 64
        return Need(fixed, {"segment": k * t * step, "images": t * sum(image.bytes for image in shapes.images)})

    def work(self, shapes: Shapes, ranks: int) -> dict[str, Work]:
        t, n, several = self.horizon, shapes.num_nominal, 1.0 if ranks > 1 else 0.0
        actor, critic = self._multiply_adds(shapes)
        # Of every drawn batch a rank has its share, in passes of at most `actor_chunk`.
        drawn = max(1, int(t * n * ranks * self.regression_fraction)) / ranks
        samples = t * n * (shapes.branches if self.critic_branches else 1)  # that the critic learns from
        steps = self.critic_passes * math.ceil(samples * ranks / self.critic_batch)
        passes = self.regression_steps * math.ceil(drawn / self.actor_chunk)
        guiding = self.guide_passes * math.ceil(t * n * ranks / self.critic_batch)
        guide = self.guide_passes * t * n * multiply_adds(self._guide_widths(shapes))
        return {
            "acting": Work(t, t * n * actor),
            "actor update": Work(
                passes + guiding,
                self.regression_steps * drawn * actor + guide,
                (self.regression_steps + guiding) * several,
            ),
            "critic update": Work(steps, self.critic_passes * samples * critic, steps * several),
        }

    def _multiply_adds(self, shapes: Shapes) -> tuple[int, int]:
        """Of one sample forwards through the actor and the critic; backwards takes twice as many."""
        vectors = shapes.vector_mlps(self.vector_widths)
        encoded = [self._image_cost(image).multiply_adds for image in shapes.images]
        encoded += map(multiply_adds, vectors)
        features = sum(image.features or self.encoder_features for image in shapes.images)
        features += sum(mlp[-1] for mlp in vectors)
        actor = sum(encoded) + multiply_adds((features, *self.actor_widths, shapes.action))
        critic = sum(map(multiply_adds, shapes.state_mlps))
        return actor, critic + multiply_adds((shapes.critic_inputs, *self.critic_widths, 1))

    def _guide_widths(self, shapes: Shapes) -> tuple[int, ...]:
        return (shapes.state, *self.actor_widths, shapes.action)

    def _image_cost(self, image: ImageShape) -> ImageCost:
        shape = (image.channels, image.height, image.width)
        return image_cost(shape, image.depth, self.encoder, image.features or self.encoder_features)

    def build(self, context: Context) -> Algorithm:
        from sdpg.algos.sdpg import Sdpg

        return Sdpg(self, context)
