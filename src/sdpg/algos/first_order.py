"""First-order policy gradients: the return of a segment is differentiated through physics.

SHAC (Xu et al., 2022) plays T steps in N worlds, ends their returns with a smooth target critic, and follows the
gradient back through time into the policy. SAPO (Xing, Luk and Oh, 2025) maximises entropy beside the return, with two
critics and without a target. D.Va (You et al., 2025) stops the gradient at what the policy sees, so that the policy may
see images. They are three settings of one algorithm. Engines have no gradients: Jacobians come from perturbed worlds
(sim/jacobian.py). docs/algorithms.md numbers what differs from the papers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdpg.algos.api import Carry, Context, Policy
from sdpg.algos.base import NetworkAlgorithm, clipped_step, linear_lr
from sdpg.algos.differentiable import DifferentiableWorlds
from sdpg.algos.first_order_cfg import ShacCfg
from sdpg.algos.returns import lambda_returns, valid_returns
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.declared import EncoderOptions, make_critic, make_normalizers, policy_encoders
from sdpg.nn.modules import Actor
from sdpg.rng import RowRng
from sdpg.types import Metrics


@dataclass(frozen=True)
class Segment:
    """T steps of N worlds; `reward`, `next_state`, `entropy`, `mean` and `log_std` have gradients."""

    sources: Mapping[str, Tensor]  # name -> (T, N, ...) what the policy saw
    state: Tensor  # (T, N, D) before the step
    mean: Tensor  # (T, N, A) of the Gaussian
    log_std: Tensor  # (T, N, A)
    nudge: Tensor  # (2, T, N, A) zeros that were added to both; decoupled, gradients end here
    entropy: Tensor  # (T, N) of the policy's actions, estimated by the action that was taken
    reward: Tensor  # (T, N) scaled
    next_state: Tensor  # (T, N, D) after the step and before the restart
    terminated: Tensor  # (T, N) bool: no value beyond
    done: Tensor  # (T, N) bool: restarted after the step, or the segment ended
    failed: Tensor  # (T, N) bool
    perturbed: int  # control steps of the worlds that Jacobians were measured with
    unknown: int  # steps without a Jacobian


def discounts(done: Tensor, gamma: float) -> Tensor:
    """What a reward counts in its stretch: gamma^(steps since the segment or the episode began), (T, N)."""
    weight = torch.ones_like(done, dtype=torch.float32)
    for t in range(1, len(done)):
        weight[t] = torch.where(done[t - 1], 1.0, gamma * weight[t - 1])
    return weight


def entropy_estimate(pre: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """- log pi of the action tanh(pre), pre = mean + std * noise: (..., A) -> (...). Its mean is the entropy of the
    actions, which no std can raise above log 2 a dimension, that of the uniform distribution."""
    gaussian = log_std + 0.5 * noise.square() + 0.5 * math.log(2.0 * math.pi)
    slope = 2.0 * (math.log(2.0) - pre - F.softplus(-2.0 * pre))  # log (1 - tanh(pre)^2)
    return (gaussian + slope).sum(-1)


class SquashedPolicy(Policy):
    """The mean of the Gaussian, squashed: without noise."""

    def __init__(self, actor: Actor):
        super().__init__()
        self.actor = actor

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return torch.tanh(self.actor(sources)[0]), carry


class FirstOrder(NetworkAlgorithm):
    """One iteration: a segment with its graph, a step along the gradient of its return, then the critics."""

    cfg: ShacCfg

    def __init__(self, cfg: ShacCfg, context: Context):
        env, seed = context.env, context.seed
        self.cfg, self.seed, self.device, self.sources, self._env = cfg, seed, env.device, context.sources, env
        obs = env.observe()
        seen = {name: obs.sources[name] for name in self.sources}
        self.images = tuple(name for name in self.sources if name in env.task.cameras)
        if self.images and not cfg.decoupled:
            raise SdpgError(
                f"{cfg.name} differentiates what the policy sees, and '{self.images[0]}' is an image: give "
                "--algorithm dva, or --obs state"
            )
        # Drawn on the CPU and moved: networks are the same on every device.
        generator = torch.Generator().manual_seed(seed)
        size = obs.state.shape[-1]
        self.normalizers = make_normalizers(env.task, seen, size)
        options = EncoderOptions((), cfg.encoder_features, cfg.encoder, cfg.image_origin, cfg.image_motion)
        encoders = policy_encoders(env.task, seen, self.normalizers, options, generator)
        self.actor = Actor(
            encoders, cfg.actor_widths, env.task.action_size, cfg.exploration, math.log(cfg.initial_std),
            cfg.output_gain, generator,
        ).to(self.device)  # fmt: skip
        made = [make_critic(env.task, size, cfg.critic_widths, generator) for _ in range(cfg.critics)]
        self.critics = nn.ModuleList(made)
        self.critics.to(self.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(cfg.temperature), device=self.device))
        adam = partial(torch.optim.AdamW, betas=cfg.betas, weight_decay=cfg.weight_decay, fused=True)
        self.actor_optimizer = adam(self.actor.parameters(), lr=cfg.actor_lr)
        self.critic_optimizer = adam(self.critics.parameters(), lr=cfg.critic_lr)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=cfg.temperature_lr, betas=cfg.betas)
        self.modules = {
            "actor": self.actor,
            "critics": self.critics,
            "target_critics": self.target_critics,
            "normalizers": nn.ModuleDict(self.normalizers).to(self.device),
            "temperature": nn.ParameterList([self.log_temperature]),
        }
        self.optimizers = {
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "temperature_optimizer": self.temperature_optimizer,
        }

    @cached_property
    def worlds(self) -> DifferentiableWorlds:
        """Made when it is first used: one who evaluates needs none."""
        return DifferentiableWorlds(self._env)

    def policy(self) -> Policy:
        return SquashedPolicy(self.actor)

    # -- collecting

    def collect(self, env: BranchedEnv) -> Segment:
        cfg, worlds, steps = self.cfg, self.worlds, []
        noise = RowRng(self.seed, env.rows, stream=(self.iteration << 8) + 11).normal(cfg.horizon, env.task.action_size)
        nudge = torch.zeros(2, cfg.horizon, env.num_nominal, env.task.action_size, device=self.device)
        nudge.requires_grad_(cfg.decoupled)
        worlds.begin()
        for t in range(cfg.horizon):
            seen = worlds.observe()
            state = seen["state"].detach()
            sources = self._look(env, seen)
            with torch.set_grad_enabled(not cfg.decoupled):
                mean, log_std = self._distribution(sources)
            mean, log_std = mean + nudge[0, t], log_std + nudge[1, t]
            pre = mean + log_std.exp() * noise[:, t]  # (N, A)
            entropy = entropy_estimate(pre, log_std, noise[:, t])
            step, reward, next_state = worlds.step(torch.tanh(pre))
            done = worlds.restart(step)
            kept = {name: source.detach() for name, source in sources.items()}
            flags = (step.terminated[:, 0], done, step.failed[:, 0])
            steps.append((kept, state, mean, log_std, entropy, cfg.reward_scale * reward, next_state, *flags))
        views, *parts = zip(*steps, strict=True)
        state, mean, log_std, entropy, reward, next_state, terminated, done, failed = map(torch.stack, parts)
        done[-1] = True
        sources = {name: torch.stack([view[name] for view in views]) for name in self.sources}
        counts = worlds.perturbed, worlds.unknown
        return Segment(
            sources, state, mean, log_std, nudge, entropy, reward, next_state, terminated, done, failed, *counts
        )

    def _look(self, env: BranchedEnv, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the policy sees now: of the task's sources with their gradients, and images."""
        images = env.observe().sources if self.images else {}
        return {name: images[name] if name in self.images else seen[name] for name in self.sources}

    def _distribution(self, sources: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(sources)
        return mean, log_std if self.cfg.log_std_bounds is None else log_std.clamp(*self.cfg.log_std_bounds)

    # -- learning

    def update(self, batch: Segment) -> Metrics:
        """Actor, temperature, critics and their targets; last the normalisers, constant until here."""
        # Its own generator per iteration: the state of all randomness is the iteration number.
        generator = torch.Generator().manual_seed((self.seed << 32) + self.iteration)
        good = valid_returns(batch.failed, batch.done)  # (T, N) what runs into a failure is not believed
        reward = batch.reward + self._bonus(batch.entropy) if self.cfg.entropy else batch.reward
        target = self._targets(batch, reward.detach())
        metrics = self._update_actor(batch, reward, good)
        metrics |= self._update_temperature(batch)
        metrics |= self._update_critics(batch.state, target, good, generator)
        sound = ~batch.failed
        for name, normalizer in self.normalizers.items():
            normalizer.update((batch.state if name == "state" else batch.sources[name])[sound])
        self.iteration += 1
        return metrics | {
            "Train/perturbed_steps": float(batch.perturbed),
            "Train/unknown_jacobians": float(batch.unknown),
        }

    @property
    def target_entropy(self) -> float:
        return -0.5 * self._env.task.action_size

    def _bonus(self, entropy: Tensor) -> Tensor:
        """alpha times the entropy as a share of its target: 0 at the target, (T, N)."""
        wanted = abs(self.target_entropy)
        share = (entropy + wanted) / (2.0 * wanted)
        return self.log_temperature.exp().detach() * share

    def _values(self, state: Tensor) -> Tensor:
        """Of the target critics: (..., D) -> (critics, ...)."""
        normal = self.normalizers["state"](state)
        return torch.stack([critic(normal) for critic in self.target_critics])

    @torch.no_grad()
    def _targets(self, batch: Segment, reward: Tensor) -> Tensor:
        """TD(lambda) returns (T, N), by the most careful critic."""
        ahead = torch.where(batch.terminated, 0.0, self._values(batch.next_state).amin(0))
        return lambda_returns(reward, ahead, batch.done, self.cfg.gamma, self.cfg.lam)

    def _loss(self, batch: Segment, reward: Tensor, good: Tensor) -> Tensor:
        """-1 / (T N) of the discounted rewards of every stretch, and the value of where it was cut."""
        weight = torch.where(good, discounts(batch.done, self.cfg.gamma), 0.0)  # (T, N)
        cut = batch.done & ~batch.terminated & good
        values = self._values(batch.next_state[cut]).mean(0)
        total = (weight * reward).sum() + self.cfg.gamma * (weight[cut] * values).sum()
        return -total / weight.numel()

    def _update_actor(self, batch: Segment, reward: Tensor, good: Tensor) -> Metrics:
        cfg, loss = self.cfg, self._loss(batch, reward, good)
        lr = linear_lr(self.iteration, cfg.schedule_iterations, cfg.actor_lr, cfg.last_lr, cfg.schedule_from)
        losses = iter([loss])
        if cfg.decoupled:
            losses = self._followed(batch, *torch.autograd.grad(loss, batch.nudge)[0])
        norm = clipped_step(self.actor_optimizer, losses, lr, cfg.max_grad_norm)
        return {
            "Loss/actor": loss.item(),
            "Loss/actor_grad_norm": norm,
            "Loss/actor_lr": lr,
            "Loss/actor_skipped": float(not math.isfinite(norm)),
            "Policy/mean_std": batch.log_std.detach().exp().mean().item(),
            "Policy/mean_abs": batch.mean.detach().abs().mean().item(),
        }

    def _followed(self, batch: Segment, d_mean: Tensor, d_log_std: Tensor) -> Iterator[Tensor]:
        """Losses whose gradients lead the policy where mean and log-std should go: (T, N, A) each, in chunks."""
        sources = {name: source.flatten(0, 1) for name, source in batch.sources.items()}
        d_mean, d_log_std = d_mean.flatten(0, 1), d_log_std.flatten(0, 1)
        sound = (~batch.failed).flatten().nonzero()[:, 0]  # what a world saw before it failed may not be finite
        for ids in sound.split(self.cfg.actor_chunk):
            mean, log_std = self._distribution({name: source[ids] for name, source in sources.items()})
            yield (d_mean[ids] * mean).sum() + (d_log_std[ids] * log_std).sum()

    def _update_temperature(self, batch: Segment) -> Metrics:
        norm = 0.0
        if self.cfg.entropy:
            excess = batch.entropy.detach()[~batch.failed].mean() - self.target_entropy
            loss = self.log_temperature.exp() * excess
            norm = clipped_step(self.temperature_optimizer, [loss], self.cfg.temperature_lr, math.inf)
        skipped = float(not math.isfinite(norm))
        return {"Policy/temperature": self.log_temperature.exp().item(), "Loss/temperature_skipped": skipped}

    def _update_critics(self, state: Tensor, target: Tensor, good: Tensor, generator: torch.Generator) -> Metrics:
        cfg = self.cfg
        lr = linear_lr(self.iteration, cfg.schedule_iterations, cfg.critic_lr, cfg.last_lr, cfg.schedule_from)
        state, target = self.normalizers["state"](state[good]), target[good]  # (B, D), (B,)
        losses, skipped = [], 0
        for _ in range(cfg.critic_passes if len(target) else 0):
            order = torch.randperm(len(target), generator=generator).to(self.device)
            for ids in order.chunk(cfg.critic_batches):
                errors = [(critic(state[ids]) - target[ids]).square().mean() for critic in self.critics]
                loss = torch.stack(errors).sum()
                norm = clipped_step(self.critic_optimizer, [loss], lr, cfg.max_grad_norm)
                skipped += not math.isfinite(norm)
                losses.append(loss.detach() / len(errors))
        for old, new in zip(self.target_critics.parameters(), self.critics.parameters(), strict=True):
            old.lerp_(new.detach(), 1.0 - cfg.target_decay)
        mean_loss = torch.stack(losses).mean().item() if losses else math.nan
        return {
            "Loss/critic": mean_loss,
            "Loss/critic_explained": 1.0 - mean_loss / max(target.var(correction=0).item(), 1e-12),
            "Loss/critic_lr": lr,
            "Loss/critic_skipped": float(skipped),
            "Train/mean_value": target.mean().item(),
        }

    def phases(self) -> dict[str, tuple[object, str]]:
        return {
            "acting": (self.actor, "forward"),
            "jacobians": (self.worlds.jacobian, "measure"),
            "actor update": (self, "_update_actor _update_temperature"),
            "critic update": (self, "_targets _update_critics"),
        }
