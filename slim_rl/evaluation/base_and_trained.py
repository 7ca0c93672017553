"""What most studies compare: the base model with the trained one, on the same held-out tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis.correlations import QuestionReward, episodes_table, with_calls_as_questions
from slim_rl.analysis.dialogues import sample
from slim_rl.analysis.figures import training_figure
from slim_rl.analysis.statistics import WINDOW, Estimate, as_metrics, estimate, paired_difference, step_estimates
from slim_rl.core.errors import UserError
from slim_rl.evaluation.study import Report, Results, rewarded

MODELS = ("base", "trained")


class Criterion(NamedTuple):
    """One of the things that a verdict requires."""

    met: bool
    text: str


class Row(NamedTuple):
    """One row of a report's table: a value for each player."""

    title: str
    values: Mapping[str, Estimate | str]
    spec: str = ".3f"
    difference: Estimate | None = None
    """Trained less base."""


@dataclass(frozen=True, eq=False)
class BaseAndTrained:
    """Finished episodes of both models, and of other players, on the same held-out tasks."""

    episodes: Mapping[str, pd.DataFrame]
    """By player, the models first; see `rewarded`."""
    failed: Mapping[str, int]
    """By player, how many episodes failed and were not played again with success."""
    training: pd.DataFrame
    """The episodes of training; empty without any."""
    measures: Mapping[str, str]
    """The columns to compare, with their titles: {"reward": "Reward"}."""

    def mean(self, player: str, name: str) -> Estimate:
        return estimate(self.episodes[player], name)

    def difference(self, name: str, other: str = "base") -> Estimate:
        """The trained model less `other`, over the tasks that both played."""
        return paired_difference(self.episodes["trained"], self.episodes[other], name)

    def row(self, name: str, title: str, difference: Estimate | None = None) -> Row:
        return Row(title, {player: self.mean(player, name) for player in self.episodes}, difference=difference)

    @property
    def rows(self) -> list[Row]:
        """The report's table."""
        rows = [self.row(name, title, self.difference(name)) for name, title in self.measures.items()]
        counts = {player: f"{len(frame)} ({self.failed[player]})" for player, frame in self.episodes.items()}
        return [*rows, Row("Episodes (failed)", counts)]

    def numbers(self, player: str) -> dict[str, float]:
        """The metrics of a player."""
        numbers: dict[str, float] = {"episodes": len(self.episodes[player]), "failed": self.failed[player]}
        return numbers | as_metrics({name: self.mean(player, name) for name in self.measures})

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The measures over training with 95% intervals; a point pools WINDOW steps."""
        return step_estimates(self.training, [name for name in self.measures if name in self.training], WINDOW)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By file name."""
        tables = {"players": pd.DataFrame([{"player": player, **self.numbers(player)} for player in self.episodes])}
        return tables | ({"training": self.curves} if len(self.training) else {})

    @property
    def metrics(self) -> dict[str, Any]:
        """By player, and the differences of the models."""
        differences = as_metrics({f"{name}_difference": self.difference(name) for name in self.measures})
        comparison = {"tasks": self.difference("reward").games, **differences}
        return {**{player: self.numbers(player) for player in self.episodes}, "comparison": comparison}

    @property
    def cause(self) -> str:
        """What an intervention says of the effect of a call: a sentence."""
        return ""

    @cached_property
    def correlated(self) -> QuestionReward | None:
        """How calls and reward go together; None in a game where their number never differs."""
        held_out = {model: with_calls_as_questions(self.episodes[model]) for model in MODELS}
        if not any("question_count" in rows and rows["question_count"].nunique() > 1 for rows in held_out.values()):
            return None
        return QuestionReward(with_calls_as_questions(self.training), held_out, noun="call", cause=self.cause)

    def report(
        self,
        question: str,
        verdict: str,
        supported: bool = False,
        criteria: Sequence[Criterion] = (),
        methods: str = "",
        label: Callable[[Any], str] = lambda row: "",
    ) -> Report:
        """A report by the default template.

        Args:
            supported: whether the verdict is a yes.
            methods: sentences about this study's numbers, besides those that hold for all.
            label: what the browser's list says of an episode (a row of `episodes`).
        """
        figures: dict[str, Figure] = {}
        tables, metrics = self.tables, self.metrics
        tables["episodes"] = episodes_table(self.training, self.episodes, tuple(self.measures))
        if self.correlated:
            figures |= self.correlated.figures
            tables |= self.correlated.tables
            metrics["question_reward"] = self.correlated.metrics
        if len(self.training):
            names = {name: title.lower() for name, title in self.measures.items() if name in self.curves}
            figures["training"] = training_figure(self.curves, names, "mean over an episode")
        values = {
            "players": list(self.episodes),
            "rows": self.rows,
            "supported": supported,
            "criteria": criteria,
            "methods": methods,
            "dialogues": sample(self.episodes["base"], self.episodes["trained"], self.training, label),
            "correlated": self.correlated,
        }
        return Report(question, verdict, figures, tables, metrics, values=values)


def read_players(
    results: Results, players: Sequence[str] = MODELS
) -> tuple[dict[str, pd.DataFrame], dict[str, int], pd.DataFrame]:
    """The first three fields of `BaseAndTrained`, from the series `held-out/PLAYER` and the episodes of training.

    Raises:
        UserError: a player has no finished episode with a reward.
    """
    episodes, failed = {}, {}
    for player in players:
        frame, folder = results.series(f"held-out/{player}"), results.episodes / "held-out" / player
        wrong = frame[frame["status"] == "failed"] if len(frame) else frame
        if len(wrong) == len(frame):
            reason = f"the first failed with {wrong['error'].iloc[0]!r}" if len(wrong) else "`dvc repro` plays them"
            raise UserError(f"There are no finished episodes in {folder} to analyze; {reason}.")
        episodes[player], failed[player] = rewarded(frame, player), len(wrong)
        if episodes[player].empty:
            raise UserError(f"No episode in {folder} has a reward.")
    training = results.training()
    return episodes, failed, rewarded(training, "policy") if len(training) else training
