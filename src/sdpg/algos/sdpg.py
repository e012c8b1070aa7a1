"""Stochastic Decoupled Policy Gradient (You, Liu et al., 2026): Algorithm 1 and its options.

Each of N nominal worlds follows the policy's mean; its M branches follow the same actions plus noise. The difference of
their returns, times the noise, points where the action should have gone (`ascent_direction`, equations 1 and 10); the
policy is regressed onto it (equation 3). The policy never sees an auxiliary, so only N worlds are rendered.

docs/algorithm.md puts every equation beside the function that computes it and numbers the deviations.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdpg.algos.api import Carry, Context, Policy
from sdpg.algos.base import NetworkAlgorithm, batches, clipped_step, cosine_lr, linear_lr, places
from sdpg.algos.returns import lambda_returns, segment_returns, valid_returns
from sdpg.algos.sdpg_cfg import SdpgCfg
from sdpg.distributed import ALONE, Group
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.declared import EncoderOptions, make_critic, make_normalizers, policy_encoders
from sdpg.nn.encoders import use_bfloat16
from sdpg.nn.modules import Actor, Guide, moments
from sdpg.rng import RowRng
from sdpg.types import Metrics, Rollout

# --- the paper, as pure functions -------------------------------------------------------------------------------------


def exploration_noise(
    seed: int, iteration: int, rows: Tensor, size: tuple[int, int, int], antithetic: bool = False, again: int = 0
) -> Tensor:
    """Standard normal noise (T, N, 1 + M, A), 0 for the nominal: a function of (seed, iteration, row) alone.

    `size` is (T, M, A), `rows` is (N,). `again`: how often the segment has been played before."""
    n, (t, m, a) = len(rows), size
    pairs = (m + 1) // 2 if antithetic else m
    noise = RowRng(seed, rows, stream=(iteration << 8) + 3 + (again << 4)).normal(t, pairs, a)  # (N, T, M or M/2, A)
    if antithetic:
        noise = torch.cat((noise, -noise), dim=2)[:, :, :m]
    return torch.cat((noise.new_zeros(n, t, 1, a), noise), dim=2).transpose(0, 1).contiguous()


def nominal_noise(seed: int, iteration: int, rows: Tensor, size: tuple[int, int]) -> Tensor:
    """Standard normal noise (T, N, 1, A) that a row's worlds have in common: a function of (seed, iteration, row) too.

    `size` is (T, A), `rows` is (N,)."""
    t, a = size
    return RowRng(seed, rows, stream=(iteration << 8) + 4).normal(t, 1, a).transpose(0, 1)


def squash(action: Tensor, bound: float | None) -> Tensor:
    """Maps pre-activations to actions in (-1, 1), in training and evaluation alike."""
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


def stake(returns: Tensor, good: Tensor | None, power: float, group: Group = ALONE) -> Tensor:
    """How much a row counts at a time: (sigma / sigma_rms)^power, sigma the std of its differences: (T, N, 1).

    `sigma_rms` is that of all rows and times, of every rank."""
    std = advantage(returns, good, normalize=False).std(-1, keepdim=True)
    sums = group.sums({"square": std.square().sum().item(), "count": std.numel()})
    return (std / math.sqrt(sums["square"] / sums["count"] + 1e-12)) ** power


def divergence(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL of one Gaussian policy from another, of the same states: (..., A) each -> (...)."""
    ratio, shift = log_std - other_log_std, (mean - other_mean) * (-other_log_std).exp()
    return (0.5 * ((2.0 * ratio).exp() + shift.square() - 1.0) - ratio).sum(-1)


def _evenly(ids: Tensor, most: int) -> Tensor:
    """At most `most` of them, spread over all."""
    return ids[:: max(1, math.ceil(len(ids) / most))]


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


class MeanPolicy(Policy):
    """The mean of the Gaussian, squashed: without noise."""

    def __init__(self, actor: Actor, mean_bound: float | None):
        super().__init__()
        self.actor, self.mean_bound = actor, mean_bound

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        mean, _ = self.actor(sources)
        return squash(mean, self.mean_bound), carry


class Sdpg(NetworkAlgorithm):
    """Collects a segment, climbs, and teaches the critic: one iteration of Algorithm 1.

    Each rank of a group collects from its own rows, and draws every batch as if it had all of them. Gradients are
    summed over the ranks, so all ranks take the steps that one process with all rows would take.
    """

    cfg: SdpgCfg

    def __init__(self, cfg: SdpgCfg, context: Context):
        self.cfg, env, seed = cfg, context.env, context.seed
        self.sources, self.seed, self.group, self.device = context.sources, seed, context.group, env.device
        self._seen: dict[str, Tensor] = {}  # source -> (T, N, ...): what the policy saw in the last segment
        # Networks and batches are drawn on the CPU and moved: they are the same on every device.
        generator = torch.Generator().manual_seed(seed)
        obs = env.observe()
        seen = {name: obs.sources[name] for name in self.sources}
        self.normalizers = make_normalizers(env.task, seen, obs.state.shape[-1])
        options = EncoderOptions(
            cfg.vector_widths, cfg.encoder_features, cfg.encoder, cfg.image_origin, cfg.image_motion
        )
        encoders = policy_encoders(env.task, seen, self.normalizers, options, generator)
        self.actor = Actor(
            encoders, cfg.actor_widths, env.task.action_size, cfg.exploration, math.log(cfg.initial_std),
            cfg.output_gain, generator, use_bfloat16(cfg.precision, seen.values()),
        ).to(self.device)  # fmt: skip
        self.critic = make_critic(env.task, obs.state.shape[-1], cfg.critic_widths, generator).to(self.device)
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
        # Of the actor's scheduled learning rate: a number with a place in checkpoints.
        self.pace = nn.Parameter(torch.ones(()), requires_grad=False)
        if cfg.kl_target is not None:
            self.modules["pace"] = nn.ParameterList([self.pace])
        self.optimizers = {
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "temperature_optimizer": self.temperature_optimizer,
        }
        if cfg.guide_passes:
            size = obs.state.shape[-1], env.task.action_size
            self.guide = Guide(*size, cfg.actor_widths, cfg.output_gain, generator).to(self.device)
            self.guide_optimizer = torch.optim.Adam(self.guide.parameters(), lr=cfg.actor_lr, fused=True)
            self.modules["guide"], self.optimizers["guide_optimizer"] = self.guide, self.guide_optimizer

    # -- acting

    def _bounded(self, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        if self.cfg.mean_bound is not None:
            mean = mean.clamp(-self.cfg.mean_bound, self.cfg.mean_bound)
        if self.cfg.log_std_bounds is not None:
            log_std = log_std.clamp(*self.cfg.log_std_bounds)
        return mean, log_std

    def policy(self) -> Policy:
        return MeanPolicy(self.actor, self.cfg.mean_bound)

    # -- one iteration

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> Rollout:
        """One segment: branch, then T steps of the policy on the nominals and of the noise on the branches.

        `rollout.sources` are good until the next `collect`, which writes to the same memory.
        """
        cfg, k, a = self.cfg, env.num_branches, env.task.action_size
        if k < 2:
            raise SdpgError("sdpg compares branches with their nominal: give num-auxiliary at least 1")
        start = env.state_dict() if cfg.search_steps > 1 else {}
        if cfg.final_std is not None:
            self.actor.log_std.fill_(math.log(self._scheduled(cfg.initial_std, cfg.final_std)))
        env.branch()
        size = (cfg.horizon, k - 1, a)
        noise = exploration_noise(self.seed, self.iteration, env.rows, size, cfg.antithetic)  # (T, N, K, A)
        acted = noise
        if cfg.nominal_noise:
            # From none in the first row, as in evaluation, to all of it in the last one.
            share = env.rows / max(1, env.num_nominal * self.group.size - 1)  # (N,)
            own = nominal_noise(self.seed, self.iteration, env.rows, (cfg.horizon, a))  # (T, N, 1, A)
            acted = noise + cfg.nominal_noise * share[:, None, None] * own
        steps: list[tuple[Tensor, ...]] = []
        for t in range(cfg.horizon):
            if t and cfg.branch_steps and t % cfg.branch_steps == 0:
                env.branch()
            obs = env.observe()
            for name in self.sources:
                self._room(name, obs.sources[name])[t] = obs.sources[name]
            mean, log_std = self._bounded(*self.actor(obs.sources))  # (N, A)
            action = torch.addcmul(mean[:, None], log_std.exp()[:, None], acted[t])  # (N, K, A)
            step = env.step(squash(action, cfg.mean_bound))
            done = env.restart(step)
            steps.append((obs.state, mean, log_std, step.reward, step.state, step.terminated, done, step.failed))
        state, mean, log_std, reward, next_state, terminated, done, failed = map(torch.stack, zip(*steps, strict=True))
        done[-1] = True
        if cfg.branch_steps:
            done[cfg.branch_steps - 1 :: cfg.branch_steps, :, 1:] = True  # the nominals' trajectories go on
        rollout = Rollout(
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
        if not start:
            return rollout
        from sdpg.algos.search import search  # it is made of what is in this file

        return search(self, env, start, rollout)

    def _scheduled(self, first: float, last: float) -> float:
        """From `first` to `last` over the run, by the same factor in every iteration."""
        cfg, ends = self.cfg, (math.log(first), math.log(last))
        return math.exp(linear_lr(self.iteration, cfg.schedule_iterations, *ends, cfg.schedule_from))

    @property
    def gamma(self) -> float:
        """The discount of this iteration."""
        cfg = self.cfg
        if cfg.final_gamma is None:
            return cfg.gamma
        return 1.0 - self._scheduled(1.0 - cfg.gamma, 1.0 - cfg.final_gamma)

    def _room(self, name: str, source: Tensor) -> Tensor:
        """Where a segment of a source is written, (T, N, ...): the same memory in every iteration.

        Images take much of it, and touching new memory costs more than writing the images."""
        shape, room = (self.cfg.horizon, *source.shape), self._seen.get(name)
        if room is None or room.shape != shape:
            room = self._seen[name] = source.new_empty(shape)
        return room

    def update(self, rollout: Rollout) -> Metrics:
        """Updates actor, temperature, critic and target critic; last the normalisers, constant until here."""
        # Its own generator per iteration: the state of all randomness is the iteration number.
        generator = torch.Generator().manual_seed((self.seed << 32) + self.iteration)
        good = valid_returns(rollout.failed, rollout.done) if rollout.failed.any() else None
        returns, target = self._returns(rollout)
        metrics = self._update_actor(rollout, returns, good, generator)
        metrics |= self._update_temperature(rollout)
        metrics |= self._update_critic(rollout, target, good, generator)
        self._update_normalizers(rollout, good)
        self.iteration += 1
        return metrics

    def _update_normalizers(self, rollout: Rollout, good: Tensor | None) -> None:
        # A step may fail because of what it began with: such a state would stay in the statistics for ever.
        sound = ~rollout.failed  # (T, N, K)
        self.normalizers["state"].update(rollout.state if good is None else rollout.state[sound], self.group)
        for name in self.sources:
            if name != "state" and name in self.normalizers:
                source = rollout.sources[name]  # (T, N, ...)
                self.normalizers[name].update(source if good is None else source[sound[..., 0]], self.group)

    def _returns(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """What the actor climbs and what the critic is taught: (T, N, K) each.

        baseline="value": the actor's is J_t^j - V(s_t^j). eps_t^j does not depend on s_t^j, so that the direction's
        expectation does not depend on V; its variance does.
        """
        cfg, reward, done = self.cfg, rollout.reward, rollout.done
        next_value = torch.where(rollout.terminated, 0.0, self._target_value(rollout.next_state))
        if cfg.soft_critic:
            excess = rollout.log_std.mean(-1) - math.log(cfg.target_std)  # (T, N)
            reward = reward + self.log_temperature.exp().detach() * excess[..., None]
        target = climbed = lambda_returns(reward, next_value, done, self.gamma, cfg.lam)
        if cfg.branch_steps:
            done = done.clone()
            done[cfg.branch_steps - 1 :: cfg.branch_steps] = True  # branches are compared as far as they went
        lam = cfg.lam if cfg.eligibility_trace else 1.0
        if not cfg.causal:
            climbed = segment_returns(reward, next_value, done, self.gamma)
        elif cfg.branch_steps or lam != cfg.lam:
            climbed = lambda_returns(reward, next_value, done, self.gamma, lam)
        if cfg.baseline == "value":
            climbed = climbed - self._target_value(rollout.state)
        return climbed, target

    def direction(self, rollout: Rollout, returns: Tensor, good: Tensor | None) -> tuple[Tensor, Tensor]:
        """Where mean and log-std of a rollout should go: (T, N, A) each."""
        cfg = self.cfg
        weight = advantage(returns, good, normalize=cfg.denominator == "sigma")
        if cfg.stakes:
            weight = weight * stake(returns, good, cfg.stakes, self.group)
        return ascent_direction(weight, rollout.noise, rollout.log_std.exp(), cfg.denominator)

    @torch.no_grad()
    def _target_value(self, state: Tensor) -> Tensor:
        """V_phi' of (T, N, K, D), one time step after the other: a step's activations fit into the cache."""
        return torch.stack([self.target_critic(x) for x in self.normalizers["state"](state)])

    def _update_actor(
        self, rollout: Rollout, returns: Tensor, good: Tensor | None, generator: torch.Generator
    ) -> Metrics:
        cfg = self.cfg
        d_mean, d_log_std = self.direction(rollout, returns, good)
        climbed = rollout.mean + d_mean if rollout.searched is None else rollout.searched
        mean, log_std = self._bounded(climbed, rollout.log_std + d_log_std)
        mean, log_std = mean.flatten(0, 1), log_std.flatten(0, 1)  # (T N, A) targets
        sources = {name: source.flatten(0, 1) for name, source in rollout.sources.items()}
        lr = cfg.actor_lr
        if cfg.actor_schedule == "cosine":
            lr = cosine_lr(self.iteration, cfg.schedule_iterations, lr, cfg.actor_lr_min, cfg.warmup, cfg.schedule_from)
        lr *= self.pace.item()
        every = places(~rollout.failed[..., 0], self.group)  # what a nominal saw before it failed may not be finite
        guided: Metrics = {}
        if cfg.guide_passes:
            mean, guided = self._update_guide(rollout, mean, every, lr, generator)
        samples, temperature = len(every), self.log_temperature.exp().item() if cfg.entropy else 0.0
        losses: list[Tensor] = []
        norms, skipped = [], 0

        def parts(mine: Tensor, count: int) -> Iterator[Tensor]:
            for ids in mine.split(cfg.actor_chunk) if len(mine) else ():
                # The network's own output, not the bounded one, is compared with targets that keep the bounds: a mean
                # beyond its bound is drawn back, where a clipped one would have no gradient.
                predicted_mean, predicted_log_std = self.actor({name: source[ids] for name, source in sources.items()})
                loss = F.mse_loss(predicted_mean, mean[ids], reduction="sum")
                if cfg.exploration != "fixed":
                    loss = loss + F.mse_loss(predicted_log_std, log_std[ids], reduction="sum")
                    loss = loss - temperature * predicted_log_std.sum()
                loss = loss / (count * mean.shape[-1])
                losses.append(loss.detach())
                yield loss

        for _ in range(cfg.regression_steps):
            drawn = every
            if cfg.regression_fraction < 1.0:
                part = torch.randperm(samples, generator=generator, device="cpu")
                drawn = every[part[: max(1, int(samples * cfg.regression_fraction))]]
            ((mine, count),) = batches(drawn, len(drawn), self.device)
            norm = clipped_step(self.actor_optimizer, parts(mine, count), lr, cfg.max_grad_norm, self.group)
            skipped += not math.isfinite(norm)
            norms.append(norm)
        moved = (
            {} if cfg.kl_target is None else {"Policy/kl": self._keep_pace(rollout, _evenly(drawn, cfg.actor_chunk))}
        )
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
            **guided,
            **moved,
        }

    def _update_guide(
        self, rollout: Rollout, climbed: Tensor, every: Tensor, lr: float, generator: torch.Generator
    ) -> tuple[Tensor, Metrics]:
        """Where the guide says that actions should be, once it has learned where they climb: (T N, A) each.

        g <- mu + b (g - mu) + d: what the policy did not follow yet is not forgotten."""
        cfg = self.cfg
        state = self.normalizers["state"](rollout.state[:, :, 0]).flatten(0, 1)  # (T N, D)
        mean, log_std = rollout.mean.flatten(0, 1), rollout.log_std.flatten(0, 1)
        with torch.no_grad():
            behind = self.guide(state) - mean
            target, _ = self._bounded(climbed + cfg.guide_memory * behind, log_std)
        for _ in range(cfg.guide_passes):
            order = torch.randperm(len(every), generator=generator, device="cpu")
            for ids, count in batches(every[order], cfg.critic_batch, self.device):
                loss = F.mse_loss(self.guide(state[ids]), target[ids], reduction="sum") / (count * target.shape[-1])
                clipped_step(self.guide_optimizer, [loss], lr, cfg.max_grad_norm, self.group)
        with torch.no_grad():
            said, _ = self._bounded(self.guide(state), log_std)
        sound = ~rollout.failed[..., 0].flatten()
        numbers = behind[sound]  # of which ranks have different numbers
        sums = self.group.sums({"square": numbers.square().sum().item(), "count": numbers.numel()})
        return said, {"Policy/behind": math.sqrt(sums["square"] / max(1.0, sums["count"]))}

    @torch.no_grad()
    def _keep_pace(self, rollout: Rollout, drawn: Tensor) -> float:
        """Faster or slower from here on, by how far the policy moved in the samples at the places `drawn`."""
        assert self.cfg.kl_target is not None
        ids, kl = drawn[drawn >= 0].to(self.device), 0.0
        if len(ids):
            seen = {name: source.flatten(0, 1)[ids] for name, source in rollout.sources.items()}
            old = (x.flatten(0, 1)[ids] for x in (rollout.mean, rollout.log_std))
            kl = divergence(*self._bounded(*self.actor(seen)), *old).sum().item() / len(drawn)
        kl = self.group.sums({"kl": kl})["kl"]
        if kl > 2.0 * self.cfg.kl_target:
            self.pace.mul_(2.0 / 3.0)
        elif kl < 0.5 * self.cfg.kl_target:
            self.pace.mul_(1.5).clamp_(max=1.0)
        return kl

    def _update_temperature(self, rollout: Rollout) -> Metrics:
        cfg, norm = self.cfg, 0.0
        if cfg.auto_temperature and (cfg.entropy or cfg.soft_critic):  # whoever uses it
            excess = (rollout.log_std.exp() - cfg.target_std).mean()
            loss = self.log_temperature.exp() * excess / self.group.size
            norm = clipped_step(self.temperature_optimizer, [loss], cfg.temperature_lr, math.inf, self.group)
        skipped = float(not math.isfinite(norm))
        return {"Policy/temperature": self.log_temperature.exp().item(), "Loss/temperature_skipped": skipped}

    def _update_critic(
        self, rollout: Rollout, target: Tensor, good: Tensor | None, generator: torch.Generator
    ) -> Metrics:
        cfg = self.cfg
        k = rollout.state.shape[2] if cfg.critic_branches else 1  # whom it learns from: all, or the nominals alone
        state = self.normalizers["state"](rollout.state[:, :, :k]).flatten(0, 2)  # (T N K, D) normalised once
        target = target[..., :k].flatten()
        usable, weight = (~rollout.failed if good is None else good)[..., :k], None
        if k > 1 and cfg.critic_branches != 1.0:
            share = torch.full((k,), cfg.critic_branches, device=self.device)
            share[0] = 1.0
            weight = (share * k / share.sum()).expand_as(usable).flatten()  # (T N K,) with a mean of 1
        every = places(usable, self.group)
        lr = cfg.critic_lr
        if cfg.critic_schedule == "linear":
            lr = linear_lr(self.iteration, cfg.schedule_iterations, lr, 0.1 * lr, cfg.schedule_from)
        losses, skipped = [], 0
        for _ in range(cfg.critic_passes):
            order = torch.randperm(len(every), generator=generator, device="cpu")
            for ids, count in batches(every[order], cfg.critic_batch, self.device):
                value = self.critic(state[ids])
                if weight is None:
                    loss = F.mse_loss(value, target[ids], reduction="sum") / count
                else:
                    loss = (weight[ids] * (value - target[ids]).square()).sum() / count
                norm = clipped_step(self.critic_optimizer, [loss], lr, cfg.max_grad_norm, self.group)
                skipped += not math.isfinite(norm)
                losses.append(loss.detach())
        for old, new in zip(self.target_critic.parameters(), self.critic.parameters(), strict=True):
            old.lerp_(new.detach(), 1.0 - cfg.target_decay)
        mean_loss = self.group.sums({"loss": torch.stack(losses).mean().item()})["loss"]
        _, mean, variance = moments((target if good is None else target[usable.flatten()])[:, None], self.group)
        return {
            "Loss/critic": mean_loss,
            "Loss/critic_explained": 1.0 - mean_loss / max(variance.item(), 1e-12),
            "Loss/critic_lr": lr,
            "Loss/critic_skipped": float(skipped),
            "Train/mean_value": mean.item(),
        }

    def phases(self) -> dict[str, tuple[object, str]]:
        return {
            "noise": (sys.modules[__name__], "exploration_noise"),
            "acting": (self.actor, "forward"),
            "actor update": (self, "_update_actor _update_temperature"),
            "critic update": (self, "_returns _update_critic"),
            "normaliser": (self, "_update_normalizers"),
        }
