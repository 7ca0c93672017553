"""Did the model learn to ask? One sentence, by criteria fixed before the numbers are seen.

A rising reward alone is no evidence: on boards that leak, a model earns more by asking less. So four things must hold
together on the held-out games: it asks clearly more, it earns clearly more, no player that asks nothing can gain most
of what it gained, and forbidden to ask it loses most of that again.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from slim_rl.analysis.statistics import Estimate, estimate, paired_difference
from slim_rl.studies.asking.intervention import Intervention

MIN_GAMES = 100
"""With fewer the standard error of a reward (its deviation is about 0.15) exceeds 0.015, too much to tell."""
MIN_RATIO = 2.0
"""Useful questions must at least double,"""
MIN_MORE = 0.5
"""and grow by at least one in every other game, because twice almost nothing is not asking."""
MIN_SHARE = 0.5
"""This share of the gain must lie above what a player earns that asks nothing. Where boards leak, a model that asks may
earn a little more than that player, and still gain mostly without asking."""

Outcome = Literal[
    "supported", "asks more without gain", "gains without asking", "not supported", "too little data"
]


class Criterion(NamedTuple):
    met: bool
    text: str


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    text: str
    """Begins with "Supported" or "Not supported"."""
    criteria: tuple[Criterion, ...]
    asks: Estimate
    """Useful questions a game, trained less base, on the same games."""
    gain: Estimate
    """Reward, trained less base, on the same games."""
    pays: Estimate
    """Reward, trained less the no-question Bayesian player, on the same games."""
    leak: Estimate
    """Reward of the no-question Bayesian player less what its own view alone would earn."""
    worth: Estimate | None
    """Reward of the trained model in free play less that when it may not ask; None without an intervention."""

    @property
    def supported(self) -> bool:
        return self.outcome == "supported"


def judge(
    base: pd.DataFrame, trained: pd.DataFrame, bayes: pd.DataFrame, intervention: Intervention | None = None
) -> Verdict:
    """The verdict on the episodes of the base model, the trained one and the no-question Bayesian player.

    Args:
        base, trained, bayes: `Sample.episodes` on the same held-out games.
        intervention: without it there is no fourth criterion.
    """
    asks = paired_difference(trained, base, "useful_questions")
    gain = paired_difference(trained, base, "reward")
    pays = paired_difference(trained, bayes, "reward")
    leak = estimate(bayes.assign(leak=bayes["reward"] - bayes["own_view"]), "leak")
    worth = intervention.worth_of_asking("trained") if intervention else None

    def both(column: str, spec: str) -> tuple[str, ...]:
        return tuple(f"{episodes[column].mean():{spec}}" for episodes in (base, trained))

    (few, many), (low, high) = both("useful_questions", ".2f"), both("reward", ".3f")
    unasked = f"{bayes['reward'].mean():.3f}"
    doubled = trained["useful_questions"].mean() >= MIN_RATIO * base["useful_questions"].mean()
    asks_more = asks.low > 0 and asks.mean >= MIN_MORE and bool(doubled)
    earns_more = gain.low > 0
    out_of_reach = pays.low > 0 and pays.mean >= MIN_SHARE * gain.mean
    causes = worth is None or (worth.low > 0 and worth.mean >= MIN_SHARE * gain.mean)
    games = min(asks.games, pays.games)
    criteria = [
        Criterion(
            asks_more,
            f"It asks more: {many} useful questions a game after {few}, a difference of {asks.text('+.2f')}; "
            f"required: at least twice as many, {MIN_MORE} more, and the interval above 0.",
        ),
        Criterion(
            earns_more,
            f"It earns more: reward {high} after {low}, a difference of {gain.text('+.3f')}; "
            "required: the interval above 0.",
        ),
        Criterion(
            out_of_reach,
            f"The no-question Bayesian player is {'beaten' if pays.low > 0 else 'not beaten'}: it earns "
            f"{unasked}, the trained model differs from that by {pays.text('+.3f')}; "
            f"required: the interval above 0, and at least {MIN_SHARE:.0%} of the gain.",
        ),
    ]
    if worth is not None:
        criteria.append(
            Criterion(
                causes,
                "Asking is why: on the same boards, forbidden to ask, the trained model earns less by "
                f"{worth.text('.3f')}; required: the interval above 0, and at least {MIN_SHARE:.0%} of the gain.",
            )
        )
    questions, rewards = f"from {few} to {many} a game", f"from {low} to {high}"
    outcome: Outcome
    if games < MIN_GAMES:
        outcome = "too little data"
        reason = f"too little data. The players share {games} games; {MIN_GAMES} are needed for a verdict."
    elif asks_more and earns_more and out_of_reach and causes:
        outcome = "supported"
        because = f", and forbidden to ask it earns {worth.mean:.3f} less" if worth is not None else ""
        reason = (
            f"the trained model asks {many} useful questions a game instead of {few}, its reward rises "
            f"{rewards}, no player who asks nothing can be expected to earn more than {unasked}{because}."
        )
    elif asks_more and earns_more and out_of_reach:
        outcome = "gains without asking"
        reason = (
            f"gains that do not come from asking. Useful questions rise {questions} and the reward {rewards}, but "
            f"forbidden to ask, the trained model earns only {worth.mean:.3f} less."
        )
    elif asks_more and earns_more:
        outcome = "gains without asking"
        reason = (
            f"gains that need no asking. Useful questions rise {questions} and the reward {rewards}, "
            f"but a player who asks nothing earns {unasked}."
        )
    elif earns_more:
        outcome = "gains without asking"
        reason = f"gains without asking. The reward rises {rewards}, but useful questions go {questions}."
    elif asks_more:
        outcome = "asks more without gain"
        reason = f"asks more without gain. Useful questions rise {questions}, but the reward goes {rewards}."
    else:
        outcome = "not supported"
        reason = (
            f"neither asks nor earns clearly more. Useful questions go {questions}, the reward {rewards}."
        )
    if outcome not in ("supported", "too little data") and leak.low > 0:
        reason += (
            f" The boards leak: knowing how they were selected is worth {leak.mean:.3f} without a question."
        )
    text = f"{'Supported' if outcome == 'supported' else 'Not supported'}: {reason}"
    return Verdict(outcome, text, tuple(criteria), asks, gain, pays, leak, worth)
