"""Means, intervals, trends and correlations on data for which they are known."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

from fixtures.simulations import coverage
from slim_rl.analysis import statistics
from slim_rl.analysis.statistics import (
    correlation,
    dose_response,
    estimate,
    paired_difference,
    paired_test,
    pooled,
    regression,
    step_estimates,
    trend,
)


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
    constant = table(np.ones(50), y=np.arange(50.0))
    assert np.isnan(correlation(constant, "x", "y").mean)
    assert np.isnan(correlation(constant, "x", "y", within=["game_id"]).mean)
    assert regression(constant, "y", ["x"]).left_out == ("x",)
    assert np.isnan(paired_test(constant, constant, "x").t_p)
    assert np.isnan(paired_difference(table([1.0, 2], ["a", "b"]), table([1.0, 2], ["c", "d"]), "x").mean)
    alone = trend(table([0.5], step=[0]), "x")
    assert np.isnan(alone.slope.mean) and np.isnan(alone.rank.mean)
    assert "too few data" in estimate(table([0.5]), "x").text()


def test_a_paired_difference_looks_at_the_games_of_both():
    a, b = table(np.linspace(0.1, 1, 50)), table(np.linspace(0, 0.9, 50))
    difference = paired_difference(pd.concat([a, table([100.0], ["elsewhere"])]), b, "x")
    assert difference.games == 50
    assert [difference.mean, difference.low, difference.high] == pytest.approx([0.1] * 3)


def test_a_paired_test_sees_what_the_noise_of_the_boards_would_hide():
    rng = np.random.default_rng(0)
    boards = rng.normal(0, 10, 200)
    a, b = table(boards + 0.1 + rng.normal(0, 0.3, 200)), table(boards)
    found = paired_test(a, b, "x")
    assert found.t_p < 0.01 and found.wilcoxon_p < 0.01
    assert stats.ttest_ind(a["x"], b["x"]).pvalue > 0.5


def test_a_trend_is_slope_and_rank_over_the_steps():
    steps = np.repeat(np.arange(100), 20)
    noise = np.random.default_rng(0).normal(scale=0.1, size=len(steps))
    rising = trend(table(steps / 100 + noise, step=steps), "x")
    assert rising.slope.low < 0.01 < rising.slope.high
    assert rising.slope.high - rising.slope.low < 0.001
    assert rising.rank.mean > 0.98 and rising.rank.low > 0.9
    flat = trend(table(noise, step=steps), "x")
    assert flat.slope.low < 0 < flat.slope.high
    assert flat.rank.low < 0 < flat.rank.high


def test_every_step_has_its_mean_over_the_steps_around_it():
    episodes = table([0.0, 1, 2, 3, 4, 5], games=["a", "b"] * 3, step=[0, 0, 1, 1, 2, 2])
    alone, around = (step_estimates(episodes, ["x"], window) for window in (1, 3))
    assert list(alone["x"]) == [0.5, 2.5, 4.5]
    assert list(around["x"]) == [1.5, 2.5, 3.5]


def test_within_a_game_easy_boards_explain_nothing():
    """Boards on which little is unknown earn more and are asked about less; within a board asking pays."""
    rng = np.random.default_rng(0)
    ease = np.repeat(rng.normal(0, 3, 100), 16)
    asked = rng.normal(size=1600)
    episodes = table(
        asked - ease, games=np.repeat(np.arange(100), 16), y=0.5 * asked + ease + rng.normal(size=1600)
    )
    assert correlation(episodes, "x", "y").mean < -0.7
    within = correlation(episodes, "x", "y", within=["game_id"])
    assert within.low < 0.5 / np.sqrt(1.25) < within.high and within.low > 0.35


def test_correlations_are_those_of_scipy():
    rng = np.random.default_rng(0)
    x = rng.exponential(size=500)
    episodes = table(x, y=np.exp(x) + rng.normal(size=500))
    assert correlation(episodes, "x", "y").mean == pytest.approx(stats.pearsonr(x, episodes["y"]).statistic)
    spearman = correlation(episodes, "x", "y", ranks=True)
    assert spearman.mean == pytest.approx(stats.spearmanr(x, episodes["y"]).statistic)
    assert spearman.low < spearman.mean < spearman.high


def test_a_regression_holds_fixed_what_could_explain_it_away():
    """Reward depends on the own view alone; whoever sees less asks more."""
    rng = np.random.default_rng(0)
    own_view = rng.normal(size=1000)
    questions = -own_view + rng.normal(size=1000)
    episodes = table(
        own_view + rng.normal(size=1000), questions=questions, own_view=own_view, turns=2 * questions + 2
    )
    alone = regression(episodes, "x", ["questions"])
    assert alone.coefficients[0].value.high < -0.3
    fit = regression(episodes, "x", ["questions", "own_view", "turns"])
    assert [c.name for c in fit.coefficients] == ["questions", "own_view"]
    assert fit.left_out == ("turns",)
    assert fit.coefficients[0].value.low < 0 < fit.coefficients[0].value.high
    theirs = sm.OLS(episodes["x"], sm.add_constant(episodes[["questions", "own_view"]])).fit()
    assert fit.coefficients[1].value.mean == pytest.approx(theirs.params["own_view"])


def test_a_dose_that_few_took_is_not_shown():
    episodes = table(np.arange(21.0), dose=[0] * 10 + [1] * 10 + [2])
    curve = dose_response(episodes, "x", "dose", least=10)
    assert list(curve["dose"]) == [0, 1] and list(curve["mean"]) == [4.5, 14.5]


def test_runs_are_pooled_by_what_lies_between_them():
    found = pooled([0.98, 0.99, 1.0])
    low, high = stats.t.interval(0.95, 2, 0.99, 0.01 / np.sqrt(3))
    assert (found.low, found.high, found.games) == pytest.approx((low, high, 3))
    assert np.isnan(pooled([0.99]).low)


@pytest.mark.parametrize("what", ["mean", "share", "within-game correlation", "slope"])
def test_intervals_deserve_their_name(what):
    """200 runs with a known truth: the 95% intervals cover it in 92 to 98 % of them."""
    assert 0.92 <= coverage(what, runs=200, seed=0) <= 0.98
