"""What was found, in numbers: all that the report, the metrics and the tables say."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from slim_rl.analysis.statistics import WINDOW, Estimate, estimate, paired_difference, step_estimates
from slim_rl.studies.asking import verdict
from slim_rl.studies.asking.intervention import FORBIDDEN, FREE, MODELS, Intervention
from slim_rl.studies.asking.measures import MEASURES, TALK_MEASURES, Measure, Sample
from slim_rl.studies.asking.selfplay import SelfPlay
from slim_rl.studies.asking.shyness import Shyness

CURVES = (
    "reward", "oracle_given_information", "gap_to_oracle", "questions", "useful_questions", "repeated", "known",
    "unanswerable", "answered_with_number", "turns", "errors",
)  # fmt: skip
"""What is followed over training."""
COMPARED = (
    "reward", "questions", "useful_questions", "wasted", "oracle_given_information", "gap_to_oracle", "turns", "errors",
)  # fmt: skip
NAMES = {m.name: m.title for m in MEASURES} | {"wasted": "Useless questions"}


@dataclass(frozen=True, eq=False)
class Findings:
    training: Sample
    held_out: Mapping[str, Sample]
    """By player; `base`, `trained` and `bayes` are among them."""
    human_boards: Mapping[str, Sample]
    intervention: Intervention | None
    like_people: bool
    """Whether the held-out boards are selected like those that people played."""
    shyness: Mapping[str, Shyness] = field(default_factory=dict)
    """By kind of question; empty if the partner was not probed."""
    selfplay: SelfPlay | None = None
    """Only for a policy that was trained in both seats."""

    @cached_property
    def verdict(self) -> verdict.Verdict:
        base, trained, bayes = (self.held_out[player].episodes for player in ("base", "trained", "bayes"))
        return verdict.judge(base, trained, bayes, self.intervention)

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
    def lines(self) -> dict[str, Estimate]:
        """Rewards to compare those of training with."""
        lines = {
            "no-question Bayes": self.held_out["bayes"].estimates["reward"],
            "own view alone": estimate(self.held_out["trained"].episodes, "own_view"),
        }
        if self.like_people and "humans" in self.human_boards:
            lines["people"] = self.human_boards["humans"].estimates["reward"]
        return lines

    @cached_property
    def paired(self) -> dict[str, Estimate]:
        """Trained less base on the same boards."""
        base, trained = self.held_out["base"].episodes, self.held_out["trained"].episodes
        return {name: paired_difference(trained, base, name) for name in COMPARED}


def tables(findings: Findings) -> dict[str, pd.DataFrame]:
    """The numbers of the report as tables, by file name."""
    found = {
        "training": findings.steps[["step", "episodes", *CURVES]],
        "training-intervals": findings.curves,
        "players": _players(findings.held_out, MEASURES),
        "human-boards": _players(findings.human_boards, TALK_MEASURES),
        "paired": pd.DataFrame(
            [[name, *difference[:4]] for name, difference in findings.paired.items()],
            columns=["measure", "difference", "low", "high", "se"],
        ),
    }
    if findings.intervention:
        found["intervention"] = arms = findings.intervention.table()
        found["forced"] = arms.dropna().pivot(index="forced", columns="model", values="reward").reset_index()
    if findings.selfplay:
        found["selfplay"] = findings.selfplay.table
    return {name: table.round(6) for name, table in found.items()}


def _players(players: Mapping[str, Sample], shown: Iterable[Measure]) -> pd.DataFrame:
    rows = []
    for player, sample in players.items():
        rows.append({"player": player, "episodes": len(sample.episodes)})
        for measure in shown:
            rows[-1] |= sample.estimates[measure.name].numbers(measure.name)
    return pd.DataFrame(rows)


def metrics(findings: Findings) -> dict[str, Any]:
    """Numbers by player, and what follows from them."""
    base, trained = (findings.held_out[player] for player in MODELS)
    found = findings.verdict

    def ratio(name: str) -> float:
        before, after = base.estimates[name].mean, trained.estimates[name].mean
        return after / before if before else math.nan

    comparison = {
        "games": found.gain.games,
        "questions_ratio": ratio("questions"),
        "useful_questions_ratio": ratio("useful_questions"),
        **findings.paired["questions"].numbers("questions_difference"),
        **found.asks.numbers("useful_questions_difference"),
        **found.gain.numbers("reward_difference"),
        "reward_difference_in_standard_errors": found.gain.mean / found.gain.se if found.gain.se else math.nan,
        **found.pays.numbers("reward_over_no_question_player"),
        **found.leak.numbers("leak"),
    }
    training = findings.steps.iloc[-1][["step", *CURVES]].to_dict()
    training["step"] = int(training["step"])
    return {
        **{player: _numbers(sample, MEASURES) for player, sample in findings.held_out.items()},
        "human_boards": {
            player: {**_numbers(sample, TALK_MEASURES), "question_marks": sample.estimates["question_marks"].mean}
            for player, sample in findings.human_boards.items()
        },
        "comparison": comparison,
        "training": {**training, "failed": findings.training.failed},
        "intervention": _intervention(findings.intervention) if findings.intervention else None,
        "shyness": {kind: of_kind.numbers() for kind, of_kind in findings.shyness.items()},
        **({"selfplay": _selfplay(findings.selfplay)} if findings.selfplay else {}),
        "outcome": found.outcome,
    }


def _intervention(found: Intervention) -> dict[str, Any]:
    numbers: dict[str, Any] = {"games": len(found.boards)}
    for model in MODELS:
        numbers[model] = {
            FREE: found.reward(model, FREE).mean,
            FORBIDDEN: found.reward(model, FORBIDDEN).mean,
            **{f"forced_{k}": found.reward(model, f"forced-{k}").mean for k in found.forced},
            **found.worth_of_asking(model).numbers("worth_of_asking"),
            **found.worth_of_a_question(model).numbers("worth_of_a_question"),
        }
    for part, value in found.parts.items():
        numbers |= value.numbers(part.replace(" ", "_"))
    return numbers


def _selfplay(found: SelfPlay) -> dict[str, Any]:
    numbers: dict[str, Any] = {"verdict": found.verdict}
    for pairing, gain in found.gains.items():
        numbers[pairing] = {model: found.mean(pairing, model, "reward").mean for model in MODELS}
        numbers[pairing] |= gain.numbers("gain")
    return numbers


def _numbers(sample: Sample, shown: Iterable[Measure]) -> dict[str, float]:
    numbers = {measure.name: sample.estimates[measure.name].mean for measure in shown}
    reward = sample.estimates["reward"].numbers("reward")
    return {**numbers, **reward, "episodes": len(sample.episodes), "failed": sample.failed}
