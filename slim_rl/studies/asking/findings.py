"""What was found, in numbers: all that the report, the metrics and the tables say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from slim_rl.analysis.correlations import QuestionReward, episodes_table
from slim_rl.analysis.statistics import (
    WINDOW,
    Estimate,
    as_columns,
    as_metrics,
    estimate,
    paired_difference,
    rank_correlation,
    step_estimates,
    unknown,
)
from slim_rl.evaluation.base_and_trained import MODELS
from slim_rl.studies.asking.evidence import Evidence, best_player, evidence
from slim_rl.studies.asking.measures import MEASURES, Measure, Sample
from slim_rl.studies.asking.selfplay import SelfPlay
from slim_rl.studies.asking.shyness import Shyness
from slim_rl.studies.asking.transplant import Transplant
from slim_rl.studies.asking.verdict import CRITERIA, Verdict, judge

CURVES = (
    "reward", "question_count", "useful_cells", "answers", "message_count", "malformed_count", "truncated", "errors",
)  # fmt: skip
"""What is followed over training."""
VARIED = {
    "patience": "the partner's patience",
    "price": "the price of a cell",
    "unknown_cells": "the number of unknown cells",
}
"""What differs from game to game, and asking may follow."""
FURTHER = ("useful_cells", "answers", "message_count", "malformed_count", "patience", "price", "truncated", "errors")
"""Counts of an episode in the table of all episodes, besides questions, turns and reward."""
FOLLOWERS = ("base", "trained", "optimal")
"""Players whose asking is compared with what varies."""
MIN_BOARDS = 10
"""With fewer boards, a mean is not drawn."""
_OF_PEOPLE = MEASURES[:2]
"""What is measured on the boards that people played."""
_TRANSFERRED = ("reward", "question_count", "truncated", "own_view")
"""What is measured in games that training did not play."""


@dataclass(frozen=True, eq=False)
class Findings:
    training: Sample
    held_out: Mapping[str, Sample]
    """By player; `base`, `trained` and `bayes` are among them, and have the columns of `choices`."""
    human_boards: Mapping[str, Sample]
    transplant: Transplant | None
    transfer: Mapping[str, Mapping[str, Sample]]
    """By change and player."""
    shyness: Mapping[str, Shyness]
    """By kind of question; empty if the partner was not probed."""
    selfplay: SelfPlay | None
    """Only for a policy that was trained in both seats."""

    @cached_property
    def evidence(self) -> Evidence:
        return evidence(self.frames, self.transplant)

    @cached_property
    def verdict(self) -> Verdict:
        return judge(self.evidence)

    @cached_property
    def best(self) -> str:
        """See `best_player`."""
        return best_player(self.frames)

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        return {name: sample.episodes for name, sample in self.held_out.items()}

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A row for each training step, with 95% intervals; each pools WINDOW steps around it."""
        return step_estimates(self.training.episodes, CURVES, WINDOW)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The means of each training step alone."""
        by_step = self.training.episodes.groupby("step")[list(CURVES)]
        return by_step.mean().assign(episodes=by_step.size()).reset_index()

    @cached_property
    def idle_steps(self) -> int:
        """Training steps in which the rewards of no group differed, so that there was nothing to learn from."""
        rewards = self.training.episodes.groupby(["step", "game_id"])["reward"]
        return int((~(rewards.max() > rewards.min()).groupby("step").any()).sum())

    @cached_property
    def malformed(self) -> tuple[float, float]:
        """Share of the messages of training that were malformed, in the first and in the last WINDOW steps."""
        counts = self.training.episodes.groupby("step")[["malformed_count", "message_count"]].sum()
        first, last = counts.head(WINDOW).sum(), counts.tail(WINDOW).sum()
        return first.iloc[0] / max(first.iloc[1], 1), last.iloc[0] / max(last.iloc[1], 1)

    @cached_property
    def varied(self) -> list[str]:
        """The columns of VARIED that differ between the held-out games."""
        trained = self.held_out["trained"].episodes
        return [name for name in VARIED if name in trained and trained[name].nunique() > 1]

    @cached_property
    def followers(self) -> dict[str, pd.DataFrame]:
        return {name: self.held_out[name].episodes for name in FOLLOWERS if name in self.held_out}

    @cached_property
    def follows(self) -> pd.DataFrame:
        """Cells asked for by what varies: `varied`, `at`, `player`, and `question_count` with its interval."""
        rows = [
            {"varied": name, "at": at, "player": player}
            | as_columns({"question_count": estimate(games, "question_count")})
            for name in self.varied
            for player, episodes in self.followers.items()
            for at, games in episodes.groupby(name)
            if len(games) >= MIN_BOARDS
        ]
        return pd.DataFrame(
            rows, columns=["varied", "at", "player", "question_count", "question_count_low", "question_count_high"]
        )

    @cached_property
    def correlations(self) -> dict[str, dict[str, float]]:
        """By what varies and player, the rank correlation with the cells asked for."""
        return {
            name: {player: rank_correlation(games, name, "question_count") for player, games in self.followers.items()}
            for name in self.varied
        }

    @cached_property
    def question_reward(self) -> QuestionReward:
        """How questions and reward go together."""
        cause = ""
        if self.transplant:
            more = self.transplant.differences["asks_more"].text("+.3f")
            cause = f"Made to ask as often as the trained model, the base model earns {more} more than with its own questions."
        return QuestionReward(
            self.training.episodes,
            {model: self.frames[model] for model in MODELS},
            next((name for name in ("patience", "price") if name in self.varied), None),
            task="board",
            cause=cause,
        )

    @cached_property
    def transferred(self) -> dict[str, dict[str, dict[str, Estimate]]]:
        """By change, player and measure."""
        return {
            change: {
                player: {name: estimate(sample.episodes, name) for name in _TRANSFERRED}
                for player, sample in players.items()
            }
            for change, players in self.transfer.items()
        }

    @cached_property
    def gains_by_wording(self) -> tuple[Estimate, Estimate]:
        """The gain of training where the partner answers in wordings not used in training, and with the usual ones, on the same
        boards; unknown if it was not played."""
        there = {model: sample.episodes for model, sample in self.transfer.get("wordings", {}).items()}
        if not {*MODELS} <= there.keys():
            return unknown(), unknown()
        boards = there["trained"]["game_id"]
        here = {model: self.frames[model][self.frames[model]["game_id"].isin(boards)] for model in MODELS}
        unseen, usual = (paired_difference(one["trained"], one["base"], "reward") for one in (there, here))
        return unseen, usual

    @cached_property
    def gain_kept(self) -> float:
        """The first of `gains_by_wording` as a share of the second; NaN if that is not clearly above 0."""
        unseen, usual = self.gains_by_wording
        return unseen.mean / usual.mean if usual.low > 0 else math.nan


def tables(findings: Findings) -> dict[str, pd.DataFrame]:
    """The numbers of the report as tables, by file name."""
    transfer = [
        {"change": change, "player": player, **as_columns(means)}
        for change, players in findings.transferred.items()
        for player, means in players.items()
    ]
    tables = {
        "training": findings.steps[["step", "episodes", *CURVES]],
        "training-intervals": findings.curves,
        "players": _players(findings.held_out, MEASURES),
        "human-boards": _players(findings.human_boards, _OF_PEOPLE),
        "follows": findings.follows,
        **findings.question_reward.tables,
        "episodes": episodes_table(findings.training.episodes, findings.frames, FURTHER),
        "transfer": pd.DataFrame(transfer),
    }
    if findings.transplant:
        arms = [{"arm": arm, **as_columns({"reward": mean})} for arm, mean in findings.transplant.rewards.items()]
        tables["transplant"] = pd.DataFrame(arms)
    if findings.selfplay:
        tables["selfplay"] = findings.selfplay.table
    return {name: table.round(6) for name, table in tables.items()}


def _players(players: Mapping[str, Sample], measures: Sequence[Measure]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"player": player, "episodes": len(sample.episodes)}
            | as_metrics({measure.name: sample.estimates[measure.name] for measure in measures})
            for player, sample in players.items()
        ]
    )


def metrics(findings: Findings) -> dict[str, Any]:
    """Numbers by player, and what follows from them."""
    training = findings.steps.iloc[-1][["step", *CURVES]].to_dict()
    training["step"] = int(training["step"])
    transfer = {
        change: {player: _means(means) for player, means in players.items()}
        for change, players in findings.transferred.items()
    }
    return {
        **{player: _numbers(sample, MEASURES) for player, sample in findings.held_out.items()},
        "human_boards": {player: _numbers(sample, _OF_PEOPLE) for player, sample in findings.human_boards.items()},
        "comparison": {**findings.evidence.numbers(), "best": findings.best},
        "follows": findings.correlations,
        "question_reward": findings.question_reward.metrics,
        "training": {**training, "failed": findings.training.failed, "idle_steps": findings.idle_steps},
        "transplant": _transplant(findings.transplant) if findings.transplant else None,
        "transfer": {**transfer, "gain_kept": findings.gain_kept},
        "shyness": {kind: of_kind.numbers() for kind, of_kind in findings.shyness.items()},
        **({"selfplay": findings.selfplay.metrics} if findings.selfplay else {}),
        "outcome": findings.verdict.outcome,
        "criteria": CRITERIA.version,
    }


def _transplant(transplant: Transplant) -> dict[str, float]:
    return {"games": transplant.games, **_means(transplant.rewards), **as_metrics(transplant.differences)}


def _numbers(sample: Sample, measures: Sequence[Measure]) -> dict[str, float]:
    means = _means({measure.name: sample.estimates[measure.name] for measure in measures})
    reward = as_metrics({"reward": sample.estimates["reward"]})
    return {**means, **reward, "episodes": len(sample.episodes), "failed": sample.failed}


def _means(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    return {name: one.mean for name, one in estimates.items()}
