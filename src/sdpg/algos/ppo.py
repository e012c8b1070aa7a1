"""Proximal Policy Optimization (Schulman et al., 2017), with the losses and the update loop of rsl-rl.

The worlds are ours, with one branch each, and so are the networks: the policy sees its sources, the critic the
privileged state. A segment of every world goes into rsl-rl's storage; returns are GAE's, with the value of the final
state where the time was up; then rsl-rl takes its steps. docs/algorithms.md numbers what differs from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor, nn

from sdpg.algos.api import Carry, Context, Policy
from sdpg.algos.base import NetworkAlgorithm, linear_lr
from sdpg.algos.networks import make_actor
from sdpg.algos.ppo_cfg import PpoCfg
from sdpg.algos.returns import lambda_returns, valid_returns
from sdpg.algos.sdpg import divergence
from sdpg.env import BranchedEnv
from sdpg.nn.declared import make_critic
from sdpg.nn.modules import Actor, Critic, Normalizer
from sdpg.rng import RowRng
from sdpg.types import Metrics


def bounded(drawn: Tensor, how: str) -> Tensor:
    """What the Gaussian drew, or its mean, as an action in [-1, 1]."""
    return torch.tanh(drawn) if how == "tanh" else drawn.clamp(-1.0, 1.0)


class BoundedMean(Policy):
    """The mean of the Gaussian as an action: without noise."""

    def __init__(self, actor: Actor, how: str):
        super().__init__()
        self.actor, self.how = actor, how

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return bounded(self.actor(sources)[0], self.how), carry


class _Model(nn.Module):
    """What rsl-rl asks of any network. Ours are not recurrent, and normalise by what we tell them."""

    is_recurrent = False

    def update_normalization(self, seen: TensorDict) -> None:
        pass


class GaussianModel(_Model):
    """Our policy as rsl-rl sees one. It is asked about what `forward` was last given."""

    def __init__(self, actor: Actor, log_std_bounds: tuple[float, float]):
        super().__init__()
        self.actor, self.log_std_bounds = actor, log_std_bounds
        self.kl = 0.0  # the last divergence that it was asked for

    def gaussian(self, sources: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and log-std within its bounds: (B, A) each."""
        mean, log_std = self.actor(sources)
        return mean, log_std.clamp(*self.log_std_bounds)

    def forward(self, seen: TensorDict, **unused: object) -> None:
        """Nothing is drawn here: updates go back to what was drawn in acting."""
        self.output_distribution_params = self.gaussian(seen)

    def get_output_log_prob(self, drawn: Tensor) -> Tensor:
        """(B, A) -> (B,)"""
        return log_prob(drawn, *self.output_distribution_params)

    @property
    def output_entropy(self) -> Tensor:
        return (self.output_distribution_params[1] + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)

    def get_kl_divergence(self, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
        """(B,)"""
        kl = divergence(*old, *new)
        self.kl = kl.mean().item()
        return kl


class ValueModel(_Model):
    """Our critic as rsl-rl sees one: of the state, whatever the policy sees."""

    def __init__(self, critic: Critic, normalizer: Normalizer):
        super().__init__()
        self.critic = critic
        self.normalize = normalizer.forward  # a module of the algorithm, and no part of this one

    def forward(self, seen: Mapping[str, Tensor], **unused: object) -> Tensor:
        """(B, 1)"""
        return self.critic(self.normalize(seen["state"]))[:, None]


def log_prob(drawn: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Of a diagonal Gaussian: (B, A) each -> (B,)."""
    normal = (drawn - mean) * (-log_std).exp()
    return -(0.5 * normal.square() + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)


class Storage(RolloutStorage):
    """rsl-rl's storage: it yields what can be used, drawn anew in each pass by a generator that is given."""

    usable: Tensor  # (T N,) bool
    random: torch.Generator

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[RolloutStorage.Batch]:
        flat = {
            "observations": self.observations.flatten(0, 1),
            "actions": self.actions.flatten(0, 1),
            "values": self.values.flatten(0, 1),
            "advantages": self.advantages.flatten(0, 1),
            "returns": self.returns.flatten(0, 1),
            "old_actions_log_prob": self.actions_log_prob.flatten(0, 1),
        }
        parameters = [p.flatten(0, 1) for p in self.distribution_params]
        every = self.usable.nonzero()[:, 0]
        for _ in range(num_epochs):
            order = torch.randperm(len(every), generator=self.random).to(every.device)
            for ids in every[order].tensor_split(num_mini_batches):
                if len(ids) > 1:  # one alone would lose its axis in there
                    part = {name: values[ids] for name, values in flat.items()}
                    yield RolloutStorage.Batch(**part, old_distribution_params=tuple(p[ids] for p in parameters))


class GuardedAdam(torch.optim.Adam):
    """Makes no step with a gradient that is not finite, and counts those."""

    skipped = 0

    def step(self, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if math.isfinite(nn.utils.get_total_norm(gradients).item()):
            return super().step(closure)
        self.skipped += 1
        return None


@dataclass(frozen=True)
class Ends:
    """What a segment has beside what is in rsl-rl's storage: (T, N) each."""

    next_state: Tensor  # (T, N, D) after the step and before the restart
    terminated: Tensor
    done: Tensor  # restarted after the step, or the segment ended
    failed: Tensor


class Ppo(NetworkAlgorithm):
    """Collects a segment of every world, makes returns of it, and has rsl-rl take its steps."""

    cfg: PpoCfg

    def __init__(self, cfg: PpoCfg, context: Context):
        env, seed = context.env, context.seed
        self.cfg, self.seed, self.device, self.sources = cfg, seed, env.device, context.sources
        # Drawn on the CPU and moved: networks are the same on every device.
        generator = torch.Generator().manual_seed(seed)
        actor, self.normalizers = make_actor(cfg, context, cfg.exploration, cfg.initial_std, generator)
        critic = make_critic(env.task, env.task.state_size, cfg.critic_widths, generator)
        self.value_scale = Normalizer(1).to(self.device)
        self.actor = GaussianModel(actor, cfg.log_std_bounds).to(self.device)
        normalizers = nn.ModuleDict(self.normalizers).to(self.device)
        self.critic = ValueModel(critic, self.normalizers["state"]).to(self.device)
        self.learner = PPO(
            self.actor,
            self.critic,
            storage=None,
            num_learning_epochs=cfg.epochs,
            num_mini_batches=cfg.minibatches,
            clip_param=cfg.clip,
            gamma=cfg.gamma,
            lam=cfg.lam,
            value_loss_coef=cfg.value_weight,
            entropy_coef=cfg.entropy_weight,
            learning_rate=cfg.lr,
            max_grad_norm=cfg.max_grad_norm,
            use_clipped_value_loss=cfg.value_clip,
            schedule=cfg.schedule,
            desired_kl=cfg.desired_kl,
            device=str(self.device),
        )
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.learner.optimizer = self.optimizer = GuardedAdam(parameters, lr=cfg.lr, fused=True)
        self.modules = {
            "actor": actor,
            "critic": critic,
            "normalizers": normalizers,
            "value_scale": self.value_scale,
        }
        self.optimizers = {"optimizer": self.optimizer}

    def policy(self) -> Policy:
        return BoundedMean(self.actor.actor, self.cfg.bounds)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"lr": self.learner.learning_rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._set_lr(float(state["lr"]))

    def _set_lr(self, lr: float) -> None:
        self.learner.learning_rate = self.optimizer.param_groups[0]["lr"] = lr

    # -- collecting

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> Ends:
        """A segment of every world, into the storage."""
        cfg, size = self.cfg, (self.cfg.horizon, env.task.action_size)
        noise = RowRng(self.seed, env.rows, stream=(self.iteration << 8) + 9).normal(*size)  # (N, T, A)
        ends: list[tuple[Tensor, ...]] = []
        for t in range(cfg.horizon):
            obs = env.observe()
            mean, log_std = self.actor.gaussian(obs.sources)
            drawn = torch.addcmul(mean, log_std.exp(), noise[:, t])
            step = env.step(bounded(drawn, cfg.bounds)[:, None])
            done = env.restart(step)
            seen = {"state": obs.state[:, 0]} | {name: obs.sources[name] for name in self.sources}
            self._remember(seen, drawn, mean, log_std, step.reward[:, 0] * cfg.reward_scale)
            ends.append((step.state[:, 0], step.terminated[:, 0], done[:, 0], step.failed[:, 0]))
        next_state, terminated, done, failed = map(torch.stack, zip(*ends, strict=True))
        done[-1] = True
        return Ends(next_state, terminated, done, failed)

    def _remember(
        self, seen: Mapping[str, Tensor], drawn: Tensor, mean: Tensor, log_std: Tensor, reward: Tensor
    ) -> None:
        num = len(drawn)
        observations = TensorDict(dict(seen), batch_size=[num])
        if self.learner.storage is None:  # made when it is first used: one who evaluates needs none
            shape = (self.cfg.horizon, observations, drawn.shape[1:], str(self.device))
            self.learner.storage = Storage("rl", num, *shape)
        transition = RolloutStorage.Transition()
        transition.observations, transition.actions, transition.rewards = observations, drawn, reward
        transition.dones = torch.zeros_like(reward)  # unused: returns are ours
        transition.values = self._denormalized(self.critic(seen))
        transition.actions_log_prob = log_prob(drawn, mean, log_std)
        transition.distribution_params = (mean, log_std)
        self.learner.storage.add_transition(transition)

    def _denormalized(self, value: Tensor) -> Tensor:
        """The critic's output (B, 1) as a value in units of the scaled reward."""
        if not self.cfg.normalize_values:
            return value
        scale = (self.value_scale.var + self.value_scale.eps).sqrt()
        return torch.addcmul(self.value_scale.mean.float(), value, scale.float())

    # -- learning

    def update(self, batch: Ends) -> Metrics:
        """Returns and advantages, then rsl-rl's steps; last the normalisers, constant until here."""
        cfg, storage = self.cfg, self.learner.storage
        if cfg.schedule == "linear":
            self._set_lr(linear_lr(self.iteration, cfg.schedule_iterations, cfg.lr, 0.1 * cfg.lr, cfg.schedule_from))
        usable = valid_returns(batch.failed, batch.done)  # (T, N)
        told = self._make_returns(batch, usable)
        storage.usable = usable.flatten()
        # Its own generator per iteration: the state of all randomness is the iteration number.
        storage.random = torch.Generator().manual_seed((self.seed << 32) + self.iteration)
        std, size = storage.distribution_params[1].exp().mean().item(), storage.distribution_params[0].abs().mean()
        self.optimizer.skipped = 0
        losses = self.learner.update()
        # A step may fail because of what it began with: such a state would stay in the statistics for ever.
        sound = ~batch.failed
        for name, normalizer in self.normalizers.items():
            normalizer.update(storage.observations[name][sound])
        self.iteration += 1
        return told | {
            "Loss/actor": losses["surrogate"],
            "Loss/actor_lr": self.learner.learning_rate,
            "Loss/actor_skipped": float(self.optimizer.skipped),
            "Loss/critic": losses["value"],
            "Policy/entropy": losses["entropy"],
            "Policy/kl": self.actor.kl,
            "Policy/mean_abs": size.item(),
            "Policy/mean_std": std,
        }

    @torch.no_grad()
    def _make_returns(self, batch: Ends, usable: Tensor) -> Metrics:
        """GAE, by the value of the final state where the time was up, and by none where the episode terminated.

        The storage's values and returns are normalised, its advantages have mean 0 and std 1 over what is `usable`."""
        cfg, storage = self.cfg, self.learner.storage
        value, reward = storage.values[..., 0], storage.rewards[..., 0]  # (T, N)
        next_value = torch.zeros_like(value)
        next_value[:-1] = value[1:]
        next_value[batch.done] = self._denormalized(self.critic({"state": batch.next_state[batch.done]}))[:, 0]
        next_value[batch.terminated] = 0.0
        returns = lambda_returns(reward, next_value, batch.done, cfg.gamma, cfg.lam)
        advantage = returns - value
        believed, error = returns[usable], advantage[usable]
        explained = 1.0 - error.var(correction=0) / believed.var(correction=0).clamp(min=1e-12)
        storage.advantages = ((advantage - error.mean()) / (error.std() + 1e-8))[..., None]
        storage.returns = returns[..., None]
        if cfg.normalize_values:
            self.value_scale.update(believed[:, None])
            storage.returns, storage.values = map(self.value_scale, (storage.returns, storage.values))
        return {"Loss/critic_explained": explained.item(), "Train/mean_value": believed.mean().item()}

    def phases(self) -> dict[str, tuple[object, str]]:
        return {"acting": (self.actor, "gaussian"), "update": (self.learner, "update")}
