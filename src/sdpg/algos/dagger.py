"""DAgger as Mu et al. use it (When Should We Prefer State-to-Visual DAgger Over Visual Reinforcement Learning?, AAAI
2025): a student that sees little imitates a teacher that sees the state.

The student alone acts, without noise. The teacher says what it would have done in every state that the student comes
to; the student is regressed onto all of that, as far as a first-in, first-out buffer holds it. docs/algorithms.md
numbers what differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from sdpg.algos.api import Carry, Context, Policy, begin_where
from sdpg.algos.base import NetworkAlgorithm, clipped_step, linear_lr
from sdpg.algos.dagger_cfg import DaggerCfg
from sdpg.algos.networks import make_actor
from sdpg.algos.sdpg import MeanPolicy
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.types import Metrics


class LabelBuffer:
    """What was seen and what the teacher would have done: first in, first out. Sources keep their types."""

    def __init__(self, size: int, examples: Mapping[str, Tensor], action_size: int):
        self.size, self.added = size, 0
        self.sources = {name: x.new_empty(size, *x.shape[1:]) for name, x in examples.items()}
        self.labels = next(iter(examples.values())).new_empty(size, action_size, dtype=torch.float32)

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, sources: Mapping[str, Tensor], labels: Tensor) -> None:
        """name -> (n, ...), (n, A); of more than there is room for, the last."""
        places = torch.arange(self.added, self.added + len(labels), device=labels.device)[-self.size :] % self.size
        for name, room in self.sources.items():
            room[places] = sources[name][-self.size :]
        self.labels[places] = labels[-self.size :]
        self.added += len(labels)


class Dagger(NetworkAlgorithm):
    """Collects a few steps of every world into the buffer, then imitates until the error is small enough."""

    cfg: DaggerCfg

    def __init__(self, cfg: DaggerCfg, context: Context):
        env, seed = context.env, context.seed
        self.cfg, self.seed, self.device, self.sources = cfg, seed, env.device, context.sources
        # Drawn on the CPU and moved: networks are the same on every device.
        generator = torch.Generator().manual_seed(seed)
        actor, normalizers = make_actor(cfg, context, "fixed", 1.0, generator)
        self.actor = actor.to(self.device)
        self.normalizers = {name: x.to(self.device) for name, x in normalizers.items() if name in self.sources}
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr, betas=cfg.betas, fused=True)
        self.modules = {"actor": self.actor}
        self.optimizers = {"optimizer": self.optimizer}
        obs = env.observe()
        self._first_seen = {name: obs.sources[name] for name in self.sources}
        self._action_size = env.task.action_size
        self.teacher: Policy | None = None
        if context.load_policy is not None and context.seconds_of is not None and cfg.teacher is not None:
            self.teacher = context.load_policy(cfg.teacher).requires_grad_(False)
            self.teacher_seconds = context.seconds_of(cfg.teacher)
            self._carry: Carry = self.teacher.carry(env.num_nominal)

    @cached_property
    def buffer(self) -> LabelBuffer:
        """Made when it is first used: one who evaluates needs none."""
        return LabelBuffer(self.cfg.buffer, self._first_seen, self._action_size)

    @property
    def warm(self) -> bool:  # type: ignore[override]
        return len(self.buffer) >= max(1, self.cfg.seed_steps)

    def policy(self) -> Policy:
        return MeanPolicy(self.actor, None)

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> int:
        """The student acts, the teacher labels; how many steps were made, over all worlds."""
        if self.teacher is None:
            raise SdpgError("dagger imitates a teacher, and was built without one: its context needs load_policy")
        student = self.policy()
        for _ in range(self.cfg.steps):
            seen = env.observe().sources
            action, _ = student(seen, {})
            label, self._carry = self.teacher(seen, self._carry)
            step = env.step(action[:, None])
            sound = ~step.failed[:, 0]  # a step may fail because of what it began with
            self.buffer.add({name: seen[name][sound] for name in self.sources}, label[sound])
            for name, normalizer in self.normalizers.items():
                normalizer.update(seen[name][sound])
            done = env.restart(step)
            self._carry = begin_where(self.teacher, self._carry, done[:, 0])
        return self.cfg.steps * env.num_nominal

    def update(self, batch: int) -> Metrics:
        """Regression onto the teacher's actions until the error, a mean over some batches, is below the threshold."""
        cfg, buffer = self.cfg, self.buffer
        # Its own generator per iteration: the state of all randomness is the iteration number.
        generator = torch.Generator().manual_seed((self.seed << 32) + self.iteration)
        lr = linear_lr(self.iteration, cfg.schedule_iterations, cfg.lr, cfg.last_lr, cfg.schedule_from)
        losses: list[float] = []
        norms: list[float] = []
        while self.warm and len(losses) < cfg.max_updates:
            ids = torch.randint(len(buffer), (cfg.batch,), generator=generator).to(self.device)
            mean, _ = self.actor({name: values[ids] for name, values in buffer.sources.items()})
            loss = F.mse_loss(torch.tanh(mean), buffer.labels[ids])
            norms.append(clipped_step(self.optimizer, [loss], lr, cfg.max_grad_norm))
            losses.append(loss.item())
            last = losses[-max(1, cfg.min_updates) :]
            if len(losses) >= cfg.min_updates and sum(last) / len(last) < cfg.threshold:
                break
        self.iteration += 1
        return {
            "Loss/actor": sum(losses) / len(losses) if losses else math.nan,
            "Loss/actor_grad_norm": sum(norms) / len(norms) if norms else math.nan,
            "Loss/actor_lr": lr,
            "Loss/actor_skipped": float(sum(not math.isfinite(norm) for norm in norms)),
            "Train/updates": float(len(losses)),
            "Train/teacher_seconds": self.teacher_seconds,
        }

    def phases(self) -> dict[str, tuple[object, str]]:
        return {"acting": (self.actor, "forward"), "teaching": (self.teacher, "forward"), "update": (self, "update")}
