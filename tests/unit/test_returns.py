"""Returns by hand. gamma = 0.5 and lambda = 0.5 keep the arithmetic short; (T,) stands for (T, 1, 1)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sdpg.algos.returns import lambda_returns, segment_returns, valid_returns


def _column(*values: float | bool) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1)


def _list(x: Tensor) -> list[float]:
    return x.flatten().tolist()


REWARD, VALUE = _column(1.0, 2.0, 4.0), _column(8.0, 16.0, 32.0)  # VALUE[t] is v_{t+1}
GOES_ON, CUT = _column(False, False, True), _column(False, True, True)


def test_three_steps() -> None:
    # J_2 = 4 + 0.5 * 32                        = 20
    # J_1 = 2 + 0.5 * (0.5 * 16 + 0.5 * 20)     = 11
    # J_0 = 1 + 0.5 * (0.5 * 8 + 0.5 * 11)      = 5.75
    assert _list(lambda_returns(REWARD, VALUE, GOES_ON, 0.5, 0.5)) == [5.75, 11.0, 20.0]


def test_cut_in_the_middle_by_the_time_limit_bootstraps() -> None:
    # J_2 = 4 + 0.5 * 32                        = 20
    # J_1 = 2 + 0.5 * 16                        = 10     truncated: the value of the state before the restart
    # J_0 = 1 + 0.5 * (0.5 * 8 + 0.5 * 10)      = 5.5
    assert _list(lambda_returns(REWARD, VALUE, CUT, 0.5, 0.5)) == [5.5, 10.0, 20.0]


def test_cut_in_the_middle_by_a_termination_does_not_bootstrap() -> None:
    # J_1 = 2 + 0.5 * 0                         = 2      terminated: next_value is 0
    # J_0 = 1 + 0.5 * (0.5 * 8 + 0.5 * 2)       = 3.5
    value = _column(8.0, 0.0, 32.0)
    assert _list(lambda_returns(REWARD, value, CUT, 0.5, 0.5)) == [3.5, 2.0, 20.0]


def test_lambda_zero_looks_one_step_ahead() -> None:
    # r_t + 0.5 v_{t+1} = 1 + 4, 2 + 8, 4 + 16
    assert _list(lambda_returns(REWARD, VALUE, GOES_ON, 0.5, 0.0)) == [5.0, 10.0, 20.0]


def test_lambda_one_bootstraps_at_the_end_only() -> None:
    # J_2 = 4 + 16 = 20;  J_1 = 2 + 10 = 12;  J_0 = 1 + 6 = 7
    assert _list(lambda_returns(REWARD, VALUE, GOES_ON, 0.5, 1.0)) == [7.0, 12.0, 20.0]


def test_the_last_step_counts_as_done_whatever_the_flag_says() -> None:
    for lam in (0.0, 0.5, 1.0):
        open_end = lambda_returns(REWARD, VALUE, _column(False, False, False), 0.5, lam)
        assert _list(open_end) == _list(lambda_returns(REWARD, VALUE, GOES_ON, 0.5, lam))


def _forward_view(reward: Tensor, value: Tensor, done: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """By definition, one branch (T,): (1 - lam) sum_{k<n} lam^(k-1) J^k + lam^(n-1) J^n; and the weights' sum."""
    steps = len(reward)
    out, weights = torch.zeros(steps, dtype=reward.dtype), torch.zeros(steps, dtype=reward.dtype)
    for t in range(steps):
        end = next(i for i in range(t, steps) if done[i] or i == steps - 1)  # the last step of the stretch
        n = end - t + 1
        for k in range(1, n + 1):
            k_step = sum(gamma**i * reward[t + i] for i in range(k)) + gamma**k * value[t + k - 1]
            weight = lam ** (n - 1) if k == n else (1 - lam) * lam ** (k - 1)
            out[t] += weight * k_step
            weights[t] += weight
    return out, weights


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
def test_equals_the_forward_view_whose_weights_sum_to_one(lam: float) -> None:
    torch.manual_seed(0)
    reward, value = torch.randn(2, 9, 2, 3)
    done = torch.rand(9, 2, 3) < 0.25
    ours = lambda_returns(reward, value, done, 0.9, lam)
    for n in range(2):
        for k in range(3):
            expected, weights = _forward_view(reward[:, n, k], value[:, n, k], done[:, n, k], 0.9, lam)
            torch.testing.assert_close(ours[:, n, k], expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(weights, torch.ones_like(weights))


def test_one_return_per_stretch() -> None:
    # stretch 0..1: 1 + 0.5 * (2 + 0.5 * 16) = 6, at both of its steps;  stretch 2: 4 + 16 = 20
    assert _list(segment_returns(REWARD, VALUE, CUT, 0.5)) == [6.0, 6.0, 20.0]
    # no cut: 1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 32)) = 7 throughout
    assert _list(segment_returns(REWARD, VALUE, GOES_ON, 0.5)) == [7.0, 7.0, 7.0]


def test_one_return_per_stretch_is_compared_with_the_nominals_of_the_same_stretch() -> None:
    # Two rows with the same numbers, nominal and auxiliary. After step 1 the auxiliary terminates; in row 1 the
    # nominal's time is up as well, and both begin anew.
    #
    # return-to-go of       t = 3              2               1               0
    #   nominal, row 0:     8 + 0.5 * 16 = 16  4 + 0.5 * 16 = 12  2 + 0.5 * 12 = 8   1 + 0.5 * 8 = 5
    #   nominal, row 1:     16                 12              2 + 0.5 * 20 = 12  1 + 0.5 * 12 = 7
    #   auxiliary, both:    6 + 0.5 * 16 = 14  4 + 0.5 * 14 = 11  0                  1 + 0.5 * 0 = 1
    #
    # differences            steps 0, 1      steps 2, 3
    #   row 0:               1 - 5 = -4      11 - 12 = -1, not 11 - 5 = 6: from 2 on it was worse than its nominal
    #   row 1:               1 - 7 = -6      11 - 12 = -1
    reward = torch.tensor([[1.0, 1.0], [2.0, 0.0], [4.0, 4.0], [8.0, 6.0]])[:, None].repeat(1, 2, 1)  # (T, N, K)
    value = torch.tensor([[0.0, 0.0], [20.0, 0.0], [0.0, 0.0], [16.0, 16.0]])[:, None].repeat(1, 2, 1)
    done = torch.zeros(4, 2, 2, dtype=torch.bool)
    done[1, :, 1] = done[1, 1, 0] = done[3] = True
    returns = segment_returns(reward, value, done, 0.5)
    assert (returns[..., 1] - returns[..., 0]).T.tolist() == [[-4.0, -4.0, -1.0, -1.0], [-6.0, -6.0, -1.0, -1.0]]
    assert returns[..., 0].T.tolist() == [[5.0, 5.0, 5.0, 5.0], [7.0, 7.0, 12.0, 12.0]]


def test_branches_do_not_mix() -> None:
    torch.manual_seed(1)
    reward, value = torch.randn(2, 6, 2, 4)
    done = torch.rand(6, 2, 4) < 0.3
    for function in (lambda r, v, d: lambda_returns(r, v, d, 0.9, 0.8), lambda r, v, d: segment_returns(r, v, d, 0.9)):
        whole = function(reward, value, done)
        part = function(*(x[:, 1:, [0, 2]] for x in (reward, value, done)))
        assert torch.equal(whole[:, 1:, [0, 2]], part)


def test_a_failure_spoils_what_led_to_it_and_nothing_after() -> None:
    # steps            0      1      2      3      4
    failed = _column(False, False, True, False, False)
    done = _column(True, False, True, False, True)
    #  0: its stretch ended before; 1: leads to the failure; 2: the failure; 3, 4: after the restart
    assert _list(valid_returns(failed, done)) == [True, False, False, True, True]
    assert _list(failed) == [False, False, True, False, False]  # the argument is left alone
