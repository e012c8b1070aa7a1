"""A second algorithm, as a third party would write it: random search in the weights of a linear policy.

Every nominal world follows the policy with weights of its own, W + std * noise; weights move towards the noise of those
that earned more. No critic, no gradient, no branches. It shows that the package knows algorithms by their contract
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sdpg.algos.api import AlgoCfg, Algorithm, Carry, Context, Need, Policy, Shapes
from sdpg.env import BranchedEnv
from sdpg.rng import RowRng
from sdpg.types import Metrics


@dataclass(frozen=True)
class RandomSearchCfg(AlgoCfg):
    """Random search in the weights of a linear policy."""

    name = "random_search"

    steps: int = 32
    """Control steps of an iteration."""
    std: float = 0.1
    """Of the noise on the weights."""
    lr: float = 0.05

    def rules(self) -> dict[str, bool]:
        return {"algo.steps must be at least 1": self.steps >= 1, "algo.std must be positive": self.std > 0}

    def memory(self, shapes: Shapes) -> Need:
        return Need(per_nominal={"noise on the weights": 4 * 2 * shapes.state * shapes.action})

    def build(self, context: Context) -> Algorithm:
        return RandomSearch(self, context)


class Linear(Policy):
    def __init__(self, source: str, inputs: int, outputs: int):
        super().__init__()
        self.source = source
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return torch.tanh(sources[self.source].flatten(1).float() @ self.weight.T), carry


class RandomSearch(Algorithm):
    def __init__(self, cfg: RandomSearchCfg, context: Context):
        self.cfg, self.seed, source = cfg, context.seed, context.sources[0]
        seen = context.env.observe().sources[source].flatten(1)  # (N, D)
        self.linear = Linear(source, seen.shape[1], context.env.task.action_size)

    @torch.no_grad()
    def collect(self, env: BranchedEnv) -> tuple[Tensor, Tensor]:
        noise = RowRng(self.seed, env.rows, stream=(self.iteration << 8) + 5).normal(*self.linear.weight.shape)
        weight = self.linear.weight + self.cfg.std * noise  # (N, A, D)
        total = torch.zeros(env.num_nominal)
        for _ in range(self.cfg.steps):
            seen = env.observe().sources[self.linear.source].flatten(1).float()  # (N, D)
            step = env.step(torch.tanh(torch.einsum("nad,nd->na", weight, seen))[:, None])
            env.restart(step)
            total += step.reward[:, 0]
        return noise, total

    @torch.no_grad()
    def update(self, batch: tuple[Tensor, Tensor]) -> Metrics:
        noise, total = batch
        score = (total - total.mean()) / (total.std() + 1e-6)  # (N,)
        self.linear.weight += self.cfg.lr * torch.einsum("n,nad->ad", score, noise) / len(score)
        self.iteration += 1
        return {"Policy/weight": self.linear.weight.abs().mean().item()}

    def policy(self) -> Policy:
        return self.linear

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "linear": self.linear.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration = int(state["iteration"])
        self.linear.load_state_dict(state["linear"])
