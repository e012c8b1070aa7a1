"""Options of DAgger; the algorithm itself is in dagger.py."""

from __future__ import annotations

from dataclasses import dataclass

from sdpg.algos.api import Algorithm, Context, Need, Shapes
from sdpg.algos.networks import NetworkCfg
from sdpg.ranges import rules


@dataclass(frozen=True)
class DaggerCfg(NetworkCfg):
    """Defaults are those of SDPG's authors for the hopper, with more than one update to a round."""

    name = "dagger"
    exact_resume = False  # the buffer would be gigabytes in every checkpoint

    teacher: str | None = None
    """The run folder of the policy that is imitated: of the same task, and trained from state."""
    steps: int = 32
    """Control steps of every world in an iteration."""
    buffer: int = 100_000
    """Observations that are remembered, over all worlds; the oldest make room."""
    seed_steps: int = 32_000
    """Observations in the buffer before learning begins, after a resume too."""
    max_updates: int = 2000
    """The most updates in an iteration."""
    min_updates: int = 32
    """The fewest, however well the student does."""
    threshold: float = 0.1
    """Mean squared error of the last min_updates batches below which an iteration makes no more updates."""
    batch: int = 128
    """Samples of an update."""
    lr: float = 2e-3
    """Learning rate; it falls linearly over the run."""
    last_lr: float = 1e-5
    """Where it ends."""
    betas: tuple[float, float] = (0.7, 0.95)
    """Of Adam."""
    max_grad_norm: float = 1.0
    """Longer gradients are scaled down to this norm."""

    def rules(self) -> dict[str, bool]:
        ranges = {
            "at least 1": "steps buffer max_updates batch encoder_features actor_widths vector_widths",
            "at least 0": "seed_steps min_updates threshold last_lr output_gain",
            "positive": "lr max_grad_norm",
            "in [0, 1)": "betas",
        }
        return rules(vars(self), ranges, "algo.") | {
            "dagger imitates a teacher: give --algo.teacher RUN, a run of the task that was trained from state": (
                self.teacher is not None
            ),
            f"algo.seed-steps {self.seed_steps} is more than algo.buffer {self.buffer} holds": (
                self.seed_steps <= self.buffer
            ),
            f"algo.min-updates {self.min_updates} is more than algo.max-updates {self.max_updates}": (
                self.min_updates <= self.max_updates
            ),
        }

    def memory(self, shapes: Shapes) -> Need:
        parameters, sample = self.image_memory(shapes)
        seen = sum(image.bytes for image in shapes.images) + 4 * (shapes.state * (not shapes.images))
        slot = seen + 4 * (sum(shapes.vectors) + shapes.action)
        fixed = {
            "buffer": self.buffer * slot,
            # Weights, gradients, two moments; as many again in passing when a checkpoint is written.
            "networks": 4 * 8 * parameters,
            "passes through the networks": self.batch * sample,
        }
        return Need(fixed, fix="give a smaller --algo.buffer")

    def build(self, context: Context) -> Algorithm:
        from sdpg.algos.dagger import Dagger

        return Dagger(self, context)
