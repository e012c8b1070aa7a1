"""Stochastic Decoupled Policy Gradient (You, Liu et al., 2026): Algorithm 1 and its options.

Each of N nominal worlds follows the policy's mean; its M branches follow the same actions plus noise. The difference of
their returns, times the noise, points where the action should have gone (`ascent_direction`, equations 1 and 10); the
policy is regressed onto it (equation 3). The policy never sees an auxiliary, so only N worlds are rendered.

docs/algorithm.md puts every equation beside the function that computes it and numbers the deviations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdpg.algos.base import Algorithm, clipped_step, cosine_lr, linear_lr
from sdpg.algos.returns import lambda_returns, segment_returns, unspoiled
from sdpg.distributed import ALONE, Group
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.encoders import Convolutions, Origin, make_encoders, use_bfloat16
from sdpg.nn.modules import Actor, Critic, Exploration, Normalizer, moments
from sdpg.rng import RowRng
from sdpg.types import Metrics, Obs, Rollout


@dataclass(frozen=True)
class SdpgCfg:
    """The paper's symbols are in brackets."""

    horizon: int = 32
    """Steps of a segment [H]."""
    gamma: float = 0.99
    """Discount."""
    lam: float = 0.95
    """TD(lambda) coefficient of the critic's target and, with the eligibility trace, of the actor's return."""
    causal: bool = True
    """Return-to-go for the actor; off: one return per stretch between restarts, against the nominal's from there on."""
    eligibility_trace: bool = True
    """TD(lambda) in the actor's return; off: bootstrap at the end of the segment only."""
    denominator: Literal["sigma", "delta", "none"] = "sigma"
    """What a return difference is divided by: its std per (nominal, time), the exploration std (REINFORCE), nothing."""
    antithetic: bool = False
    """Draw the auxiliaries' noise in pairs of opposite sign. Beyond the paper."""

    exploration: Exploration = "shared"
    """Log-std [delta tilde]: one learned vector, a function of the observation ("state"), or "fixed"."""
    initial_std: float = 1.0
    """Exploration std at the start; its value for good when fixed."""
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

    encoder: Convolutions = "drqv2"
    """Convolutions for pictures: the paper's, or cheaper ones."""
    picture_origin: Origin = "grey"
    """What is subtracted from a picture: grey, as in the paper, or the run's first picture. Beyond the paper."""
    picture_motion: bool = False
    """Show the convolutions the newest frame and the changes between frames, in place of a stack. Beyond the paper."""
    encoder_features: int = 128
    """Features that a picture is encoded into."""
    vector_widths: tuple[int, ...] = ()
    """Widths of an MLP encoder for vector sources; none: they are passed through."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the policy; auto: bfloat16 for pictures where the machine has it in hardware."""
    actor_chunk: int = 2048
    """Samples of one forward and backward pass; gradients of several are added up, so that memory stays small."""
    actor_widths: tuple[int, ...] = (128, 64, 32)
    critic_widths: tuple[int, ...] = (64, 64)
    output_gain: float = math.sqrt(2)
    """Gain of the orthogonal initialisation of the policy's mean."""
    actor_lr: float = 2e-3
    actor_schedule: Literal["cosine", "constant"] = "cosine"
    """Cosine from actor_lr to actor_lr_min after a linear warm-up."""
    actor_lr_min: float = 1e-5
    warmup: int = 100
    """Iterations of linear warm-up of the actor's learning rate."""
    regression_steps: int = 1
    """Steps of regression onto the targets of one batch. More than one is beyond the paper."""
    regression_fraction: float = 1.0
    """Share of the batch that each of these steps draws at random."""
    critic_lr: float = 2e-4
    critic_schedule: Literal["linear", "constant"] = "linear"
    """Linear: to a tenth over the run."""
    critic_passes: int = 2
    """Passes over the batch [K_c]."""
    critic_batch: int = 4096
    """Samples of a critic step [B]."""
    target_decay: float = 0.01
    """Share of the old target critic that is kept [rho]."""
    max_grad_norm: float = 1.0
    reward_scale: float = 1.0
    schedule_iterations: int = 0
    """Length of the learning-rate schedules; 0: the iterations of the run, or as many as --minutes will give."""
    schedule_from: int = 0
    """Iteration at which that length became known, if not at the start; recorded by runs with --minutes."""


# --- the paper, as pure functions -------------------------------------------------------------------------------------


def exploration_noise(seed: int, iteration: int, rows: Tensor, cfg: SdpgCfg, m: int, a: int) -> Tensor:
    """Standard normal noise (T, N, 1 + M, A), 0 for the nominal; a function of (seed, iteration, row) alone."""
    n = len(rows)
    pairs = (m + 1) // 2 if cfg.antithetic else m
    noise = RowRng(seed, rows, stream=(iteration << 8) + 3).normal(cfg.horizon, pairs, a)  # (N, T, M or M/2, A)
    if cfg.antithetic:
        noise = torch.cat((noise, -noise), dim=2)[:, :, :m]
    return torch.cat((noise.new_zeros(n, cfg.horizon, 1, a), noise), dim=2).transpose(0, 1).contiguous()


def squash(action: Tensor, bound: float | None) -> Tensor:
    """Pre-activation -> action in (-1, 1), alike in training and evaluation."""
    return torch.tanh(action if bound is None else action.clamp(-bound, bound))


def advantage(returns: Tensor, good: Tensor | None, normalize: bool) -> Tensor:
    """Delta J = J^(n,j) - J^(n,0), divided by its std over the row's K branches if `normalize`: (T, N, K).

    Branches that are not `good` (T, N, K) take no part; a row whose nominal is not good has no say at that time.
    """
    difference = returns - returns[..., :1]
    if good is None:
        return difference / (difference.std(-1, keepdim=True) + 1e-6) if normalize else difference
    good = good & good[..., :1]
    difference = torch.where(good, difference, 0.0)
    count = good.sum(-1, keepdim=True).clamp(min=2)  # the nominal among them
    # ascent_direction averages over all M auxiliaries: this makes it the average over those that count.
    share = (returns.shape[-1] - 1) / (count - 1)
    if not normalize:
        return difference * share
    mean = difference.sum(-1, keepdim=True) / count
    var = (torch.where(good, difference - mean, 0.0) ** 2).sum(-1, keepdim=True) / (count - 1)
    return difference / (var.sqrt() + 1e-6) * share


def ascent_direction(weight: Tensor, noise: Tensor, std: Tensor, denominator: str) -> tuple[Tensor, Tensor]:
    """Where the mean and the log-std should go: 1/M sum_j w_j eps_j and 1/M sum_j w_j (eps_j^2 - 1) delta.

    weight (T, N, K) return differences, 0 for the nominal; noise (T, N, K, A); std (T, N, A) -> (T, N, A) each.
    """
    m = weight.shape[-1] - 1
    mean = torch.einsum("tnk,tnka->tna", weight, noise) / m
    log_std = torch.einsum("tnk,tnka->tna", weight, noise.square() - 1.0) / m * std
    if denominator == "delta":
        mean, log_std = mean / std, log_std / std
    return mean, log_std


# --- the algorithm ----------------------------------------------------------------------------------------------------


class Sdpg(Algorithm):
    """collect -> update, once an iteration. `act` is the deterministic policy that is evaluated and deployed.

    Each rank of a `group` collects from its own rows and draws every batch as if it had all of them; what a batch's
    samples say is summed over the ranks. So all of them take the steps that one process with all rows would take.
    """

    def __init__(
        self,
        cfg: SdpgCfg,
        env: BranchedEnv,
        sources: tuple[str, ...] = ("state",),
        seed: int = 0,
        group: Group = ALONE,
    ):
        self.cfg, self.sources, self.seed, self.group = cfg, sources, seed, group
        self.device = env.device
        self._seen: dict[str, Tensor] = {}  # source -> (T, N, ...): what the policy saw in the last segment
        # Networks and batches are drawn on the CPU and moved: they are the same on every device.
        generator = torch.Generator().manual_seed(seed)
        obs = env.observe()
        views = {name: obs.sources[name] for name in sources}
        self.normalizers = {name: Normalizer(view.shape[-1]) for name, view in views.items() if view.dim() == 2}
        self.normalizers.setdefault("state", Normalizer(obs.state.shape[-1]))
        encoders = make_encoders(
            views, env.task.cameras, self.normalizers, cfg.vector_widths, cfg.encoder, cfg.picture_origin,
            cfg.picture_motion, cfg.encoder_features, generator,
        )  # fmt: skip
        self.actor = Actor(
            encoders, cfg.actor_widths, env.task.action_size, cfg.exploration, math.log(cfg.initial_std),
            cfg.output_gain, generator, use_bfloat16(cfg.precision, views.values()),
        ).to(self.device)  # fmt: skip
        self.critic = Critic(obs.state.shape[-1], cfg.critic_widths, generator).to(self.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(cfg.temperature), device=self.device))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=cfg.actor_lr, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=cfg.critic_lr, fused=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=cfg.temperature_lr)
        self.modules = {
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
            "normalizers": nn.ModuleDict(self.normalizers).to(self.device),
            "temperature": nn.ParameterList([self.log_temperature]),
        }
        self.optimizers = {
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "temperature_optimizer": self.temperature_optimizer,
        }

    # -- acting

    def _bounded(self, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        if self.cfg.mean_bound is not None:
            mean = mean.clamp(-self.cfg.mean_bound, self.cfg.mean_bound)
        if self.cfg.log_std_bounds is not None:
            log_std = log_std.clamp(*self.cfg.log_std_bounds)
        return mean, log_std

    @torch.no_grad()
    def act(self, obs: Obs) -> Tensor:
        """The deterministic action (N, A) in (-1, 1)."""
        mean, _ = self.actor(obs.sources)
        return squash(mean, self.cfg.mean_bound)

    # -- one iteration

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> Rollout:
        """One segment: branch, then T steps of the policy on the nominals and of the noise on the branches.

        What the policy saw is written where that of the last segment was: `rollout.sources` are good until the next
        `collect`.
        """
        cfg, k, a = self.cfg, env.num_branches, env.task.action_size
        if k < 2:
            raise SdpgError("sdpg compares branches with their nominal: give num-auxiliary at least 1")
        env.branch()
        noise = exploration_noise(self.seed, self.iteration, env.rows, cfg, k - 1, a)  # (T, N, K, A)
        steps: list[tuple[Tensor, ...]] = []
        for t in range(cfg.horizon):
            obs = env.observe()
            for name in self.sources:
                self._room(name, obs.sources[name])[t] = obs.sources[name]
            mean, log_std = self._bounded(*self.actor(obs.sources))  # (N, A)
            action = torch.addcmul(mean[:, None], log_std.exp()[:, None], noise[t])  # (N, K, A)
            step = env.step(squash(action, cfg.mean_bound))
            done = env.restart(step)
            steps.append((obs.state, mean, log_std, step.reward, step.state, step.terminated, done, step.failed))
        state, mean, log_std, reward, next_state, terminated, done, failed = map(torch.stack, zip(*steps, strict=True))
        done[-1] = True
        return Rollout(
            state=state,
            sources=dict(self._seen),
            mean=mean,
            log_std=log_std,
            noise=noise,
            reward=reward * cfg.reward_scale,
            next_state=next_state,
            terminated=terminated,
            done=done,
            failed=failed,
        )

    def _room(self, name: str, view: Tensor) -> Tensor:
        """Where a segment of a source is written, (T, N, ...): the same memory in every iteration. Pictures take much
        of it, and memory that is new to the process costs more than what is written there."""
        shape, room = (self.cfg.horizon, *view.shape), self._seen.get(name)
        if room is None or room.shape != shape:
            room = self._seen[name] = view.new_empty(shape)
        return room

    def update(self, rollout: Rollout, total_iterations: int) -> Metrics:
        """Actor, temperature, critic, target critic; then the normalisers, which were constant until here. Unless the
        options tell how long schedules are, it is `total_iterations`; 0: nobody knows yet."""
        total = self.cfg.schedule_iterations or total_iterations
        # Its own generator per iteration: the state of all randomness is the iteration number.
        generator = torch.Generator().manual_seed((self.seed << 32) + self.iteration)
        good = unspoiled(rollout.failed, rollout.done) if rollout.failed.any() else None
        returns, target = self._returns(rollout)
        metrics = self._update_actor(rollout, returns, good, total, generator)
        metrics |= self._update_temperature(rollout)
        metrics |= self._update_critic(rollout, target, good, total, generator)
        # A step may fail because of what it began with: such a state would stay in the statistics for ever.
        sound = ~rollout.failed  # (T, N, K)
        self.normalizers["state"].update(rollout.state if good is None else rollout.state[sound], self.group)
        for name in self.sources:
            if name != "state" and name in self.normalizers:
                view = rollout.sources[name]  # (T, N, ...)
                self.normalizers[name].update(view if good is None else view[sound[..., 0]], self.group)
        self.iteration += 1
        return metrics

    def _returns(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """What the actor climbs and what the critic is taught: (T, N, K) each."""
        cfg, reward, done = self.cfg, rollout.reward, rollout.done
        next_value = torch.where(rollout.terminated, 0.0, self._target_value(rollout.next_state))
        if cfg.soft_critic:
            excess = rollout.log_std.mean(-1) - math.log(cfg.target_std)  # (T, N)
            reward = reward + self.log_temperature.exp().detach() * excess[..., None]
        target = lambda_returns(reward, next_value, done, cfg.gamma, cfg.lam)
        if not cfg.causal:
            return segment_returns(reward, next_value, done, cfg.gamma), target
        if not cfg.eligibility_trace:
            return lambda_returns(reward, next_value, done, cfg.gamma, lam=1.0), target
        return target, target

    @torch.no_grad()
    def _target_value(self, state: Tensor) -> Tensor:
        """V_phi' of (T, N, K, D), one time step after the other: a step's activations fit into the cache."""
        return torch.stack([self.target_critic(x) for x in self.normalizers["state"](state)])

    def _places(self, usable: Tensor) -> Tensor:
        """usable (T, N, ...) bool of this rank's samples -> for every sample of all ranks, flat, its place among this
        rank's flat samples; -1 if it is another rank's or not usable. Batches are drawn from these: their size, which
        losses are divided by, is that over all ranks, and what is not usable adds nothing to the sum.

        On the CPU, where how many of a batch are left must be known.
        """
        t, n, *branches = usable.shape
        places = torch.full((t, self.group.size, n, *branches), -1, device="cpu")  # a rank's rows follow each other
        mine = torch.arange(usable.numel(), device="cpu").view_as(usable)
        places[:, self.group.rank] = torch.where(usable.cpu(), mine, -1)
        return places.flatten()

    def _batches(self, drawn: Tensor, size: int) -> Iterator[tuple[Tensor, int]]:
        """Batches of `size` of the places `drawn`: this rank's samples in each, on its device, and how many it has of
        all ranks. One copy to the device for all of them."""
        left = drawn >= 0
        mine = drawn[left].to(self.device).split([int(part.sum()) for part in left.split(size)])
        return zip(mine, (len(part) for part in drawn.split(size)), strict=True)

    def _update_actor(
        self, rollout: Rollout, returns: Tensor, good: Tensor | None, total: int, generator: torch.Generator
    ) -> Metrics:
        cfg = self.cfg
        weight = advantage(returns, good, normalize=cfg.denominator == "sigma")
        d_mean, d_log_std = ascent_direction(weight, rollout.noise, rollout.log_std.exp(), cfg.denominator)
        mean, log_std = self._bounded(rollout.mean + d_mean, rollout.log_std + d_log_std)
        mean, log_std = mean.flatten(0, 1), log_std.flatten(0, 1)  # (T N, A) targets
        sources = {name: view.flatten(0, 1) for name, view in rollout.sources.items()}
        lr = cfg.actor_lr
        if cfg.actor_schedule == "cosine":
            lr = cosine_lr(self.iteration, total, lr, cfg.actor_lr_min, cfg.warmup, cfg.schedule_from)
        places = self._places(~rollout.failed[..., 0])  # what a nominal saw before it failed may not be finite
        samples, temperature = len(places), self.log_temperature.exp().item() if cfg.entropy else 0.0
        losses: list[Tensor] = []
        norms, skipped = [], 0

        def parts(mine: Tensor, count: int) -> Iterator[Tensor]:
            for ids in mine.split(cfg.actor_chunk) if len(mine) else ():
                # The network's own output, not the bounded one, is compared with targets that keep the bounds: a mean
                # beyond its bound is drawn back, where a clipped one would have no gradient.
                predicted_mean, predicted_log_std = self.actor({name: view[ids] for name, view in sources.items()})
                loss = F.mse_loss(predicted_mean, mean[ids], reduction="sum")
                if cfg.exploration != "fixed":
                    loss = loss + F.mse_loss(predicted_log_std, log_std[ids], reduction="sum")
                    loss = loss - temperature * predicted_log_std.sum()
                loss = loss / (count * mean.shape[-1])
                losses.append(loss.detach())
                yield loss

        for _ in range(cfg.regression_steps):
            drawn = places
            if cfg.regression_fraction < 1.0:
                part = torch.randperm(samples, generator=generator, device="cpu")
                drawn = places[part[: max(1, int(samples * cfg.regression_fraction))]]
            ((mine, count),) = self._batches(drawn, len(drawn))
            norm = clipped_step(self.actor_optimizer, parts(mine, count), lr, cfg.max_grad_norm, self.group)
            skipped += not math.isfinite(norm)
            norms.append(norm)
        means = torch.stack((rollout.log_std.exp().mean(), rollout.mean.abs().mean(), d_mean.square().mean()))
        std, size, ascent = (mean / self.group.size for mean in means.tolist())
        loss = sum(each / cfg.regression_steps for each in torch.stack(losses).tolist()) if losses else 0.0
        sums = self.group.sums({"loss": loss, "std": std, "abs": size, "ascent": ascent})
        return {
            "Loss/actor": sums["loss"],
            "Loss/actor_grad_norm": sum(norms) / len(norms),
            "Loss/actor_lr": lr,
            "Loss/actor_skipped": float(skipped),
            "Policy/mean_std": sums["std"],
            "Policy/mean_abs": sums["abs"],
            "Policy/ascent": math.sqrt(sums["ascent"]),
        }

    def _update_temperature(self, rollout: Rollout) -> Metrics:
        cfg, norm = self.cfg, 0.0
        if cfg.auto_temperature and (cfg.entropy or cfg.soft_critic):  # whoever uses it
            excess = (rollout.log_std.exp() - cfg.target_std).mean()
            loss = self.log_temperature.exp() * excess / self.group.size
            norm = clipped_step(self.temperature_optimizer, [loss], cfg.temperature_lr, math.inf, self.group)
        skipped = float(not math.isfinite(norm))
        return {"Policy/temperature": self.log_temperature.exp().item(), "Loss/temperature_skipped": skipped}

    def _update_critic(
        self, rollout: Rollout, target: Tensor, good: Tensor | None, total: int, generator: torch.Generator
    ) -> Metrics:
        cfg = self.cfg
        state = self.normalizers["state"](rollout.state).flatten(0, 2)  # (T N K, D) normalised once
        target = target.flatten()
        places = self._places(~rollout.failed if good is None else good)
        lr = cfg.critic_lr
        if cfg.critic_schedule == "linear":
            lr = linear_lr(self.iteration, total, lr, 0.1 * lr, cfg.schedule_from)
        losses, skipped = [], 0
        for _ in range(cfg.critic_passes):
            order = torch.randperm(len(places), generator=generator, device="cpu")
            for ids, count in self._batches(places[order], cfg.critic_batch):
                loss = F.mse_loss(self.critic(state[ids]), target[ids], reduction="sum") / count
                norm = clipped_step(self.critic_optimizer, [loss], lr, cfg.max_grad_norm, self.group)
                skipped += not math.isfinite(norm)
                losses.append(loss.detach())
        for old, new in zip(self.target_critic.parameters(), self.critic.parameters(), strict=True):
            old.lerp_(new.detach(), 1.0 - cfg.target_decay)
        mean_loss = self.group.sums({"loss": torch.stack(losses).mean().item()})["loss"]
        _, mean, variance = moments((target if good is None else target[good.flatten()])[:, None], self.group)
        return {
            "Loss/critic": mean_loss,
            "Loss/critic_explained": 1.0 - mean_loss / max(variance.item(), 1e-12),
            "Loss/critic_lr": lr,
            "Loss/critic_skipped": float(skipped),
            "Train/mean_value": mean.item(),
        }
