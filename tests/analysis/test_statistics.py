"""Means, intervals, trends and correlations on data for which they are known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fixtures.simulations import coverage
from slim_rl.analysis import statistics
from slim_rl.analysis.statistics import estimate, paired_difference, pooled, step_estimates


def table(values, games=None, **columns):
    return pd.DataFrame({"game_id": range(len(values)) if games is None else games, "x": values, **columns})


def test_the_interval_is_that_of_scipy():
    values = np.random.default_rng(1).gamma(2, size=300)
    found = estimate(table(values), "x")
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2)
    assert found.mean == pytest.approx(values.mean())
    assert found.se == pytest.approx(theirs.standard_error, rel=0.05)
    assert [found.low, found.high] == pytest.approx(list(theirs.confidence_interval), abs=0.1 * found.se)


def test_samples_of_the_same_game_add_no_certainty():
    values = np.random.default_rng(1).normal(size=100)
    once = estimate(table(values), "x")
    eightfold = estimate(table(np.repeat(values, 8), np.repeat(np.arange(100), 8)), "x")
    assert eightfold == pytest.approx(once)


def test_very_many_games_have_the_interval_that_they_should():
    values = np.random.default_rng(1).normal(size=3 * statistics.MAX_UNITS)
    found = estimate(table(values), "x")
    assert found.games == len(values)
    assert found.se == pytest.approx(1 / np.sqrt(len(values)), rel=0.05)


def test_a_share_weighs_every_question_alike():
    episodes = table([1, 0, 9], questions=[1, 1, 10])
    assert estimate(episodes, "x", "questions").mean == pytest.approx(10 / 12)


def test_what_cannot_be_known_is_not_a_number():
    assert np.isnan(estimate(table([0.5]), "x").se)
    assert np.isnan(estimate(table([0.0, 0.0], questions=[0, 0]), "x", "questions").mean)
    assert np.isnan(paired_difference(table([1.0, 2], ["a", "b"]), table([1.0, 2], ["c", "d"]), "x").mean)
    assert "too few data" in estimate(table([0.5]), "x").text()


def test_a_paired_difference_looks_at_the_games_of_both_and_not_at_their_noise():
    a, b = table(np.linspace(0.1, 1, 50)), table(np.linspace(0, 0.9, 50))
    difference = paired_difference(pd.concat([a, table([100.0], ["elsewhere"])]), b, "x")
    assert difference.games == 50
    assert [difference.mean, difference.low, difference.high] == pytest.approx([0.1] * 3)
    rng = np.random.default_rng(0)
    boards = rng.normal(0, 10, 200)
    a, b = table(boards + 0.1 + rng.normal(0, 0.3, 200)), table(boards)
    assert paired_difference(a, b, "x").low > 0
    assert stats.ttest_ind(a["x"], b["x"]).pvalue > 0.5


def test_every_step_has_its_mean_over_the_steps_around_it():
    episodes = table([0.0, 1, 2, 3, 4, 5], games=["a", "b"] * 3, step=[0, 0, 1, 1, 2, 2])
    alone, around = (step_estimates(episodes, ["x"], window) for window in (1, 3))
    assert list(alone["x"]) == [0.5, 2.5, 4.5]
    assert list(around["x"]) == [1.5, 2.5, 3.5]


def test_runs_are_pooled_by_what_lies_between_them():
    found = pooled([0.98, 0.99, 1.0])
    low, high = stats.t.interval(0.95, 2, 0.99, 0.01 / np.sqrt(3))
    assert (found.low, found.high, found.games) == pytest.approx((low, high, 3))
    assert np.isnan(pooled([0.99]).low)


@pytest.mark.parametrize("what", ["mean", "share"])
def test_intervals_deserve_their_name(what):
    """200 runs with a known truth: the 95% intervals cover it in 92 to 98 % of them."""
    assert 0.92 <= coverage(what, runs=200, seed=0) <= 0.98
