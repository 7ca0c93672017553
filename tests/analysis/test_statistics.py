"""Means, intervals and differences on data of which they are known."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from slim_rl.analysis.statistics import estimate, paired_difference, trend


def table(values, games=None, **columns):
    return pd.DataFrame({"game_id": range(len(values)) if games is None else games, "x": values, **columns})


def test_the_interval_is_that_of_scipy():
    values = np.random.default_rng(1).gamma(2, size=300)
    found = estimate(table(values), "x")
    theirs = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2)
    assert found.mean == pytest.approx(values.mean())
    assert found.se == pytest.approx(theirs.standard_error, rel=0.05)
    assert [found.low, found.high] == pytest.approx(list(theirs.confidence_interval), abs=0.1 * found.se)


def test_samples_of_the_same_game_add_no_certainty():
    values = np.random.default_rng(1).normal(size=100)
    once = estimate(table(values), "x")
    eightfold = estimate(table(np.repeat(values, 8), np.repeat(np.arange(100), 8)), "x")
    assert eightfold == pytest.approx(once)


def test_a_share_weighs_every_question_alike():
    episodes = table([1, 0, 9], questions=[1, 1, 10])
    assert estimate(episodes, "x", "questions").mean == pytest.approx(10 / 12)


def test_what_cannot_be_known_is_not_a_number():
    assert np.isnan(estimate(table([0.5]), "x").se)
    assert np.isnan(estimate(table([0.0, 0.0], questions=[0, 0]), "x", "questions").mean)


def test_a_paired_difference_looks_at_the_games_of_both():
    a, b = table(np.linspace(0.1, 1, 50)), table(np.linspace(0, 0.9, 50))
    difference = paired_difference(pd.concat([a, table([100.0], ["elsewhere"])]), b, "x")
    assert difference.games == 50
    assert [difference.mean, difference.low, difference.high] == pytest.approx([0.1] * 3)


def test_a_trend_compares_the_end_with_the_beginning():
    steps = np.repeat(np.arange(100), 20)
    noise = np.random.default_rng(0).normal(scale=0.1, size=len(steps))
    rising = trend(table(steps / 100 + noise, step=steps), "x")
    assert rising.low < 0.9 < rising.high
    assert rising.se < 0.02
