"""The one place that turns a checkpoint into a policy: for evaluation, films, the browser and teachers; and policies
that need none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sdpg.algos.api import Algorithm, Carry, Context, Policy
from sdpg.config import TrainCfg
from sdpg.distributed import ALONE, Group
from sdpg.env import BranchedEnv, part_of_rows
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.run import checkpoint
from sdpg.run.checkpoint import Checkpoint
from sdpg.run.resume import cfg_from_dict


class SimplePolicy(Policy):
    """Actions that depend on nothing: "zero", or "random" in [-1, 1]."""

    def __init__(self, kind: str, action_size: int, rng: RowRng):
        super().__init__()
        self.size, self.rng = action_size, rng
        self.scale = 0.0 if kind == "zero" else 1.0

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return self.scale * self.rng.uniform(-1.0, 1.0, self.size), carry


def build_algorithm(cfg: TrainCfg, env: BranchedEnv, group: Group = ALONE, teachers: bool = True) -> Algorithm:
    """The algorithm of `cfg` before its first iteration; without `teachers`, one that can't learn from any."""

    def find(run: str) -> Checkpoint:
        return checkpoint.load(checkpoint.find(Path(run)))

    def teacher(run: str) -> Policy:
        try:
            saved = find(run)
            sees = env.task.inputs[cfg_from_dict(saved.cfg, cfg.task).obs]
            if unseen := sorted(set(sees) - env.observe().sources.keys()):
                raise SdpgError(f"it sees '{unseen[0]}', which this run has not: give one that was trained from state")
            return load_policy(saved, env, cfg.task)
        except SdpgError as error:
            raise SdpgError(f"the teacher '{run}' can't be used: {error}") from error

    sources = env.task.inputs[cfg.obs]
    if not teachers:
        return cfg.algo.build(Context(env, sources, cfg.seed, group))
    return cfg.algo.build(Context(env, sources, cfg.seed, group, teacher, lambda run: find(run).seconds))


def load_policy(saved: Checkpoint, env: BranchedEnv, task: str | None = None) -> Policy:
    """The policy of a checkpoint, for an environment of its task. A `task` that is not registered must be given."""
    algo = build_algorithm(cfg_from_dict(saved.cfg, task), env, teachers=False)
    restore(saved, algo, None)
    return algo.policy()


def restore(saved: Checkpoint, algo: Algorithm, env: BranchedEnv | None, group: Group = ALONE) -> None:
    """Put a checkpoint's state into freshly built objects: the algorithm, and this rank's rows into `env` if given."""
    try:
        algo.load_state_dict(saved.state["algo"])
        if env is not None:
            env.load_state_dict(part_of_rows(saved.state["env"], group.rank, group.size))
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SdpgError(
            f"the checkpoint of iteration {saved.iteration} does not fit this version's task and networks ({reason}); "
            "use the versions that the run's config.json names"
        ) from error
