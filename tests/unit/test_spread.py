"""Interquartile means and their intervals, by hand."""

from __future__ import annotations

import pytest

from sdpg.report.spread import interquartile_mean, interval


def test_the_middle_half_of_eight_values() -> None:
    # 1 2 | 3 4 5 6 | 7 100: an outlier has no say
    assert interquartile_mean([7, 1, 3, 100, 5, 2, 6, 4]) == pytest.approx(4.5)


def test_of_three_values_the_outer_ones_count_in_part() -> None:
    # thirds of the quantiles: the middle one lies inside whole (1/3), of the others 1/3 - 1/4 = 1/12 each
    assert interquartile_mean([0.0, 3.0, 12.0]) == pytest.approx((0 / 12 + 3 / 3 + 12 / 12) / (1 / 2))


def test_a_single_value_is_its_own_mean_and_interval() -> None:
    assert interquartile_mean([5.0]) == 5.0
    assert interval([5.0]) == (5.0, 5.0)


def test_an_interval_holds_the_mean_and_shrinks_with_the_number_of_seeds() -> None:
    few, many = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0] * 16
    low, high = interval(few)
    assert low < interquartile_mean(few) < high
    assert interval(many)[1] - interval(many)[0] < 0.5 * (high - low)
    assert interval(few) == interval(few)  # the same draws again
