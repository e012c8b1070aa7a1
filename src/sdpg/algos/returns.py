"""Returns of a segment: pure functions of (T, N, K) tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def lambda_returns(reward: Tensor, next_value: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """TD(lambda) return-to-go, started anew where `done`.

        J_t = r_t + gamma * ( v_{t+1}                                   if done_t
                              (1 - lambda) v_{t+1} + lambda J_{t+1}      otherwise )

    which is the paper's (1 - lambda) sum_k lambda^(k-1) J_t^k + lambda^(n-1) J_t^n, J_t^k the k-step return, with the
    exponents for which the weights sum to one. `next_value` is 0 where terminated. lambda = 1: no eligibility trace.
    (T, N, K) each; the last step of a segment counts as done whatever the flag says.
    """
    trace = torch.where(done, 0.0, lam)  # (T, N, K) weight of what follows the next step
    returns = torch.empty_like(reward)
    following = next_value[-1]
    for t in reversed(range(reward.shape[0])):
        following = reward[t] + gamma * torch.lerp(next_value[t], following, trace[t] if t < len(reward) - 1 else 0.0)
        returns[t] = following
    return returns


def segment_returns(reward: Tensor, next_value: Tensor, done: Tensor, gamma: float) -> Tensor:
    """One discounted return per stretch between restarts, the same at each of its steps (no causality).

    An auxiliary that restarted at s, where it became its nominal, is compared with what the nominal earned from s on:

        J^j = J^0 + (J_s^j - J_s^0)        J^0 the nominal's return of its whole stretch, J_s a return-to-go

    (T, N, K) each, the nominal first. It never restarts alone, so at s its own stretch has not ended.
    """
    to_go = lambda_returns(reward, next_value, done, gamma, lam=1.0)
    difference, nominal = to_go - to_go[..., :1], to_go[..., :1].clone()
    for t in range(1, reward.shape[0]):
        difference[t] = torch.where(done[t - 1], difference[t], difference[t - 1])
        nominal[t] = torch.where(done[t - 1, :, :1], nominal[t], nominal[t - 1])
    return nominal + difference


def valid_returns(failed: Tensor, done: Tensor) -> Tensor:
    """(T, N, K) bool: whether the return at t can be believed: no step fails from t to the end of its stretch."""
    good = ~failed
    for t in reversed(range(failed.shape[0] - 1)):
        good[t] &= done[t] | good[t + 1]
    return good
