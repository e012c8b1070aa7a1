"""What a run is: one frozen dataclass, resolved from a preset and the command line, saved with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sdpg.algos.sdpg import SdpgCfg
from sdpg.env import MAX_VALUE
from sdpg.errors import SdpgError


@dataclass(frozen=True)
class TrainCfg:
    task: str
    """A name that `sdpg tasks` lists, or module:Class."""
    algorithm: Literal["sdpg"] = "sdpg"
    obs: Literal["state", "pixels"] = "state"
    """What the policy sees."""
    preset: Literal["cpu", "paper"] = "cpu"
    """cpu: what pays on few cores; paper: the paper's values."""
    iterations: int = 1000
    """Iterations until the run is finished; also the length of the learning-rate schedules."""
    minutes: float | None = None
    """Stop after this much wall-clock time, if earlier."""
    seed: int = 0
    threads: int = 0
    """CPU threads of each process; 0: all cores, shared among those of the machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where everything is computed; auto: on the GPU if torch and warp can use it."""
    sim: Literal["auto", "cpu", "warp"] = "auto"
    """Physics: mujoco.batch on CPU cores, or mujoco_warp on the device; auto: warp on a GPU, cpu without one."""
    deterministic: bool = False
    """The same numbers again on a GPU, too, bit for bit; slower there. Without a GPU they always are."""
    num_nominal: int = 64
    """Nominal worlds N, over all ranks: what the policy sees and what is rendered."""
    num_auxiliary: int = 63
    """Physics-only branches M of each nominal."""
    checkpoint_every: int = 50
    """Iterations between checkpoints; the last iteration is always saved."""
    keep_checkpoints: int = 3
    max_failed: float = 0.05
    """Share of world-steps that may fail (non-finite, exploded, refused by the engine) in an iteration before the run
    stops."""
    max_value: float = MAX_VALUE
    """A world with a larger number in its positions, velocities, observations or reward has exploded: it fails."""
    memory_gb: float | None = None
    """Memory that the run may take on a machine, in GB; not given: what is free."""
    track: Literal["none", "wandb", "trackio"] = "none"
    """Also log to this tracker; pip install 'sdpg[wandb]' or 'sdpg[trackio]'."""
    track_project: str = "sdpg"
    """Its project."""
    algo: SdpgCfg = field(default_factory=SdpgCfg)

    def validate(self) -> None:
        """Refuse what can't work, in one line that names the option."""
        algo = self.algo
        checks = {
            "num-nominal must be at least 1": self.num_nominal >= 1,
            "num-auxiliary must be at least 1": self.num_auxiliary >= 1,
            "iterations must be at least 1": self.iterations >= 1,
            "minutes must be positive": self.minutes is None or self.minutes > 0,
            "seed must be between 0 and 2**31 - 1": 0 <= self.seed < 2**31,
            "threads must be at least 0": self.threads >= 0,
            "checkpoint-every must be at least 1": self.checkpoint_every >= 1,
            "keep-checkpoints must be at least 1": self.keep_checkpoints >= 1,
            "memory-gb must be positive": self.memory_gb is None or self.memory_gb > 0,
            "max-failed must be between 0 and 1": 0 <= self.max_failed <= 1,
            "max-value must be positive": self.max_value > 0,
            "track-project must not be empty": bool(self.track_project.strip()),
            "algo.horizon must be at least 1": algo.horizon >= 1,
            "algo.gamma must be in (0, 1]": 0 < algo.gamma <= 1,
            "algo.lam must be in [0, 1]": 0 <= algo.lam <= 1,
            "algo.initial-std must be positive": algo.initial_std > 0,
            "algo.temperature must be positive": algo.temperature > 0,
            "algo.target-std must be positive": algo.target_std > 0,
            "algo.mean-bound must be positive": algo.mean_bound is None or algo.mean_bound > 0,
            "algo.log-std-bounds must be low high": algo.log_std_bounds is None
            or algo.log_std_bounds[0] <= algo.log_std_bounds[1],
            "algo.regression-steps must be at least 1": algo.regression_steps >= 1,
            "algo.regression-fraction must be in (0, 1]": 0 < algo.regression_fraction <= 1,
            "algo.critic-passes must be at least 1": algo.critic_passes >= 1,
            "algo.critic-batch must be at least 1": algo.critic_batch >= 1,
            "algo.actor-chunk must be at least 1": algo.actor_chunk >= 1,
            "algo.encoder-features must be at least 1": algo.encoder_features >= 1,
            "algo.actor-lr and algo.critic-lr must be positive": algo.actor_lr > 0 and algo.critic_lr > 0,
            "algo.target-decay must be in [0, 1)": 0 <= algo.target_decay < 1,
            "algo widths must be positive": all(
                w > 0 for w in algo.actor_widths + algo.critic_widths + algo.vector_widths
            ),
        }
        for rule, holds in checks.items():
            if not holds:
                raise SdpgError(rule)
