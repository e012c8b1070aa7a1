from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers.sources import watched
from torch import Tensor

from sdpg.algos.api import Context, ImageShape, Shapes
from sdpg.algos.drqv2 import DrqV2, explored, shifted
from sdpg.algos.drqv2_cfg import DrqV2Cfg
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.presets import resolve
from sdpg.run.memory import make_plan
from sdpg.tasks.base import make_task
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera

TINY = DrqV2Cfg(
    steps=8, buffer=200, batch=5, seed_steps=16, random_steps=8, encoder="small", features=4, hidden=6, std_steps=100,
    lr=1e-2,
)  # fmt: skip


class Small(Cartpole):
    """Its episodes last five steps, and its images have 48 pixels a side."""

    episode_steps = 5
    cameras = {"pixels": Camera("side", width=48, height=48)}


def _env(rows: int = 2) -> BranchedEnv:
    return make_env(Small(), rows, 0, seed=0, threads=1, obs="pixels")


def _algo(cfg: DrqV2Cfg, env: BranchedEnv) -> DrqV2:
    algo = cfg.build(Context(env, ("pixels",)))
    assert isinstance(algo, DrqV2)
    return algo


def test_a_shift_is_bilinear_sampling_of_the_padded_image() -> None:
    """By the sampling grid of the paper's description: pad by repeating edges, shift by whole pixels, crop."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 3, 12, 12), generator=generator, dtype=torch.uint8)
    offset = torch.tensor([[0, 0], [8, 8], [4, 4], [0, 8], [3, 5], [7, 2]])
    found = shifted(images, offset, 4)
    assert found.dtype == torch.uint8 and torch.equal(found[2], images[2])
    padded = F.pad(images.float(), (4, 4, 4, 4), "replicate")  # (6, 3, 20, 20)
    pixel = torch.arange(12) + 0.5
    down = (pixel + offset[:, :1]) / 20 * 2 - 1  # (6, 12) in [-1, 1]
    right = (pixel + offset[:, 1:]) / 20 * 2 - 1
    grid = torch.stack((right[:, None, :].expand(6, 12, 12), down[:, :, None].expand(6, 12, 12)), dim=-1)
    sampled = F.grid_sample(padded, grid, mode="bilinear", align_corners=False)
    assert torch.allclose(found.float(), sampled, atol=1e-2)
    assert shifted(images, offset, 0) is images


def test_noise_is_clipped_and_actions_are_bounded_with_a_gradient() -> None:
    mean = torch.tensor([0.0, 0.9, -0.9], requires_grad=True)
    noise = torch.tensor([0.5, 0.5, -2.0])
    action = explored(mean, noise, 0.3)
    assert action.tolist() == pytest.approx([0.3, 1.0, -1.0], abs=2e-6)
    assert action.abs().max() < 1.0
    action.sum().backward()
    assert mean.grad is not None and mean.grad.tolist() == [1.0, 1.0, 1.0]
    assert explored(mean, noise)[0].item() == 0.5


def test_the_buffer_has_what_the_policy_saw() -> None:
    """Stacks of the ring are the environment's, over the ends of episodes, final observations included."""
    env = _env()
    algo = _algo(TINY, env)
    seen = watched(env, "pixels")
    algo.collect(env)  # 8 steps, with a final observation after the fifth
    batch = algo.buffer.batch(algo.buffer.starts(1), 1, 0.9)
    # Looks 0 to 4, the final one, then 6 to 8. A row's slots are in the order of its looks; the last has no end yet.
    before = [0, 1, 2, 3, 4, 6, 7]
    after = [1, 2, 3, 4, 5, 7, 8]
    assert len(batch.reward) == 2 * len(before) and len(seen) == 9
    assert torch.equal(batch.sources["pixels"], torch.cat([seen[look] for look in before]))
    assert torch.equal(batch.next_sources["pixels"], torch.cat([seen[look] for look in after]))
    assert batch.discount.tolist() == pytest.approx([0.9] * 14)


class Reference:
    """DrQ-v2's update by the paper's formulas: plain tensors, written-out layers, its own Adam."""

    def __init__(self, algo: DrqV2):
        self.lr, self.rate, self.clip = algo.cfg.lr, algo.cfg.target_rate, algo.cfg.noise_clip
        names = ("encoder", "actor", "critic", "target_critic")
        self.weights = {
            name: {key: value.detach().clone() for key, value in algo.modules[name].named_parameters()}
            for name in names
        }
        self.moments: dict[str, list[Tensor]] = {}
        self.count = 0

    def encode(self, images: Tensor, weights: dict[str, Tensor]) -> Tensor:
        x = F.avg_pool2d(images.float(), 2) / 255 - 0.5
        for layer, stride in ((0, 2), (2, 2), (4, 1)):
            key = f"convolutions.pixels.{layer}"
            x = torch.relu(F.conv2d(x, weights[f"{key}.weight"], weights[f"{key}.bias"], stride))
        return x.flatten(1)

    @staticmethod
    def linear(x: Tensor, weights: dict[str, Tensor], key: str) -> Tensor:
        return x @ weights[f"{key}.weight"].T + weights[f"{key}.bias"]

    def project(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        x = self.linear(x, weights, "projection.0")
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        return torch.tanh(x * weights["projection.1.weight"] + weights["projection.1.bias"])

    def head(self, x: Tensor, weights: dict[str, Tensor], key: str) -> Tensor:
        x = torch.relu(self.linear(x, weights, f"{key}.0"))
        x = torch.relu(self.linear(x, weights, f"{key}.2"))
        return self.linear(x, weights, f"{key}.4")

    def act(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return torch.tanh(self.head(self.project(x, weights), weights, "head"))

    def least(self, x: Tensor, action: Tensor, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.cat((self.project(x, weights), action), 1)
        first, second = (self.head(x, weights, key)[:, 0] for key in ("first", "second"))
        return first, second, torch.minimum(first, second)

    def adam(self, part: str, loss: Tensor, weights: dict[str, Tensor]) -> None:
        for key, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
            mean, square = self.moments.setdefault(f"{part}.{key}", [torch.zeros_like(gradient)] * 2)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            self.moments[f"{part}.{key}"] = [mean, square]
            step = mean / (1 - 0.9**self.count) / ((square / (1 - 0.999**self.count)).sqrt() + 1e-8)
            self.weights[part][key] = (weights[key] - self.lr * step).detach()

    def update(self, sample: dict[str, Tensor], noise: Tensor, next_noise: Tensor) -> list[float]:
        """Losses of actor and critic, and the mean target."""
        self.count += 1
        encoder, critic = (
            {k: v.requires_grad_() for k, v in self.weights[part].items()} for part in ("encoder", "critic")
        )
        with torch.no_grad():
            ahead = self.encode(sample["next_images"], encoder)
            action = self.act(ahead, self.weights["actor"]) + next_noise.clamp(-self.clip, self.clip)
            value = self.least(ahead, action.clamp(-1 + 1e-6, 1 - 1e-6), self.weights["target_critic"])[2]
            target = sample["reward"] + sample["discount"] * value
        encoded = self.encode(sample["images"], encoder)
        first, second, _ = self.least(encoded, sample["action"], critic)
        critic_loss = F.mse_loss(first, target) + F.mse_loss(second, target)
        loss = critic_loss.detach().clone()
        both = {f"encoder.{k}": v for k, v in encoder.items()} | {f"critic.{k}": v for k, v in critic.items()}
        gradients = torch.autograd.grad(critic_loss, list(both.values()))
        for part, weights in (("encoder", encoder), ("critic", critic)):
            mine = [g for k, g in zip(both, gradients, strict=True) if k.startswith(f"{part}.")]
            surrogate = sum((g.detach() * w).sum() for g, w in zip(mine, weights.values(), strict=True))
            assert isinstance(surrogate, Tensor)
            self.adam(part, surrogate, weights)
        actor = {k: v.requires_grad_() for k, v in self.weights["actor"].items()}
        fixed = encoded.detach()  # by the encoder before its step
        free = self.act(fixed, actor) + noise.clamp(-self.clip, self.clip)
        inside = free + (free.clamp(-1 + 1e-6, 1 - 1e-6) - free).detach()
        actor_loss = -self.least(fixed, inside, self.weights["critic"])[2].mean()
        self.adam("actor", actor_loss, actor)
        for key, old in self.weights["target_critic"].items():
            self.weights["target_critic"][key] = (1 - self.rate) * old + self.rate * self.weights["critic"][
                key
            ].detach()
        return [actor_loss.item(), loss.item(), target.mean().item()]


def test_updates_are_those_of_the_papers_formulas() -> None:
    env = _env()
    algo = _algo(TINY, env)
    for _ in range(2):
        algo.collect(env)
    reference, cfg = Reference(algo), TINY
    starts = algo.buffer.starts(cfg.n_step)
    std = 1.0 - 0.9 * 32 / 100  # after 32 of 100 steps, from 1 to 0.1
    for seed in range(4):
        batch = algo.buffer.batch(starts[torch.arange(5) * 3 + seed], cfg.n_step, cfg.gamma)
        found, *skipped = algo._update_once(batch, torch.Generator().manual_seed(seed))
        draws = torch.Generator().manual_seed(seed)
        offsets = [torch.randint(9, (5, 2), generator=draws) for _ in range(2)]
        noise, next_noise = (std * torch.randn(5, 1, generator=draws) for _ in range(2))
        padded = [F.pad(x["pixels"].float(), (4, 4, 4, 4), "replicate") for x in (batch.sources, batch.next_sources)]
        images, next_images = (
            torch.stack([x[:, a : a + 48, b : b + 48] for x, (a, b) in zip(each, offset.tolist(), strict=True)])
            for each, offset in zip(padded, offsets, strict=True)
        )
        sample = {"images": images, "next_images": next_images, "action": batch.action}
        sample |= {"reward": batch.reward, "discount": batch.discount}
        assert found.tolist() == pytest.approx(reference.update(sample, noise, next_noise), rel=1e-3, abs=1e-4)
        assert skipped == [False, False]
    for name, weights in reference.weights.items():
        for key, value in algo.modules[name].named_parameters():
            assert torch.allclose(value, weights[key], atol=2e-3), (name, key)  # four steps of 1e-2


def test_updates_are_counted_by_steps_and_begin_when_the_buffer_has_enough() -> None:
    env = _env(rows=1)
    algo = _algo(replace(TINY, steps=5, seed_steps=8, updates_per_step=0.3), env)
    updates = [algo.update(algo.collect(env))["Train/updates"] for _ in range(4)]
    assert updates == [0.0, 2.0, 1.0, 2.0]  # 1.5 are due after 5 steps, not made; 3, 4.5 and 6 after 10, 15 and 20
    again = _algo(algo.cfg, env)
    again.load_state_dict(algo.state_dict())
    assert again.made == 20 and again.iteration == 4
    resumed = [again.update(again.collect(env))["Train/updates"] for _ in range(2)]
    assert resumed == [0.0, 2.0]  # it fills its buffer again; 7.5 and 9 are due after 25 and 30


def test_the_encoder_learns_from_the_critic_alone() -> None:
    env = _env()
    algo = _algo(TINY, env)
    for _ in range(2):
        algo.collect(env)
    before = [p.detach().clone() for p in (*algo.encoder.parameters(), *algo.critic.parameters())]
    encoded = algo.encoder(algo.buffer.batch(algo.buffer.starts(3)[:5], 3, 0.9).sources)
    actor = [p.detach().clone() for p in algo.actor.parameters()]
    algo._update_actor(encoded.detach(), torch.zeros(5, 1))
    after = (*algo.encoder.parameters(), *algo.critic.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert any(not torch.equal(old, new) for old, new in zip(actor, algo.actor.parameters(), strict=True))


def test_what_it_can_not_learn_from_is_refused_in_a_line() -> None:
    state = make_env(make_task("cartpole"), 2, 0, seed=0, threads=1)
    with pytest.raises(SdpgError, match=r"drqv2 learns from colour images alone, and 'state' is something else: --obs"):
        DrqV2Cfg().build(Context(state))
    with pytest.raises(SdpgError, match=r"algo\.buffer 13 is too small for 2 worlds: give 14 or more"):
        env = _env()
        _algo(replace(TINY, buffer=13), env).collect(env)


def test_memory_counts_the_buffer_and_says_what_to_lower() -> None:
    """A million single frames of 84 x 84 colours are 21 GB, whatever the number of worlds and the stack."""
    need = DrqV2Cfg().memory(Shapes(32, 1, 4, 1, (ImageShape(9, 84, 84, False),)))
    assert 21.1e9 < need.fixed["replay buffer"] < 21.3e9
    plan = make_plan(replace(resolve("cartpole", obs="pixels", algorithm="drqv2"), memory_gb=1.0))
    with pytest.raises(SdpgError, match=r"give a smaller --algo\.buffer, or set --memory-gb"):
        plan.require_room()
