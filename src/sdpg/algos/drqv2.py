"""DrQ-v2 (Yarats, Fergus, Lazaric, Pinto: Mastering Visual Continuous Control, 2021): deterministic policy gradients
from a replay buffer of images, which are shifted at random before they are learnt from.

Q of what was seen and done is regressed onto n-step returns, bootstrapped with the smaller of two target critics; the
actor climbs the smaller of the two Qs. The critic's loss alone trains the encoder. docs/algorithms.md numbers what
differs from the official code.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sdpg.algos.api import Carry, Context, Policy
from sdpg.algos.base import NetworkAlgorithm, clipped_step
from sdpg.algos.drqv2_cfg import DrqV2Cfg
from sdpg.algos.replay_buffer import CUT, GOES_ON, TERMINATED, TRUNCATED, Batch, ReplayBuffer
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.drqv2 import DeterministicActor, ImageEncoder, TwinCritic
from sdpg.render.sensor import moved
from sdpg.rng import RowRng
from sdpg.types import Metrics, Step

EDGE = 1.0 - 1e-6  # actions stay within


def shifted(images: Tensor, offset: Tensor, most: int) -> Tensor:
    """Images (B, C, H, W) moved by offset (B, 2) - `most` pixels down and right, with offsets of 0 to 2 `most`; their
    edges are repeated.

    Whole pixels: what bilinear sampling of the padded image gives, without its rounding, and still as bytes. The result
    has its channels last in memory, as convolutions like it.
    """
    return moved(images, most - offset) if most else images


def explored(mean: Tensor, noise: Tensor, clip: float | None = None) -> Tensor:
    """mean + noise within (-1, 1), the noise within +- clip; the bounds let gradients through."""
    action = mean + (noise if clip is None else noise.clamp(-clip, clip))
    return action + (action.clamp(-EDGE, EDGE) - action).detach()


class DrqV2Policy(Policy):
    """The actor without noise."""

    def __init__(self, encoder: ImageEncoder, actor: DeterministicActor):
        super().__init__()
        self.encoder, self.actor = encoder, actor

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return self.actor(self.encoder(sources)), carry


class DrqV2(NetworkAlgorithm):
    """Collects a few steps of every world into the buffer, then makes as many updates as these steps are worth."""

    cfg: DrqV2Cfg

    def __init__(self, cfg: DrqV2Cfg, context: Context):
        env, seed = context.env, context.seed
        self.cfg, self.seed, self.device, self.sources = cfg, seed, env.device, context.sources
        seen = {name: view for name, view in env.observe().sources.items() if name in self.sources}
        for name, view in seen.items():
            if view.dtype != torch.uint8 or view.dim() != 4:
                raise SdpgError(f"drqv2 learns from colour images alone, and '{name}' is something else: --obs pixels")
        self._first_seen, self._task = seen, env.task
        self.made = 0  # steps of the run, over all worlds: what noise goes by
        # Drawn on the CPU and moved: networks are the same on every device.
        generator = torch.Generator().manual_seed(seed)
        self.encoder = ImageEncoder({name: view.shape[1:] for name, view in seen.items()}, cfg.encoder, generator)
        sizes = (self.encoder.size, cfg.features, cfg.hidden, env.task.action_size)
        self.actor = DeterministicActor(*sizes, generator).to(self.device)
        self.critic = TwinCritic(*sizes, generator).to(self.device)
        self.encoder.to(self.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr, fused=True)
        self.critic_optimizer = torch.optim.Adam(
            [*self.encoder.parameters(), *self.critic.parameters()], lr=cfg.lr, fused=True
        )
        self.modules = {
            "encoder": self.encoder,
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
        }
        self.optimizers = {"actor_optimizer": self.actor_optimizer, "critic_optimizer": self.critic_optimizer}

    @cached_property
    def buffer(self) -> ReplayBuffer:
        """Made when it is first used: one who evaluates needs none."""
        cfg, num = self.cfg, len(self._first_seen[self.sources[0]])
        stacks = {name: self._task.cameras[name].stack for name in self.sources}
        slots, least = cfg.buffer // num, cfg.n_step + max(stacks.values()) + 1
        if slots < least:
            raise SdpgError(f"algo.buffer {cfg.buffer} is too small for {num} worlds: give {least * num} or more")
        return ReplayBuffer(slots, stacks, self._first_seen, self._task.action_size)

    def policy(self) -> Policy:
        return DrqV2Policy(self.encoder, self.actor)

    def state_dict(self) -> dict[str, Any]:
        """Without the buffer: a resumed run fills it again before it learns."""
        return super().state_dict() | {"made": self.made}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.made = int(state["made"])

    # -- collecting

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> int:
        """Steps of every world, into the buffer; how many were made, over all worlds."""
        cfg, size = self.cfg, (self.cfg.steps, env.task.action_size)
        noise = RowRng(self.seed, env.rows, stream=(self.iteration << 8) + 7).normal(*size)  # (N, T, A)
        anything = RowRng(self.seed, env.rows, stream=(self.iteration << 8) + 8).uniform(-1.0, 1.0, *size)
        for t in range(cfg.steps):
            sources, age = env.observe().sources, env.clock.clone()
            if self.made < cfg.random_steps:
                action = anything[:, t]
            else:
                action = explored(self._act(sources), cfg.std(self.made) * noise[:, t])
            step = env.step(action[:, None])
            self._remember(env, sources, age, action, step)
            env.restart(step)
            self.made += env.num_nominal
        return cfg.steps * env.num_nominal

    def _act(self, sources: Mapping[str, Tensor]) -> Tensor:
        return self.actor(self.encoder(sources))

    def _remember(
        self, env: BranchedEnv, sources: Mapping[str, Tensor], age: Tensor, action: Tensor, step: Step
    ) -> None:
        """Before worlds are restarted: where the time is up, what is seen now is what the value beyond is of."""
        terminated, truncated, failed = step.terminated[:, 0], step.truncated[:, 0], step.failed[:, 0]
        any_truncated, any_failed = torch.stack((truncated.any(), failed.any())).tolist()
        look = any_truncated and not any_failed  # a world that failed can't be drawn
        end = torch.full_like(age, GOES_ON)
        end[terminated] = TERMINATED
        end[truncated] = TRUNCATED if look else CUT
        end[failed] = CUT
        self.buffer.add(sources, age, action, step.reward[:, 0], end)
        if look:
            rows, final = truncated.nonzero()[:, 0], env.observe().sources
            self.buffer.add_final(rows, {name: final[name][rows] for name in self.sources}, age[rows] + 1)

    # -- learning

    def update(self, batch: int) -> Metrics:
        """`batch`: the steps just made. Updates are counted by the steps of the whole run: none is lost to rounding."""
        cfg = self.cfg
        # Its own generator per iteration: the state of all randomness is the iteration number.
        generator = torch.Generator().manual_seed((self.seed << 32) + self.iteration)
        count = int(self.made * cfg.updates_per_step) - int((self.made - batch) * cfg.updates_per_step)
        starts = self.buffer.starts(cfg.n_step) if self.buffer.added >= cfg.seed_steps else torch.empty(0)
        made = [self._update_once(self._draw(starts, generator), generator) for _ in range(count if len(starts) else 0)]
        # One wait for the device for all of them.
        loss = torch.stack([each[0] for each in made]).mean(0).tolist() if made else [math.nan] * 3
        self.iteration += 1
        return {
            "Loss/actor": loss[0],
            "Loss/actor_skipped": float(sum(each[1] for each in made)),
            "Loss/critic": loss[1],
            "Loss/critic_skipped": float(sum(each[2] for each in made)),
            "Train/mean_value": loss[2],
            "Train/updates": float(len(made)),
            "Policy/mean_std": cfg.std(self.made),
        }

    def _draw(self, starts: Tensor, generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(starts), (self.cfg.batch,), generator=generator)
        return self.buffer.batch(starts[chosen.to(self.device)], self.cfg.n_step, self.cfg.gamma)

    def _update_once(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, bool, bool]:
        """Critic with encoder, actor, target: (losses of actor and critic and the mean target, (3,)), and whether the
        actor's and the critic's step were left out because their gradient was not finite."""
        cfg, std = self.cfg, self.cfg.std(self.made)
        images, next_images = (self._augmented(each, generator) for each in (batch.sources, batch.next_sources))
        noise, next_noise = (std * self._normal(batch.action.shape, generator) for _ in range(2))
        encoded = self.encoder(images)
        with torch.no_grad():
            ahead = self.encoder(next_images)
            action = explored(self.actor(ahead), next_noise, cfg.noise_clip)
            target = batch.reward + batch.discount * self.target_critic(ahead, action).amin(1)  # (B,)
        critic_loss, critic_skipped = self._update_critic(encoded, batch.action, target)
        actor_loss, actor_skipped = self._update_actor(encoded.detach(), noise)
        for old, new in zip(self.target_critic.parameters(), self.critic.parameters(), strict=True):
            old.lerp_(new.detach(), cfg.target_rate)
        return torch.stack((actor_loss, critic_loss, target.mean())), actor_skipped, critic_skipped

    def _update_critic(self, encoded: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, bool]:
        loss = (self.critic(encoded, action) - target[:, None]).square().sum(1).mean()
        norm = clipped_step(self.critic_optimizer, [loss], self.cfg.lr, math.inf)
        return loss.detach(), not math.isfinite(norm)

    def _update_actor(self, encoded: Tensor, noise: Tensor) -> tuple[Tensor, bool]:
        action = explored(self.actor(encoded), noise, self.cfg.noise_clip)
        loss = -self.critic(encoded, action).amin(1).mean()
        norm = clipped_step(self.actor_optimizer, [loss], self.cfg.lr, math.inf)
        return loss.detach(), not math.isfinite(norm)

    def _augmented(self, sources: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """A shift for every sample and source; the frames of a stack move together."""
        most, augmented = self.cfg.shift, {}
        for name, images in sources.items():
            offset = torch.randint(2 * most + 1, (len(images), 2), generator=generator)
            augmented[name] = shifted(images, offset.to(self.device), most)
        return augmented

    def _normal(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=generator).to(self.device)

    def phases(self) -> dict[str, tuple[object, str]]:
        return {
            "acting": (self, "_act"),
            "sampling": (self.buffer, "starts batch"),
            "augmentation": (sys.modules[__name__], "shifted"),
            "update": (self, "_update_once"),
        }
