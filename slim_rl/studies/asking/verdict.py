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

Outcome = Literal["supported", "asks more without gain", "gains without asking", "not supported", "too little data"]


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
    asks_more, earns_more = asks.low > 0 and asks.mean >= MIN_MORE and bool(doubled), gain.low > 0
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
    if games < MIN_GAMES:
        outcome: Outcome = "too little data"
        reason = f"too little data. The players share {games} games; {MIN_GAMES} are needed for a verdict."
    else:
        outcome, reason = _outcome(asks_more, earns_more, out_of_reach, causes)
        forbidden = f"{worth.mean:.3f}" if worth is not None else ""
        reason = reason.format(
            few=few, many=many, low=low, high=high, unasked=unasked, forbidden=forbidden,
            because=f", and forbidden to ask it earns {forbidden} less" if forbidden else "",
        )  # fmt: skip
        if outcome != "supported" and leak.low > 0:
            reason += f" The boards leak: knowing how they were selected is worth {leak.mean:.3f} without a question."
    text = f"{'Supported' if outcome == 'supported' else 'Not supported'}: {reason}"
    return Verdict(outcome, text, tuple(criteria), asks, gain, pays, leak, worth)


def _outcome(asks: bool, earns: bool, out_of_reach: bool, causes: bool) -> tuple[Outcome, str]:
    """What follows from the criteria, and why."""
    if asks and earns and out_of_reach and causes:
        return "supported", (
            "the trained model asks {many} useful questions a game instead of {few}, its reward rises from {low} to "
            "{high}, no player who asks nothing can be expected to earn more than {unasked}{because}."
        )
    if asks and earns and out_of_reach:
        return "gains without asking", (
            "gains that do not come from asking. Useful questions rise from {few} to {many} a game and the reward from "
            "{low} to {high}, but forbidden to ask, the trained model earns only {forbidden} less."
        )
    if asks and earns:
        return "gains without asking", (
            "gains that need no asking. Useful questions rise from {few} to {many} a game and the reward from {low} to "
            "{high}, but a player who asks nothing earns {unasked}."
        )
    if earns:
        return "gains without asking", (
            "gains without asking. The reward rises from {low} to {high}, but useful questions go from {few} to {many} "
            "a game."
        )
    if asks:
        return "asks more without gain", (
            "asks more without gain. Useful questions rise from {few} to {many} a game, but the reward goes from {low} "
            "to {high}."
        )
    return "not supported", (
        "neither asks nor earns clearly more. Useful questions go from {few} to {many} a game, the reward from {low} to "
        "{high}."
    )
