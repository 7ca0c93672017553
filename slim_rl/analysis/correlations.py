"""How the questions of an episode and its reward go together, and whether the task alone explains it.

One correlation says little: over training both may rise, and a task that leaves much to ask may also pay more. So it is
computed over training steps, over held-out tasks, and between episodes of the same task. Intervals are 95% percentile
bootstrap intervals over the unit that is independent: steps in blocks (Politis and Romano 1992), tasks, groups.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis.figures import question_reward_figure
from slim_rl.analysis.statistics import RESAMPLES, SEED, WINDOW, Estimate, as_columns, estimate, interval, unknown
from slim_rl.analysis.titles import title

X, Y = "question_count", "reward"
MANY = 50_000
"""With more rows, a tenth of the resamples."""
MIN_EPISODES, MAX_BINS = 10, 12
"""The fewest episodes of a mean in the figure, and the most means."""
COLUMNS = ("series", "player", "episode_id", "game_id", "step", "status", X, "turn_count", Y)
"""The first columns of the table of all episodes; further counts follow."""


class Correlation(NamedTuple):
    """The correlation of questions with reward."""

    pearson: Estimate
    spearman: Estimate
    slope: Estimate
    """Reward for a question, by least squares."""

    def numbers(self) -> dict[str, float]:
        """For a table, and for metrics.json."""
        return {"units": self.pearson.games, **as_columns(self._asdict())}


@dataclass(frozen=True, eq=False)
class QuestionReward:
    """Correlations of questions with reward in one run."""

    training: pd.DataFrame
    """A row an episode: `game_id`, `step`, X and Y; empty without any."""
    held_out: Mapping[str, pd.DataFrame]
    """The same of the models, by name."""
    limit: str | None = None
    """A column that limits questions and differs from game to game: "patience"."""
    noun: str = "question"
    task: str = "task"
    cause: str = ""
    """What an intervention says of the effect of questions: a sentence."""

    @cached_property
    def correlations(self) -> dict[str, Correlation]:
        """By dotted name, in the order of the table."""
        training = self.training
        by_name = {}
        if len(training):
            by_name["training_steps"] = over_steps(training)
        for name, rows in self.held_out.items():
            by_name[f"held_out.{name}"] = correlation(rows, rows["game_id"])
        if self.limit:
            for name, rows in self.held_out.items():
                by_name[f"same_{self.limit}.{name}"] = correlation(rows, rows["game_id"], rows[self.limit])
        if len(training):
            later = training[training["step"] >= (training["step"].min() + training["step"].max() + 1) / 2]
            groups = later.groupby(["step", "game_id"], observed=True).ngroup()
            by_name["same_task"] = correlation(later, groups, groups)
        return by_name

    @property
    def binned(self) -> pd.DataFrame:
        """The mean reward by the number of questions, for each model: `player`, X, Y with its interval, `episodes`."""
        return pd.DataFrame(
            [{"player": name, **row} for name, rows in self.held_out.items() for row in _bins(rows)],
            columns=["player", X, Y, f"{Y}_low", f"{Y}_high", "episodes"],
        )

    @property
    def path(self) -> pd.DataFrame:
        """The means of X and Y over training, a row a step; each pools WINDOW steps around it."""
        means = self.training.reindex(columns=["step", X, Y]).groupby("step")[[X, Y]].mean()
        return means.rolling(WINDOW, center=True, min_periods=1).mean().reset_index()

    @property
    def metrics(self) -> dict[str, dict[str, object]]:
        nested: dict[str, dict[str, object]] = {}
        for name, correlation in self.correlations.items():
            over, _, player = name.partition(".")
            nested.setdefault(over, {}).update({player: correlation.numbers()} if player else correlation.numbers())
        return nested

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        rows = [{"over": name, **correlation.numbers()} for name, correlation in self.correlations.items()]
        return {"question-reward": pd.DataFrame(rows), "question-reward-binned": self.binned}

    @property
    def figures(self) -> dict[str, Figure]:
        return {"question-reward": question_reward_figure(self.binned, self.path, self.noun)}

    def title(self, name: str) -> str:
        """What a page calls a row of the table."""
        over, _, player = name.partition(".")
        what = {
            "training_steps": "Training steps",
            "held_out": "Held-out games",
            "same_task": f"Same {self.task}, in the later half of training",
        }.get(over, f"Same {over.removeprefix('same_')}, held out")
        return f"{what}: {title(player).lower()}" if player else what

    @property
    def headline(self) -> str:
        """What the correlations show and what they do not, in a sentence or two."""
        none, noun = Correlation(unknown(), unknown(), unknown()), self.noun
        steps, across, within = (
            self.correlations.get(name, none) for name in ("training_steps", "held_out.trained", "same_task")
        )
        places = ((steps, "over training steps"), (across, "over held-out games"), (within, f"on the same {self.task}"))
        numbers = [f"{one.pearson.mean:+z.2f} {where}" for one, where in places if math.isfinite(one.pearson.mean)]
        if not numbers:
            return f"{noun.capitalize()}s or rewards never differ, so there is nothing to correlate."
        same = f"on the same {self.task} one more {noun} goes with {_worth(within)}"
        over = f", over held-out games with {_worth(across)}" if _clear(across.slope) else ""
        if _clear(within.slope):
            opposite = over and within.slope.mean * across.slope.mean < 0
            says = f"the {self.task} {'turns it around' if opposite else 'does not explain it all'}: {same}{over}"
        elif _clear(across.slope) or _clear(steps.slope):
            compared = math.isfinite(within.slope.low)
            none_compared = f"no episodes of the same {self.task} were compared"
            says = f"they do not show that a {noun} pays: {same if compared else none_compared}"
        else:
            says = f"nowhere do games with more {noun}s clearly earn more or less"
        return f"{noun.capitalize()}s and reward correlate by {', '.join(numbers)}; {says}. {self.cause}".rstrip()


def correlation(rows: pd.DataFrame, units: pd.Series, groups: pd.Series | None = None) -> Correlation:
    """The correlation of X with Y over `rows`, units drawn again.

    Args:
        units: of each row, what is independent of other units.
        groups: of each row, what is held fixed: values and ranks are compared within a group alone.
    """
    there = rows[[X, Y]].notna().all(axis=1).to_numpy()
    unit = pd.factorize(units[there])[0]
    x, y = (_Values(rows.loc[there, name], None if groups is None else groups[there]) for name in (X, Y))
    return _with_intervals(x, y, unit, lambda rng, count: rng.multinomial(count, np.full(count, 1 / count)))


def over_steps(training: pd.DataFrame) -> Correlation:
    """The correlation of the means of X and Y over training steps. Circular blocks of neighbouring steps are drawn, as long
    as the root of their number, because a step is much like the one before."""
    means = training.groupby("step")[[X, Y]].mean().dropna()

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        length = math.ceil(math.sqrt(count))
        first = rng.integers(count, size=math.ceil(count / length))
        steps = (first[:, None] + np.arange(length)).ravel()[:count] % count
        return np.bincount(steps, minlength=count)

    return _with_intervals(_Values(means[X]), _Values(means[Y]), np.arange(len(means)), draw)


class _Values:
    """Values of one variable, to be centred within groups under changing weights of their rows."""

    def __init__(self, values: pd.Series, groups: pd.Series | None = None):
        self.values = values.to_numpy(float)
        self.group = np.zeros(len(values), int) if groups is None else pd.factorize(groups)[0]
        # A class is a value of a group; classes are in the order of groups and, within a group, of values.
        self._class = (
            pd.DataFrame({"group": self.group, "value": self.values}).groupby(["group", "value"]).ngroup().to_numpy()
        )

    def centred(self, weights: np.ndarray) -> np.ndarray:
        return self._less_means(self.values, weights)

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """Percentile ranks within the group, ties in the middle, centred."""
        of_class = np.bincount(self._class, weights)
        of_group = np.maximum(np.bincount(self.group, weights), 1)
        return self._less_means((np.cumsum(of_class) - of_class / 2)[self._class] / of_group[self.group], weights)

    def _less_means(self, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        sums, weight = np.bincount(self.group, values * weights), np.bincount(self.group, weights)
        return values - (sums / np.maximum(weight, 1))[self.group]


def _statistics(x: _Values, y: _Values, weights: np.ndarray) -> tuple[float, float, float]:
    """Pearson's and Spearman's correlation and the slope, of rows with these weights."""
    (pearson, slope), (spearman, _) = (
        _moments(one, other, weights)
        for one, other in ((x.centred(weights), y.centred(weights)), (x.ranks(weights), y.ranks(weights)))
    )
    return pearson, spearman, slope


def _moments(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Correlation and slope of centred values; NaN where one of them does not vary."""
    xx, yy, xy = (float(weights @ (one * other)) for one, other in ((x, x), (y, y), (x, y)))
    least = 1e-12 * max(len(x), 1)
    return (xy / math.sqrt(xx * yy) if min(xx, yy) > least else math.nan), (xy / xx if xx > least else math.nan)


def _with_intervals(
    x: _Values, y: _Values, unit: np.ndarray, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> Correlation:
    """`draw` says how often each unit is in a resample, from their number."""
    count = int(unit.max()) + 1 if len(unit) else 0
    if count < 3:
        return Correlation(*[unknown(count)] * 3)
    rng = np.random.default_rng(SEED)
    resamples = RESAMPLES // (10 if len(unit) > MANY else 1)
    means = _statistics(x, y, np.ones(len(unit)))
    drawn = np.array([_statistics(x, y, draw(rng, count)[unit].astype(float)) for _ in range(resamples)])
    return Correlation(*(interval(mean, column, count) for mean, column in zip(means, drawn.T, strict=True)))


def _bins(rows: pd.DataFrame) -> Iterator[dict[str, float]]:
    rows = rows.dropna(subset=[X, Y])
    few = rows[X].nunique() <= MAX_BINS
    for _, episodes in rows.groupby(rows[X] if few else pd.qcut(rows[X], MAX_BINS, duplicates="drop"), observed=True):
        if len(episodes) >= MIN_EPISODES:
            mean = as_columns({Y: estimate(episodes, Y)})
            yield {X: float(episodes[X].mean()), **mean, "episodes": len(episodes)}


def _clear(one: Estimate) -> bool:
    return one.low > 0 or one.high < 0


def _worth(one: Correlation) -> str:
    return f"{one.slope.mean:+.3f} reward ({one.slope.low:+.3f} to {one.slope.high:+.3f})"


def with_calls_as_questions(rows: pd.DataFrame) -> pd.DataFrame:
    """A call of a tool is a question; X counts both."""
    return rows.rename(columns={"calls": X})


def episodes_table(
    training: pd.DataFrame, held_out: Mapping[str, pd.DataFrame], further: tuple[str, ...] = ()
) -> pd.DataFrame:
    """A row for each episode of training and of the held-out series: COLUMNS, and those of `further` that it has."""
    frames = {("training", "policy"): training, **{("held-out", name): rows for name, rows in held_out.items()}}
    rows = [
        with_calls_as_questions(frame).assign(series=series, player=name)
        for (series, name), frame in frames.items()
        if len(frame)
    ]
    return pd.concat(rows).reindex(
        columns=[*COLUMNS, *(name for name in further if any(name in frame for frame in rows))]
    )
