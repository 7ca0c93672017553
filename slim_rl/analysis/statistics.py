"""Means with intervals, by the bootstrap (Efron 1979, Ann. Statist. 7:1), percentile method.

The game is the unit that is drawn again: episodes of one game share its board and so are not independent.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

RESAMPLES = 2000
SEED = 0


class Estimate(NamedTuple):
    """A mean, its 95% interval and standard error; NaN where too little is known for one."""

    mean: float
    low: float
    high: float
    se: float
    games: int

    def text(self, spec: str = ".3f") -> str:
        """With each number formatted by `spec`: "0.150 (95% interval 0.142 to 0.158)"."""
        return f"{self.mean:{spec}} (95% interval {self.low:{spec}} to {self.high:{spec}})"


def estimate(episodes: pd.DataFrame, of: str, per: str | None = None) -> Estimate:
    """The mean of column `of` over episodes, or the sum of `of` for one of `per`.

    Args:
        episodes: a row an episode, with `game_id`; rows in which a number is missing do not count.
    """
    numbers = {"of": episodes[of], "per": 1.0 if per is None else episodes[per]}
    games = pd.DataFrame({"game": episodes["game_id"], **numbers}).dropna().groupby("game").sum()
    of_sums, per_sums = games["of"].to_numpy(float), games["per"].to_numpy(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = float(of_sums.sum() / np.float64(per_sums.sum()))
        if len(games) < 2:
            return Estimate(mean, np.nan, np.nan, np.nan, len(games))
        times = _times_drawn(len(games))
        means = (times @ of_sums) / (times @ per_sums)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(mean, float(low), float(high), float(means.std(ddof=1)), len(games))


def paired_difference(a: pd.DataFrame, b: pd.DataFrame, of: str) -> Estimate:
    """By how much the mean of `of` in `a` exceeds that in `b`, over the games that are in both."""
    means = [episodes.groupby("game_id")[of].mean() for episodes in (a, b)]
    return estimate((means[0] - means[1]).dropna().rename("difference").reset_index(), "difference")


def trend(episodes: pd.DataFrame, of: str) -> Estimate:
    """By how much the mean of `of` in the last tenth of the steps exceeds that in the first tenth.

    The two are means over different episodes, hence independent; the interval is the normal one.
    """
    first, last = episodes["step"].quantile([0.1, 0.9])
    before = estimate(episodes[episodes["step"] <= first], of)
    after = estimate(episodes[episodes["step"] >= last], of)
    change, se = after.mean - before.mean, float(np.hypot(before.se, after.se))
    return Estimate(change, change - 1.96 * se, change + 1.96 * se, se, before.games + after.games)


@lru_cache(maxsize=4)
def _times_drawn(games: int) -> np.ndarray:
    """(RESAMPLES, games) float64: how often each game is in each resample.

    With counts in place of indices, the means of all resamples are one product of matrices.
    """
    rng = np.random.default_rng(SEED)
    return rng.multinomial(games, np.full(games, 1 / games), RESAMPLES).astype(float)
