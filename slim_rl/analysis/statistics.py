"""Means, shares and differences of episodes, with their intervals.

Intervals are 95% intervals by the bootstrap (Efron 1979, Ann. Statist. 7:1), percentile method. Games (tasks) are
resampled, not episodes, because episodes of one game are not independent. What is undefined (the interval of a
single game) is NaN.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

RESAMPLES = 2000
SEED = 0
MIN_TASKS = 20
"""With fewer tasks a bootstrap interval is too narrow: one of 4 tasks misses the truth in 15% of cases, one of 12 in 8%."""
WINDOW = 5
"""Training steps pooled for one point of a curve, itself in the middle."""
MAX_UNITS = 4096
"""Above this many games, resample random bins of games instead of games: the work stays linear in their number, and
this many bins tell the spread of a mean as well as more would."""


class Estimate(NamedTuple):
    """A mean, its 95% interval and standard error; NaN where there are too few data for them."""

    mean: float
    low: float
    high: float
    se: float
    games: int

    def text(self, spec: str = ".3f") -> str:
        """With each number formatted by `spec`: "0.150 (95% interval 0.142 to 0.158)"."""
        if math.isnan(self.mean):
            return "unknown"
        if math.isnan(self.low):
            return f"{self.mean:{spec}} (too few data for an interval)"
        return f"{self.mean:{spec}} (95% interval {self.low:{spec}} to {self.high:{spec}})"


def unknown(games: int = 0) -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, math.nan, games)


def as_columns(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """A row of a table: of each estimate its mean under its name, and its interval as `NAME_low` and `NAME_high`."""
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {name + end: getattr(one, part) for name, one in estimates.items() for end, part in ends.items()}


def as_metrics(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """The same with the standard error as `NAME_se`, for metrics.json."""
    ends = {"": "mean", "_se": "se", "_low": "low", "_high": "high"}
    return {name + end: getattr(one, part) for name, one in estimates.items() for end, part in ends.items()}


# Means. ------------------------------------------------------------------------------------------------


def estimate(episodes: pd.DataFrame, of: str, per: str | None = None) -> Estimate:
    """The mean of column `of` over episodes, or the sum of `of` for one of `per`; unknown without such a column.

    Args:
        episodes: a row an episode, with `game_id`; rows in which a number is missing do not count.
    """
    if of not in episodes:
        return unknown()
    if per is None:
        games = episodes.groupby("game_id", observed=True)[[of]]
        return _ratios(games.sum().to_numpy(float), games.count().to_numpy(float))[0]
    rows = episodes[["game_id", of, per]].dropna()
    sums = rows.groupby("game_id", observed=True)[[of, per]].sum()
    return _ratios(*(sums[[column]].to_numpy(float) for column in (of, per)))[0]


def share(episodes: pd.DataFrame, of: str) -> Estimate:
    """The share of episodes in which column `of` is 1, with a Wilson interval (Wilson 1927, JASA 22:209), which is sound
    also for shares of 0 and 1; every game weighs the same.

    Episodes of a game are not independent, so the interval is that of the effective sample size, which follows from the
    variance between games (Dean and Pagano 2015, J. Surv. Stat. Methodol. 3:484), at least one for each game and at
    most all episodes.
    """
    games = episodes.groupby("game_id", observed=True)[of]
    rates, count = games.mean().to_numpy(float), len(episodes)
    if not len(rates):
        return unknown()
    mean, effective = float(rates.mean()), float(len(rates))
    if 0 < mean < 1 and count > len(rates) > 1:
        variance = float(rates.var(ddof=1)) / len(rates)
        effective = max(effective, min(mean * (1 - mean) / variance if variance else count, count))
    low, high = proportion_confint(mean * effective, effective, method="wilson")
    return Estimate(mean, float(low), float(high), math.sqrt(mean * (1 - mean) / effective), len(rates))


def _ratios(of: np.ndarray, per: np.ndarray) -> list[Estimate]:
    """For each column the sum of `of` (games, columns) divided by that of `per`, which is 0 where a game has no number."""
    games, columns = (per != 0).sum(axis=0), of.shape[1]
    if not len(of):
        return [unknown()] * columns
    of, per = np.split(_in_units(np.concatenate([of, per], axis=1)), 2, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = of.sum(axis=0) / per.sum(axis=0)
        times = _times_drawn(len(of))
        drawn = (times @ of) / (times @ per)
    return [
        interval(float(means[i]), drawn[:, i], int(games[i]))
        if games[i] > 1
        else unknown(int(games[i]))._replace(mean=float(means[i]))
        for i in range(columns)
    ]


def interval(mean: float, drawn: np.ndarray, games: int) -> Estimate:
    """`mean` with the percentile interval of the resamples `drawn`, without those that are NaN."""
    known = np.isfinite(drawn)
    if not math.isfinite(mean) or known.mean() < 0.5:
        return unknown(games)._replace(mean=mean)
    drawn = drawn[known]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(mean, float(low), float(high), float(drawn.std(ddof=1)), games)


def _in_units(sums: np.ndarray) -> np.ndarray:
    """Sums over games (games, columns), binned at random into at most MAX_UNITS units."""
    if len(sums) <= MAX_UNITS:
        return sums
    unit = np.random.default_rng(SEED).permutation(len(sums)) % MAX_UNITS
    return np.stack([np.bincount(unit, column, MAX_UNITS) for column in sums.T], axis=1)


@lru_cache(maxsize=4)
def _times_drawn(units: int) -> np.ndarray:
    """(RESAMPLES, units) float64: how often each unit is in each resample.

    With counts in place of indices, the means of all resamples are one product of matrices.
    """
    rng = np.random.default_rng(SEED)
    return rng.multinomial(units, np.full(units, 1 / units), RESAMPLES).astype(float)


# Two players on the same games. -----------------------------------------------------------------------


def paired_difference(a: pd.DataFrame, b: pd.DataFrame, of: str) -> Estimate:
    """By how much the mean of `of` in `a` exceeds that in `b`, over the games that are in both."""
    means = [episodes.groupby("game_id", observed=True)[of].mean() for episodes in (a, b)]
    return estimate((means[0] - means[1]).dropna().rename("difference").reset_index(), "difference")


def rank_correlation(episodes: pd.DataFrame, x: str, y: str) -> float:
    """Spearman's rank correlation of two columns over episodes; NaN if one of them does not vary."""
    rows = episodes[[x, y]].dropna()
    if len(rows) < 3 or (rows.nunique() < 2).any():
        return math.nan
    return float(stats.spearmanr(rows[x], rows[y]).statistic)


def rank_correlation_difference(a: pd.DataFrame, b: pd.DataFrame, x: str, y: str) -> Estimate:
    """By how much Spearman's rank correlation of two columns in `a` exceeds that in `b`, over the games that are in both. A
    column that does not vary follows nothing: its correlation is 0."""
    means = [episodes.groupby("game_id", observed=True)[[x, y]].mean().dropna() for episodes in (a, b)]
    games = means[0].index.intersection(means[1].index)
    if (count := len(games)) < 3:
        return unknown(count)
    in_a, in_b = (one.loc[games].to_numpy(float).T for one in means)

    def difference(chosen: np.ndarray) -> float:
        return _rank_correlation(*in_a[:, chosen]) - _rank_correlation(*in_b[:, chosen])

    rng = np.random.default_rng(SEED)
    drawn = np.array([difference(rng.integers(count, size=count)) for _ in range(RESAMPLES)])
    return interval(difference(np.arange(count)), drawn, count)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = (ranks - ranks.mean() for ranks in map(stats.rankdata, (x, y)))
    spread = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / spread if spread else 0.0


# Over training. ----------------------------------------------------------------------------------------


def step_estimates(episodes: pd.DataFrame, columns: Sequence[str], window: int) -> pd.DataFrame:
    """The mean of each column with its interval, a row a training step; each pools `window` steps around it.

    Columns: `step`, and of each column `NAME`, `NAME_low` and `NAME_high`.
    """
    grouped = episodes.groupby(["step", "game_id"], observed=True)[list(columns)]
    sums, counts = grouped.sum(), grouped.count()
    step_of = sums.index.get_level_values("step").to_numpy()
    game_of = pd.factorize(sums.index.get_level_values("game_id"))[0]
    both = np.concatenate([sums.to_numpy(float), counts.to_numpy(float)], axis=1)
    rows = []
    for step in np.unique(step_of):
        near = slice(*np.searchsorted(step_of, [step - window // 2, step + window // 2 + 1]))
        order = np.argsort(game_of[near], kind="stable")
        first = np.flatnonzero(np.diff(game_of[near][order], prepend=-1))
        of, per = np.split(np.add.reduceat(both[near][order], first), 2, axis=1)
        rows.append({"step": step, **as_columns(dict(zip(columns, _ratios(of, per), strict=True)))})
    return pd.DataFrame(rows)


# Several runs. -----------------------------------------------------------------------------------------


def pooled(values: Sequence[float]) -> Estimate:
    """The mean over runs with its t interval: the unit is the run, not its games."""
    known = np.array([value for value in values if math.isfinite(value)])
    if len(known) < 2:
        return unknown(len(known))._replace(mean=float(known.mean()) if len(known) else math.nan)
    mean, se = float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known)))
    reach = float(stats.t.ppf(0.975, len(known) - 1)) * se
    return Estimate(mean, mean - reach, mean + reach, se, len(known))
