"""What a run is: one frozen dataclass, resolved from a preset and the command line, saved with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from sdpg.algos.api import AlgoCfg
from sdpg.env import MAX_VALUE
from sdpg.errors import SdpgError
from sdpg.ranges import require_in_range
from sdpg.tasks.base import TaskCfg


@dataclass(frozen=True)
class TrainCfg:
    task: str
    """A name that `sdpg tasks` lists, or module:Class."""
    algorithm: str = "sdpg"
    """What learns; its options are --algo.*."""
    obs: str = "state"
    """What the policy sees: one of the task's kinds of observations."""
    preset: Literal["cpu", "paper"] = "cpu"
    """cpu: what pays on few cores; paper: the paper's values."""
    iterations: int = 1000
    """Iterations until the run is finished; also the length of the learning-rate schedules."""
    minutes: float | None = None
    """Stop after this much wall-clock time, if earlier; the schedules are fitted to it once the pace is known."""
    seed: int = 0
    """Of networks, noise and starts."""
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
    """The newest so many are kept, and the best."""
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
    task_cfg: Annotated[TaskCfg, tyro.conf.arg(name="task")] = field(default_factory=TaskCfg, kw_only=True)
    algo: AlgoCfg = field(kw_only=True)

    def validate(self) -> None:
        """Refuse what can't work, in one line that names the option."""
        require_in_range(vars(self))
        require_in_range(vars(self.algo), "algo.")
        require_in_range(vars(self.task_cfg), "task.")
        fewest, most = self.algo.auxiliaries
        usable = self.num_auxiliary >= fewest and (most is None or self.num_auxiliary <= most)
        rules = {_auxiliaries(self.algorithm, fewest, most): usable} | self.task_cfg.rules() | self.algo.rules()
        for rule, holds in rules.items():
            if not holds:
                raise SdpgError(rule)


def _auxiliaries(algorithm: str, fewest: int, most: int | None) -> str:
    if most == 0:
        return f"{algorithm} uses no auxiliaries: give --num-auxiliary 0"
    return f"{algorithm} needs --num-auxiliary {fewest}" + (" or more" if most is None else f" to {most}")
