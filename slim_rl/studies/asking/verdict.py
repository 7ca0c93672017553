"""Did the model learn to ask? One sentence, by the criteria of `criteria.yaml`.

A rising reward alone is no evidence: where boards leak, a model earns more by asking less. Nor are more questions: they
may be free, or what any rule would do. So the verdict asks in this order: could anything be learnt, can it be told from
guessing, does the model earn more, does it ask, are its questions why, would a rule without training do as well, and
does it choose how many questions, and which.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import yaml

from slim_rl.analysis.statistics import Estimate
from slim_rl.evaluation.base_and_trained import Criterion
from slim_rl.studies.asking.evidence import Evidence

Outcome = Literal[
    "supported", "learnt how many and not which", "learnt to ask and not how many", "learnt to ask and not what",
    "no better than a rule", "gains by asking less", "asks more without gain", "gain not shown to come from asking",
    "not supported", "nothing to learn", "invalid test: the boards leak", "too little data",
]  # fmt: skip


@dataclass(frozen=True)
class Criteria:
    """What stands in `criteria.yaml`."""

    version: int
    fixed: datetime
    meanings: Mapping[str, str]
    min_games: float
    min_room: float
    max_leak_share: float
    min_cells: float
    min_share: float
    min_choice: float
    min_follow: float
    min_rank: float


def _criteria() -> Criteria:
    file = yaml.safe_load(Path(__file__).with_name("criteria.yaml").read_bytes())
    each = file["criteria"].items()
    values = {name: one["value"] for name, one in each}
    return Criteria(file["version"], file["fixed"].astimezone(UTC), {n: one["meaning"] for n, one in each}, **values)


CRITERIA = _criteria()


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    text: str
    criteria: tuple[Criterion, ...]

    @property
    def supported(self) -> bool:
        return self.outcome in (
            "supported", "learnt how many and not which", "learnt to ask and not how many", "learnt to ask and not what",
        )  # fmt: skip


def judge(e: Evidence) -> Verdict:
    asks_more = e.more.low > 0 and e.more.mean >= CRITERIA.min_cells
    requirements = _earns(e), _asks(e), _asking_is_why(e, asks_more)
    choices = _beats_a_rule(e), _follows_the_limits(e), _chooses(e)
    outcome, text = _invalid(e, asks_more) or _conclusion(e, asks_more, requirements, *choices)
    if e.truncated_base > 0.5:
        text += (
            f" But the base model runs out of turns in {e.truncated_base:.0%} of its games: it cannot play yet, so "
            "this says little about asking."
        )
    return Verdict(outcome, text, (*requirements, *(criterion for criterion in choices if criterion)))


def _numbers(e: Evidence) -> str:
    return (
        f"It asks for {e.useful_trained:.2f} useful cells a game ({e.useful_base:.2f} before training) and earns "
        f"{e.reward_trained:.3f} ({e.reward_base:.3f} before)."
    )


def _invalid(e: Evidence, asks_more: bool) -> tuple[Outcome, str] | None:
    """Why this run cannot show that a model learnt to ask; None if it can."""
    if e.games < CRITERIA.min_games:
        text = f"Too little data: the players share {e.games:.0f} boards; a verdict needs {CRITERIA.min_games}."
        return "too little data", text
    worth = f"asking earns the best player {e.room.text('+.3f')} more than what it sees"
    if not e.room.mean >= CRITERIA.min_room:
        if asks_more and not e.gain.low > 0:
            return "asks more without gain", f"Not supported: asks more without gain. {_numbers(e)} But {worth}."
        return "nothing to learn", f"Nothing to learn: {worth}. {_numbers(e)}"
    if not e.room.low > 0:
        return "too little data", f"Too little data: {worth}, which may be nothing. {_numbers(e)}"
    if e.leak.mean >= CRITERIA.max_leak_share * e.room.mean:
        return "invalid test: the boards leak", (
            "Invalid test: the boards leak. Without a question, a player that knows how boards are selected earns "
            f"{e.leak.mean:.3f} more than its view is worth; asking earns the best player {e.room.mean:.3f}. {_numbers(e)}"
        )
    return None


def _conclusion(
    e: Evidence,
    asks_more: bool,
    requirements: Sequence[Criterion],
    beats_a_rule: Criterion | None,
    follows: Criterion | None,
    chooses: Criterion | None,
) -> tuple[Outcome, str]:
    if not all(criterion.met for criterion in requirements):
        if e.gain.low > 0:
            text = f"Not supported: {_earns_otherwise(e, asks_more)}. {_numbers(e)}"
            return "gain not shown to come from asking", text
        if asks_more:
            return "asks more without gain", f"Not supported: asks more without gain. {_numbers(e)}"
        return "not supported", f"Not supported: it neither asks nor earns clearly more. {_numbers(e)}"
    if beats_a_rule and not beats_a_rule.met:
        does = _does(e.over_asking_on, e.reward_trained)
        text = f"Not supported: a base model with one hand-written rule, not to stop, {does}. {_numbers(e)}"
        return "no better than a rule", text
    less = e.more.high < 0
    if less and not any(criterion and criterion.met for criterion in (follows, chooses)):
        return "gains by asking less", f"Not supported: it gains by asking less. {_numbers(e)}"
    of_a_kind = not e.rank_unknown.low >= CRITERIA.min_rank
    what, outcome = _what_was_learnt(follows, chooses, "to ask less" if less else "to ask", of_a_kind)
    best = "The best player" if math.isnan(e.choice.mean) else "The two-step asker, a script,"
    text = f"Supported: the model learnt {what}. {_numbers(e)} {best} earns {e.reward_best:.3f}."
    if not math.isnan(e.over_asking_unknown.mean) and not e.over_asking_unknown.low > 0:
        does = _does(e.over_asking_unknown, e.reward_trained)
        text += f" A base model with two hand-written rules {does}: it does not stop, and asks for unknown scores."
    return outcome, text


def _does(trained_over: Estimate, trained: float) -> str:
    """How another player does beside the trained model, which earns `trained`, and by `trained_over` more than it."""
    how = "does better" if trained_over.high < 0 else "is not shown to do worse"
    return f"{how} ({trained - trained_over.mean:.3f} against {trained:.3f})"


def _earns(e: Evidence) -> Criterion:
    return Criterion(
        e.gain.low > 0,
        f"It earns more: reward {e.reward_trained:.3f} ({e.reward_base:.3f} before); by "
        f"{e.gain.text('+.3f')}. Required: above 0.",
    )


def _asks(e: Evidence) -> Criterion:
    return Criterion(
        e.useful_trained >= CRITERIA.min_cells and e.pays.low > 0,
        f"It asks: {e.useful_trained:.2f} useful cells a game ({e.useful_base:.2f} before), and earns "
        f"{e.pays.text('+.3f')} more than a player that asks nothing and infers. Required: {CRITERIA.min_cells} cells, "
        "and above 0.",
    )


def _asking_is_why(e: Evidence, asks_more: bool) -> Criterion:
    if math.isnan(e.asks.mean):
        return Criterion(
            asks_more,
            f"It asks more: {e.more.text('+.2f')} useful cells a game. Required: above 0, and at "
            f"least {CRITERIA.min_cells} more. (The transplant was not played, so this does not show that asking causes the gain.)",
        )
    return Criterion(
        e.asks.low > 0 and e.asks.mean >= CRITERIA.min_share * e.transplanted.mean and e.worth.low > 0,
        f"Asking causes the gain: with the trained model's questions the base model earns {e.asks.text('+.3f')} more than with "
        f"its own, of a gain of {e.transplanted.mean:+.3f} on these boards; the trained model earns "
        f"{e.worth.text('+.3f')} more than when it is forbidden to ask. "
        f"Required: both above 0, and {CRITERIA.min_share:.0%} of the gain.",
    )


def _earns_otherwise(e: Evidence, asks_more: bool) -> str:
    """Why a model that earns more has not shown that asking is the reason."""
    transplanted, enough = not math.isnan(e.asks.mean), CRITERIA.min_share * e.transplanted.mean
    if transplanted and not e.asks.low > 0:
        if e.asks.mean < enough:
            return "gains without asking"
        return "too few boards or runs to show that asking is why (studies.asking.transplant_games)"
    if e.more.high < 0:
        return "it gains by asking less"
    if not transplanted and not asks_more:
        return "gains without asking"
    if e.asks.mean < enough:
        return "most of the gain comes without asking"
    if not e.pays.low > 0:
        return "it gains by its questions, but by too little to beat a player that asks nothing"
    if e.useful_trained < CRITERIA.min_cells:
        return "it hardly asks"
    return "it is not shown to earn more than when it is forbidden to ask"


def _beats_a_rule(e: Evidence) -> Criterion | None:
    """None if the base model was not played by that rule."""
    on = e.over_asking_on
    if math.isnan(on.mean):
        return None
    return Criterion(
        on.low > 0,
        f"It beats the base model that is not allowed to stop: by {on.text('+.3f')}. Required: above 0.",
    )


def _follows_the_limits(e: Evidence) -> Criterion | None:
    """None if the limits do not differ from game to game."""
    if math.isnan(e.follows.mean):
        return None
    return Criterion(
        e.follows.low >= CRITERIA.min_follow,
        "It learnt how many: the rank correlation of the questions with patience, or against price, is "
        f"{e.follows.text('+.2f')} above the base model's. Required: {CRITERIA.min_follow}.",
    )


def _chooses(e: Evidence) -> Criterion | None:
    """None if it is known that it matters little which cells are asked for."""
    if e.choice.mean < CRITERIA.min_choice:
        return None
    return Criterion(
        e.rank.low >= CRITERIA.min_rank,
        f"It chooses: the cells it asks for rank {e.rank.text('.2f')} by value among the open ones, random cells "
        f"0.50. Required: {CRITERIA.min_rank}.",
    )


def _what_was_learnt(
    follows: Criterion | None, chooses: Criterion | None, to_ask: str, of_a_kind: bool
) -> tuple[str, Outcome]:
    """In words, and the outcome.

    Args:
        to_ask: what it learnt at least.
        of_a_kind: it is not shown to choose among unknown cells, so if its cells rank high it is
            because it knows nothing of them.
    """
    many = follows is not None and follows.met
    learnt = "how many cells to ask for" if many else to_ask
    if chooses is not None and chooses.met:
        which = "of which kind" if of_a_kind else "which" if many else "which cells to ask for"
        return f"{learnt}, and {which}", "supported"
    if chooses is None and (many or follows is None):
        return learnt, "supported"
    if many:
        return f"{learnt}, and not which", "learnt how many and not which"
    if follows is None:
        return f"{learnt}, and not which cells to ask for", "learnt to ask and not what"
    if chooses is None:
        return f"{learnt}, and not how many cells to ask for", "learnt to ask and not how many"
    return f"{learnt}, but neither how many cells to ask for nor which", "learnt to ask and not what"
