"""Trajectory search beyond its first step: what makes SDPG guided policy search (the paper's unified view).

Policy gradients improve the actions of a segment once, A + d(A), and clone the policy from that. Guided policy search
goes on: the segment is played again from its start with the improved actions, new branches say where these should go,
and so on. Nobody asks the policy and nothing is rendered: what it saw in the first rollout is what it is taught for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from sdpg.algos.returns import valid_returns
from sdpg.algos.sdpg import Sdpg, exploration_noise, squash
from sdpg.env import BranchedEnv
from sdpg.episodes import Episodes
from sdpg.types import Rollout


def search(algo: Sdpg, env: BranchedEnv, start: Mapping[str, Tensor], rollout: Rollout) -> Rollout:
    """`rollout`, with where further steps of search lead its means. The environment goes on from where it was."""
    end, mean = env.state_dict(), rollout.mean + _direction(algo, rollout)
    # Episodes that are played again do not count, and a record of what led to a failure knows no going back.
    kept = env.on_step, env.episodes
    env.on_step, env.episodes = None, Episodes()
    for again in range(1, algo.cfg.search_steps):
        mean, _ = algo._bounded(mean, rollout.log_std)
        env.load_state_dict(start)
        played, same = _play(algo, env, mean, rollout, again)
        mean = mean + torch.where(same[..., None], _direction(algo, played), 0.0)
    env.load_state_dict(end)
    env.on_step, env.episodes = kept
    return replace(rollout, searched=mean)


def _direction(algo: Sdpg, rollout: Rollout) -> Tensor:
    """Where the actions of a rollout should go: (T, N, A)."""
    good = valid_returns(rollout.failed, rollout.done) if rollout.failed.any() else None
    return algo.direction(rollout, algo._returns(rollout)[0], good)[0]


def _play(algo: Sdpg, env: BranchedEnv, mean: Tensor, first: Rollout, again: int) -> tuple[Rollout, Tensor]:
    """The segment with means (T, N, A) and new noise, as far as it is still the same episode, (T, N) bool: once the
    nominal is restarted, here or in the first rollout, actions belong to other states than those that were seen."""
    cfg, (t, _, k, a) = algo.cfg, first.noise.shape
    noise = exploration_noise(algo.seed, algo.iteration, env.rows, (t, k - 1, a), cfg.antithetic, again)
    same = torch.ones_like(first.done[..., 0])
    steps: list[tuple[Tensor, ...]] = []
    for i in range(t):
        state = env.task.observe(env.physics(), env.memory)["state"].clone()  # `env.observe` would look, too
        action = torch.addcmul(mean[i][:, None], first.log_std[i].exp()[:, None], noise[i])  # (N, K, A)
        step = env.step(squash(action, cfg.mean_bound))
        done = env.restart(step)
        if i + 1 < t:
            same[i + 1] = same[i] & ~done[:, 0] & ~first.done[i, :, 0]
        steps.append((state, step.reward * cfg.reward_scale, step.state, step.terminated, done, step.failed))
    state, reward, next_state, terminated, done, failed = map(torch.stack, zip(*steps, strict=True))
    done[-1] = True
    played = replace(
        first, state=state, mean=mean, noise=noise, reward=reward, next_state=next_state, terminated=terminated,
        done=done, failed=failed,
    )  # fmt: skip
    return played, same
