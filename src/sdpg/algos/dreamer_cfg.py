"""Options of DreamerV3; the algorithm itself is in dreamer.py."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass
from typing import Literal

from sdpg.algos.api import AlgoCfg, Algorithm, Context, Need, Shapes
from sdpg.ranges import rules

# Its absence is told when the options are asked for. Not imported here: that alone takes seconds.
if importlib.util.find_spec("torchrl") is None:
    raise ModuleNotFoundError("No module named 'torchrl'", name="torchrl")

IMAGE = 64  # pixels a side, of every image that is learnt from
LATENTS = 32  # categorical variables of a latent state
BINS = 255  # of rewards and values
STAGES = (2, 3, 4, 4)  # channels of the encoder's convolutions, each of which halves the image; in units of `depth`
KERNEL, BLOCKS = 5, 8  # width of convolutions, groups of the recurrent core
_LIBRARY = 70 * 2**20  # that torchrl takes, which is imported after memory is planned; measured


@dataclass(frozen=True)
class Widths:
    """What a model size means."""

    belief: int  # numbers of the recurrent core
    classes: int  # of each categorical variable
    hidden: int  # width of all hidden layers
    depth: int  # channels of the image networks: see STAGES

    @property
    def state(self) -> int:
        return LATENTS * self.classes

    @property
    def features(self) -> int:
        """What heads see: the latent state and the belief."""
        return self.state + self.belief

    @property
    def core_input(self) -> int:
        """Numbers that go into the core: every block gets its part of the belief, and all of three projections."""
        return self.belief + BLOCKS * 3 * self.hidden


SIZES = {
    "1m": Widths(512, 4, 64, 4),
    "12m": Widths(2048, 16, 256, 16),
    "25m": Widths(3072, 24, 384, 24),
    "50m": Widths(4096, 32, 512, 32),
    "100m": Widths(6144, 48, 768, 48),
    "200m": Widths(8192, 64, 1024, 64),
}


@dataclass(frozen=True)
class DreamerCfg(AlgoCfg):
    """Defaults are those of the paper of 2025 for control from pixels. Steps are control steps of one world: N worlds
    make N of them at once."""

    name = "dreamer"
    exact_resume = False  # the buffer would be gigabytes in every checkpoint

    steps: int = 32
    """Control steps of every world in an iteration."""
    size: Literal["1m", "12m", "25m", "50m", "100m", "200m"] = "12m"
    """Parameters of all networks, in millions, about: the sizes that the paper names."""
    buffer: int = 1_000_000
    """Observations that are remembered, over all worlds."""
    seed_steps: int = 1024
    """Steps in the buffer before learning begins, after a resume too."""
    train_ratio: float = 256.0
    """Steps that are replayed for each step of a world."""
    batch: int = 16
    """Sequences of an update."""
    length: int = 64
    """Steps of a sequence."""
    imagination: int = 15
    """Steps that are imagined from each of a batch's steps."""
    discount_horizon: float = 333.0
    """The discount of a control step is 1 - 1 / discount_horizon."""
    lam: float = 0.95
    """Lambda of the returns."""
    entropy_weight: float = 3e-4
    """Weight of the policy's entropy; returns are scaled to a range of 1, if theirs is larger."""
    lr: float = 4e-5
    """Learning rate of all networks."""
    warmup: int = 1000
    """Updates over which the learning rate rises from 0."""
    agc: float = 0.3
    """A gradient longer than this share of its parameter's norm is scaled down to it."""
    free_nats: float = 1.0
    """Divergences of prior and posterior below this are not learnt from."""
    dynamics_weight: float = 1.0
    """Weight of the divergence that draws the prior to the posterior."""
    representation_weight: float = 0.1
    """Weight of the divergence that draws the posterior to the prior."""
    replay_value_weight: float = 0.3
    """Weight of the critic's loss on replayed steps."""
    target_rate: float = 0.02
    """Share of the critic that its slow copy takes over in an update."""

    def rules(self) -> dict[str, bool]:
        ranges = {
            "at least 1": "steps buffer batch imagination",
            "at least 0": "seed_steps warmup entropy_weight agc free_nats dynamics_weight representation_weight "
            "replay_value_weight",
            "positive": "train_ratio lr",
            "between 0 and 1": "lam",
            "in (0, 1]": "target_rate",
        }
        return rules(vars(self), ranges, "algo.") | {
            f"algo.length must be at least 2, not {self.length}": self.length >= 2,
            f"algo.discount-horizon must be above 1, not {self.discount_horizon}": self.discount_horizon > 1.0,
        }

    @property
    def widths(self) -> Widths:
        return SIZES[self.size]

    @property
    def updates_per_step(self) -> float:
        return self.train_ratio / (self.batch * self.length)

    def memory(self, shapes: Shapes) -> Need:
        channels = sum(image.frame_channels for image in shapes.images)
        frame, samples = channels * IMAGE**2, self.batch * self.length
        fixed = {
            "torchrl": _LIBRARY,
            "replay buffer": self.buffer * (frame + 4 * shapes.action + 7),  # and reward, three flags
            # Weights, gradients, two moments, as many again in passing when a step is taken or a checkpoint written.
            "networks": 4 * 8 * self._parameters(channels, shapes.action),
            "passes through the networks": samples * self._sample(frame),
        }
        return Need(fixed, fix="give a smaller --algo.buffer")

    def _parameters(self, channels: int, actions: int) -> int:
        w = self.widths
        maps = [channels, *(w.depth * stage for stage in STAGES)]
        convolutions = 2 * KERNEL**2 * sum(a * b for a, b in itertools.pairwise(maps))
        smallest = maps[-1] * (IMAGE // 2 ** len(STAGES)) ** 2
        projection = w.features * smallest // BLOCKS
        core = (w.state + w.belief + actions) * w.hidden + w.belief * (w.core_input + 3 * w.belief) // BLOCKS
        prior = w.hidden * (w.belief + w.hidden + w.state)
        posterior = w.hidden * (w.belief + smallest + w.state)
        heads = w.features * w.hidden * 5 + w.hidden**2 * 6 + w.hidden * (3 * BINS + 2 * actions)  # critic twice
        return convolutions + projection + core + prior + posterior + heads

    def _sample(self, frame: int) -> int:
        """Bytes that a replayed step takes while its gradient is made."""
        w = self.widths
        pixels = sum(w.depth * stage * (IMAGE // 2 ** (i + 1)) ** 2 for i, stage in enumerate(STAGES))
        # Outputs of encoder and decoder with what norms and activations keep of them; image, target, error.
        images = 4 * 2 * 4 * pixels + 4 * 5 * frame
        step = w.core_input + 10 * w.belief + 6 * w.state + 12 * w.hidden  # of the core, with its gates, and the prior
        # An imagined step keeps all that, too: torchrl's graph goes through it, though no gradient does. Then states as
        # heads see them, what heads put out, and bins of critic, its slow copy and reward.
        imagined = step + 4 * w.features + 12 * w.hidden + 10 * BINS
        return images + 4 * step + 4 * self.imagination * imagined

    def build(self, context: Context) -> Algorithm:
        from sdpg.algos.dreamer import Dreamer

        return Dreamer(self, context)
