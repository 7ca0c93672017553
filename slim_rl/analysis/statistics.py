"""Means, differences, trends and correlations of episodes, with their intervals.

Intervals are 95% intervals by the bootstrap (Efron 1979, Ann. Statist. 7:1), percentile method. Games (tasks) are
resampled, not episodes, because episodes of one game are not independent. Trends over training resample blocks of
steps instead, because the weights of neighbouring steps are alike.

What is undefined (a constant column, a single game) is NaN.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.proportion import proportion_confint
from statsmodels.tools.tools import add_constant

RESAMPLES = 2000
SEED = 0
WINDOW = 5
"""Training steps pooled for one point of a curve, itself in the middle."""
MAX_UNITS = 4096
"""Above this many games, resample random bins of games instead of games: the work stays linear in their number, and
this many bins tell the spread of a mean as well as more would."""
MAX_INFLATION = 100.0
"""A predictor with a larger variance inflation factor is left out of a regression: the others say the same."""


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

    def numbers(self, name: str) -> dict[str, float]:
        """For metrics.json, under `name` and what begins with it."""
        return {name: self.mean, f"{name}_se": self.se, f"{name}_low": self.low, f"{name}_high": self.high}

    @property
    def hundredfold(self) -> "Estimate":
        return Estimate(100 * self.mean, 100 * self.low, 100 * self.high, 100 * self.se, self.games)


class Share(NamedTuple):
    """A share with its 95% Wilson interval (Wilson 1927, JASA 22:209), which is sound also for shares of 0 and 1."""

    mean: float
    low: float
    high: float
    games: int

    def text(self) -> str:
        if not self.games:
            return "unknown"
        return f"{self.mean:.1%} (95% interval {self.low:.1%} to {self.high:.1%}, {self.games} games)"

    def numbers(self, name: str) -> dict[str, float]:
        """For metrics.json, under `name` and what begins with it."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def unknown(games: int = 0) -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, math.nan, games)


# Means. ------------------------------------------------------------------------------------------------


def estimate(episodes: pd.DataFrame, of: str, per: str | None = None) -> Estimate:
    """The mean of column `of` over episodes, or the sum of `of` for one of `per`.

    Args:
        episodes: a row an episode, with `game_id`; rows in which a number is missing do not count.
    """
    if per is None:
        return estimates(episodes, [of])[of]
    rows = episodes[["game_id", of, per]].dropna()
    sums = rows.groupby("game_id", observed=True)[[of, per]].sum()
    return _ratios(*(sums[[column]].to_numpy(float) for column in (of, per)))[0]


def estimates(episodes: pd.DataFrame, columns: Sequence[str]) -> dict[str, Estimate]:
    """The mean of each column; see `estimate`."""
    games = episodes.groupby("game_id", observed=True)[list(columns)]
    found = _ratios(games.sum().to_numpy(float), games.count().to_numpy(float))
    return dict(zip(columns, found, strict=True))


def share(episodes: pd.DataFrame, of: str) -> Share:
    """The share of episodes in which column `of` is 1; every game weighs the same.

    Episodes of a game are not independent, so Wilson's interval is that of the effective sample size, which follows
    from the variance between games (Dean and Pagano 2015, J. Surv. Stat. Methodol. 3:484), at least one for each game
    and at most all episodes.
    """
    games = episodes.groupby("game_id", observed=True)[of]
    rates, count = games.mean().to_numpy(float), len(episodes)
    if not len(rates):
        return Share(math.nan, math.nan, math.nan, 0)
    mean, effective = float(rates.mean()), float(len(rates))
    if 0 < mean < 1 and count > len(rates) > 1:
        variance = float(rates.var(ddof=1)) / len(rates)
        effective = max(effective, min(mean * (1 - mean) / variance if variance else count, count))
    low, high = proportion_confint(mean * effective, effective, method="wilson")
    return Share(mean, float(low), float(high), len(rates))


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
        _interval(float(means[i]), drawn[:, i], int(games[i]))
        if games[i] > 1
        else unknown(int(games[i]))._replace(mean=float(means[i]))
        for i in range(columns)
    ]


def _interval(mean: float, drawn: np.ndarray, games: int) -> Estimate:
    """`mean` with the percentile interval of the resamples `drawn`, without those that are NaN."""
    drawn = drawn[np.isfinite(drawn)]
    if not math.isfinite(mean) or len(drawn) < RESAMPLES / 2:
        return unknown(games)._replace(mean=mean)
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


class Paired(NamedTuple):
    """A difference over the games that both played, with tests of whether it is 0."""

    difference: Estimate
    t_p: float
    """The p-value of the paired t test."""
    wilcoxon_p: float
    """The p-value of Wilcoxon's signed-rank test, which assumes no normal distribution."""


def paired_difference(a: pd.DataFrame, b: pd.DataFrame, of: str) -> Estimate:
    """By how much the mean of `of` in `a` exceeds that in `b`, over the games that are in both."""
    return estimate(_differences(a, b, of), "difference")


def paired_test(a: pd.DataFrame, b: pd.DataFrame, of: str) -> Paired:
    differences = _differences(a, b, of)
    values = differences["difference"].to_numpy()
    t_p = wilcoxon_p = math.nan
    if len(values) > 1 and np.ptp(values) > 0:
        t_p = float(stats.ttest_1samp(values, 0.0).pvalue)
        wilcoxon_p = float(stats.wilcoxon(values).pvalue)
    return Paired(estimate(differences, "difference"), t_p, wilcoxon_p)


def _differences(a: pd.DataFrame, b: pd.DataFrame, of: str) -> pd.DataFrame:
    means = [episodes.groupby("game_id", observed=True)[of].mean() for episodes in (a, b)]
    return (means[0] - means[1]).dropna().rename("difference").reset_index()


# Over training. ----------------------------------------------------------------------------------------


class Trend(NamedTuple):
    rank: Estimate
    """Spearman's correlation of the steps' means with the step."""
    slope: Estimate
    """Change a step, by least squares."""


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
        row = {"step": step}
        for name, (mean, low, high, _, _) in zip(columns, _ratios(of, per), strict=True):
            row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def trend(episodes: pd.DataFrame, of: str) -> Trend:
    """How the mean of `of` changes with the training step.

    The slope's interval is studentised: residuals of the fitted line are drawn in blocks of
    1.5 n^(1/3) steps (Kuensch 1989, Ann. Statist. 17:3) and each resampled slope is divided by a standard
    error that allows for correlation between neighbouring steps (Newey and West 1987), as in Goetze and
    Kuensch (1996, Ann. Statist. 24:5). The rank correlation's is the percentile interval over blocks of steps.
    """
    means = episodes.groupby("step")[of].mean().dropna()
    return trend_of(means.index.to_numpy(float), means.to_numpy(float))


def trend_of(steps: np.ndarray, values: np.ndarray) -> Trend:
    """See `trend`; `steps` and `values` (n,)."""
    n = len(steps)
    if n < 2 or np.ptp(values) == 0:
        slope = 0.0 if n > 1 else math.nan
        return Trend(unknown(n), unknown(n)._replace(mean=slope))
    centred = steps - steps.mean()
    spread = centred @ centred
    slope = float(values @ centred / spread)
    rank = float(stats.spearmanr(steps, values).statistic)
    if n < 8:
        return Trend(unknown(n)._replace(mean=rank), unknown(n)._replace(mean=slope))
    residuals = values - values.mean() - slope * centred
    block = min(round(1.5 * n ** (1 / 3)), n - 1)
    rng = np.random.default_rng(SEED)
    starts = rng.integers(0, n - block + 1, (RESAMPLES, -(-n // block)))
    drawn = (starts[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :n]

    noise = residuals[drawn]
    noise = noise - noise.mean(axis=1, keepdims=True)
    slopes = noise @ centred / spread
    left = noise - slopes[:, None] * centred
    se = float(_newey_west(residuals[None] * centred, block)[0] / spread)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.abs(slopes) / (_newey_west(left * centred, block) / spread)
    reach = float(np.quantile(ratios[np.isfinite(ratios)], 0.95)) * se if se else 0.0

    ranks = [stats.rankdata(columns[drawn], axis=1) for columns in (steps, values)]
    x, y = (r - r.mean(axis=1, keepdims=True) for r in ranks)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return Trend(_interval(rank, correlations, n), Estimate(slope, slope - reach, slope + reach, se, n))


def _newey_west(scores: np.ndarray, lags: int) -> np.ndarray:
    """(rows,): standard error of the sum of each row of `scores` (rows, n), correlated up to `lags`."""
    total = (scores**2).sum(axis=1)
    for lag in range(1, lags):
        total = total + 2 * (1 - lag / lags) * (scores[:, lag:] * scores[:, :-lag]).sum(axis=1)
    return np.sqrt(np.maximum(total, 0))


# Correlations and regressions. -------------------------------------------------------------------------


def correlation(
    episodes: pd.DataFrame, x: str, y: str, within: Sequence[str] = (), ranks: bool = False
) -> Estimate:
    """Pearson's correlation of two columns over episodes, or with `ranks` Spearman's.

    Args:
        within: compare each episode only with the mean of those that share these columns, so that what they have in
            common (an easy board, a step of training) explains nothing.
    """
    rows = episodes[list(dict.fromkeys(["game_id", x, y, *within]))].dropna()
    games = rows["game_id"].nunique()
    a, b = (stats.rankdata(rows[c]) if ranks else rows[c].to_numpy(float) for c in (x, y))
    if within:
        pairs = pd.DataFrame({"a": a, "b": b})
        keys = rows.groupby(list(within), observed=True).ngroup().to_numpy()
        pairs -= pairs.groupby(keys).transform("mean")
        a, b = pairs["a"].to_numpy(), pairs["b"].to_numpy()
    elif len(rows):
        a, b = a - a.mean(), b - b.mean()
    codes = pd.factorize(rows["game_id"])[0]
    parts = (np.ones_like(a), a, b, a * a, b * b, a * b)
    sums = _in_units(np.stack([np.bincount(codes, part, games) for part in parts], axis=1))
    r = float(_pearson(sums.sum(axis=0, keepdims=True), centred=bool(within))[0])
    if not math.isfinite(r) or games < 2:
        return unknown(games)._replace(mean=r)
    return _interval(r, _pearson(_times_drawn(len(sums)) @ sums, centred=bool(within)), games)


def _pearson(sums: np.ndarray, centred: bool) -> np.ndarray:
    """Correlations (rows,) from sums (rows, 6) of 1, a, b, a², b², ab; `centred`: means are known to be 0."""
    n, a, b, aa, bb, ab = sums.T
    if not centred:
        with np.errstate(invalid="ignore", divide="ignore"):
            aa, bb, ab = aa - a * a / n, bb - b * b / n, ab - a * b / n
    tiny = 1e-12 * np.maximum(n, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((aa > tiny) & (bb > tiny), ab / np.sqrt(aa * bb), np.nan)


class Coefficient(NamedTuple):
    name: str
    value: Estimate
    """The change of the outcome with one more of this, the other predictors held fixed."""
    p: float


class Regression(NamedTuple):
    coefficients: tuple[Coefficient, ...]
    left_out: tuple[str, ...]
    """Predictors that are constant, or that follow from the others (see MAX_INFLATION)."""


def regression(episodes: pd.DataFrame, of: str, on: Sequence[str]) -> Regression:
    """Least squares of `of` on the columns `on`, with standard errors clustered by game.

    A predictor that follows from those before it is left out, so the order of `on` is one of importance.
    """
    rows = episodes[["game_id", of, *on]].dropna()
    kept: list[str] = []
    for name in on:
        if len(rows) and _adds(rows, kept, name):
            kept.append(name)
    left_out = tuple(name for name in on if name not in kept)
    codes = pd.factorize(rows["game_id"])[0]
    games = int(codes.max()) + 1 if len(codes) else 0
    if not kept or games <= len(kept) + 1 or np.ptp(rows[of].to_numpy(float)) == 0:
        return Regression((), tuple(on))
    design = add_constant(rows[kept].to_numpy(float))
    fit = OLS(rows[of].to_numpy(float), design).fit(
        method="qr", cov_type="cluster", cov_kwds={"groups": codes}, use_t=True
    )
    intervals = fit.conf_int()[1:].tolist()
    return Regression(
        tuple(
            Coefficient(
                name,
                Estimate(float(fit.params[i]), low, high, float(fit.bse[i]), games),
                float(fit.pvalues[i]),
            )
            for i, (name, (low, high)) in enumerate(zip(kept, intervals, strict=True), start=1)
        ),
        left_out,
    )


def _adds(rows: pd.DataFrame, kept: Sequence[str], name: str) -> bool:
    """Whether a predictor varies beyond what the ones before it explain."""
    values = rows[name].to_numpy(float)
    spread = ((values - values.mean()) ** 2).sum()
    if spread <= 1e-12 * len(values):
        return False
    design = add_constant(rows[list(kept)].to_numpy(float)) if kept else np.ones((len(values), 1))
    fitted = design @ np.linalg.lstsq(design.T @ design, design.T @ values, rcond=None)[0]
    return bool(((values - fitted) ** 2).sum() > spread / MAX_INFLATION)


def dose_response(episodes: pd.DataFrame, of: str, by: str, least: int) -> pd.DataFrame:
    """The mean of `of` at each value of `by` that at least `least` episodes have.

    Columns: `by`'s name, `episodes`, `mean`, `low` and `high`.
    """
    rows = []
    for dose, group in episodes.dropna(subset=[of, by]).groupby(by):
        if len(group) >= least:
            found = estimate(group, of)
            rows.append([dose, len(group), found.mean, found.low, found.high])
    return pd.DataFrame(rows, columns=[by, "episodes", "mean", "low", "high"])


# Several runs. -----------------------------------------------------------------------------------------


def pooled(values: Sequence[float]) -> Estimate:
    """The mean over runs with its t interval: the unit is the run, not its games."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) < 2:
        return unknown(len(known))._replace(mean=float(known.mean()) if len(known) else math.nan)
    mean, se = float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known)))
    reach = float(stats.t.ppf(0.975, len(known) - 1)) * se
    return Estimate(mean, mean - reach, mean + reach, se, len(known))
