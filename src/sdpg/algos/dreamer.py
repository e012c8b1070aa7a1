"""DreamerV3 (Hafner, Pasukonis, Ba, Lillicrap: Mastering diverse control tasks through world models, Nature 2025): a
world model is learnt from replayed sequences, and the policy from what the model imagines.

Networks, losses and optimiser are torchrl's; worlds, images, memory of the past and the loop are ours. This is the
current version, not that of 2023: docs/algorithms.md tells them apart, and numbers what differs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sdpg.algos.api import Carry, Context, Policy, begin_where
from sdpg.algos.base import NetworkAlgorithm, clipped_step
from sdpg.algos.dreamer_cfg import IMAGE, LATENTS, DreamerCfg
from sdpg.algos.dreamer_networks import DreamerNetworks, as_tensordict, make_loss, seeded
from sdpg.algos.sequence_buffer import SequenceBuffer
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.pipeline import resized
from sdpg.rng import RowRng
from sdpg.types import Metrics, Step

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchrl.objectives import SoftUpdate
    from torchrl.trainers.algorithms.dreamer_v3 import DreamerV3Optimizer

# Our names of what torchrl puts out.
METRICS = {
    "loss_actor": "Loss/actor",
    "loss_value": "Loss/critic",
    "replay_value": "Loss/critic_replay",
    "loss_model_reco": "Loss/model_image",
    "loss_model_reward": "Loss/model_reward",
    "loss_model_continue": "Loss/model_continuation",
    "loss_model_dynamic": "Loss/model_dynamics",
    "loss_model_representation": "Loss/model_representation",
    "actor_entropy": "Policy/entropy",
    "return_scale": "Train/return_scale",
}


def newest_frames(sources: Mapping[str, Tensor], channels: Mapping[str, int]) -> Tensor:
    """Stacks (N, stack * C, H, W) of each source -> their newest frames, one after the other, as IMAGE x IMAGE."""
    frames = []
    for name, count in channels.items():
        frame = sources[name][:, -count:]
        frames.append(resized(frame, IMAGE, IMAGE, "area" if min(frame.shape[-2:]) >= IMAGE else "bilinear"))
    return torch.cat(frames, dim=1)


class DreamerPolicy(Policy):
    """The mean action in the most probable latent state; it remembers that, the belief and the action."""

    def __init__(self, networks: DreamerNetworks, channels: Mapping[str, int]):
        super().__init__()
        self.networks, self.channels = networks, dict(channels)

    def carry(self, num: int) -> Carry:
        return self.networks.start(num)

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        state, belief = self.networks.look(newest_frames(sources, self.channels), carry)
        action, _ = self.networks.actor(state, belief)
        return action, {"state": state, "belief": belief, "action": action}


class Dreamer(NetworkAlgorithm):
    """Collects a few steps of every world into the buffer, then makes as many updates as these steps are worth."""

    cfg: DreamerCfg

    def __init__(self, cfg: DreamerCfg, context: Context):
        env, seed = context.env, context.seed
        self.cfg, self.seed, self.device = cfg, seed, env.device
        seen = {name: view for name, view in env.observe().sources.items() if name in context.sources}
        for name, view in seen.items():
            if view.dtype != torch.uint8 or view.dim() != 4:
                raise SdpgError(
                    f"dreamer learns from colour images alone, and '{name}' is something else: --obs pixels"
                )
        self.channels = {name: view.shape[1] // env.task.cameras[name].stack for name, view in seen.items()}
        self.made = 0  # steps of the run, over all worlds
        with seeded(seed, torch.device("cpu")):  # networks are the same on every device
            self.networks = DreamerNetworks(cfg, sum(self.channels.values()), env.task.action_size)
        self.networks.to(self.device)
        self.loss = make_loss(self.networks, cfg)
        self.slow_critic = SoftUpdate(self.loss.value_loss, tau=cfg.target_rate)
        self.optimizer = DreamerV3Optimizer(self.networks.parameters(), lr=cfg.lr, agc=cfg.agc, warmup_steps=cfg.warmup)
        self.modules = {"networks": self.networks, "return_range": self.loss.actor_loss.retnorm}
        self.optimizers = {"optimizer": self.optimizer}
        self._num, self._action_size = env.num_nominal, env.task.action_size
        self._carry = self.networks.start(self._num)
        self._reward = torch.zeros(self._num, device=self.device)  # (N,) for the last action

    @cached_property
    def buffer(self) -> SequenceBuffer:
        """Made when it is first used: one who evaluates needs none."""
        slots, least = self.cfg.buffer // self._num, self.cfg.length
        if slots < least:
            raise SdpgError(
                f"algo.buffer {self.cfg.buffer} is too small for {self._num} worlds: give {least * self._num} or more"
            )
        shape = (self._num, sum(self.channels.values()), IMAGE, IMAGE)
        return SequenceBuffer(slots, torch.empty(shape, dtype=torch.uint8, device=self.device), self._action_size)

    def policy(self) -> DreamerPolicy:
        return DreamerPolicy(self.networks, self.channels)

    def state_dict(self) -> dict[str, Any]:
        """Without the buffer and what is remembered of running episodes: a resumed run fills it again before it
        learns."""
        slow = {name: value.detach() for name, value in zip(self._slow_names, self._slow, strict=True)}
        steps = self.optimizer.param_groups[0]["step"]
        return super().state_dict() | {"made": self.made, "optimizer_steps": steps, "slow_critic": slow}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.made = int(state["made"])
        self.optimizer.param_groups[0]["step"] = int(state["optimizer_steps"])
        for name, value in zip(self._slow_names, self._slow, strict=True):
            value.copy_(state["slow_critic"][name])

    @property
    def _slow_names(self) -> list[str]:
        return [name for name, _ in self.networks.critic.named_parameters()]

    @cached_property
    def _slow(self) -> list[Tensor]:
        """The slow copy of the critic's parameters, in their order."""
        copy = self.loss.value_loss.target_value_model_params
        return [copy.get(("module", "0", "module", *name.split("."))).data for name in self._slow_names]

    # -- collecting

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> int:
        """Steps of every world, into the buffer; how many were made, over all worlds."""
        steps, stream, policy = self.cfg.steps, self.iteration << 8, self.policy()
        uniform = RowRng(self.seed, env.rows, stream=stream + 7).uniform(0.0, 1.0, steps, LATENTS)  # (N, T, LATENTS)
        noise = RowRng(self.seed, env.rows, stream=stream + 8).normal(steps, env.task.action_size)  # (N, T, A)
        everyone = torch.arange(env.num_nominal, device=self.device)
        never = torch.zeros(env.num_nominal, dtype=torch.bool, device=self.device)
        for t in range(steps):
            image = newest_frames(env.observe().sources, self.channels)
            self.buffer.add(everyone, image, self._carry["action"], self._reward, env.clock == 0, never, never)
            self._carry = self._act(image, uniform[:, t], noise[:, t])
            step = env.step(self._carry["action"].clamp(-1.0, 1.0)[:, None])
            self._remember_ends(env, step)
            done = env.restart(step)[:, 0]
            self._carry = begin_where(policy, self._carry, done)
            self._reward = torch.where(done, 0.0, step.reward[:, 0])
            self.made += env.num_nominal
        return steps * env.num_nominal

    def _act(self, image: Tensor, uniform: Tensor, noise: Tensor) -> Carry:
        """What is remembered after a step with exploration; its action is not yet within bounds."""
        state, belief = self.networks.look(image, self._carry, uniform)
        mean, std = self.networks.actor(state, belief)
        return {"state": state, "belief": belief, "action": mean + std * noise}

    def _remember_ends(self, env: BranchedEnv, step: Step) -> None:
        """Before worlds are restarted: what is seen where an episode ends."""
        terminated, failed = step.terminated[:, 0], step.failed[:, 0]
        done = terminated | step.truncated[:, 0]
        any_done, any_failed = torch.stack((done.any(), failed.any())).tolist()
        if not any_done:
            return
        rows = done.nonzero()[:, 0]
        if any_failed:  # a world that failed can't be drawn
            self.buffer.cut(rows)
            return
        image = newest_frames({name: env.observe().sources[name][rows] for name in self.channels}, self.channels)
        flag = torch.ones_like(rows, dtype=torch.bool)
        self.buffer.add(rows, image, self._carry["action"][rows], step.reward[rows, 0], ~flag, flag, terminated[rows])

    # -- learning

    def update(self, batch: int) -> Metrics:
        """`batch`: the steps just made. Updates are counted by the steps of the whole run: none is lost to rounding."""
        cfg, each = self.cfg, self.cfg.updates_per_step
        count = int(self.made * each) - int((self.made - batch) * each)
        if self.buffer.added < cfg.seed_steps or not self.buffer.sequences(cfg.length):
            count = 0
        # Its own generators per iteration: the state of all randomness is the iteration number.
        seed = (self.seed << 32) + self.iteration
        generator = torch.Generator().manual_seed(seed)
        with seeded(seed, self.device):
            made = [self._update_once(generator) for _ in range(count)]
        # One wait for the device for all of them.
        values = torch.stack([values for values, _ in made]).mean(0).tolist() if made else [math.nan] * len(METRICS)
        norms = [norm for _, norm in made]
        self.iteration += 1
        return dict(zip(METRICS.values(), values, strict=True)) | {
            "Loss/grad_norm": sum(norms) / len(norms) if norms else math.nan,
            "Loss/skipped": float(sum(not math.isfinite(norm) for norm in norms)),
            "Train/updates": float(count),
        }

    def _update_once(self, generator: torch.Generator) -> tuple[Tensor, float]:
        """All networks by one step, then the slow critic: (metrics, (METRICS,)), norm of the gradient."""
        drawn = self.buffer.draw(self.cfg.batch, self.cfg.length, generator)
        losses = self.loss(as_tensordict(drawn, self.networks))
        total = sum(value for name, value in losses.items() if name.startswith("loss_"))
        norm = clipped_step(self.optimizer, [total], self.cfg.lr, math.inf)
        self.slow_critic.step()
        return torch.stack([losses[name].detach().reshape(()) for name in METRICS]), norm

    def phases(self) -> dict[str, tuple[object, str]]:
        return {"acting": (self, "_act"), "sampling": (self.buffer, "draw"), "update": (self, "_update_once")}
