"""Did the model learn to ask? One sentence, by the criteria of `criteria.yaml`.

A rising reward alone is no evidence: where boards leak, a model earns more by asking less. Nor are more questions: they
may be free, or what any rule would do. So the verdict asks in this order: could anything be learnt, can it be told from
guessing, does the model earn more, does it ask, are its questions why, would a rule without training do as well, and
does it choose how many questions, and which.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import pandas as pd

from slim_rl.analysis.statistics import Estimate, estimate, paired_difference, pooled, unknown
from slim_rl.evaluation.base_and_trained import Criterion
from slim_rl.studies.asking.criteria import Criteria, criteria
from slim_rl.studies.asking.parameters import ASKS_ON, ASKS_PLANNED, ASKS_UNKNOWN
from slim_rl.studies.asking.transplant import Transplant

AT_RANDOM = "asks-all-random"
"""The player without a model that asks for random cells as long as it can."""

Outcome = Literal[
    "supported", "learnt how many and not which", "learnt to ask and not what", "no better than a rule",
    "asks more without gain", "gains without asking", "not supported", "nothing to learn",
    "invalid test: the boards leak", "too little data",
]  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on, of one run or pooled over several. Differences are on the same boards; what was not
    measured is unknown."""

    games: float
    reward_base: float
    reward_trained: float
    reward_best: float
    """The reward of `best_player`."""
    useful_base: float
    useful_trained: float
    """Useful cells a game."""
    truncated_base: float
    """Share of the base model's games that run out of turns."""
    more: Estimate
    """Useful cells, trained less base."""
    gain: Estimate
    """Reward, trained less base; so are the differences below."""
    pays: Estimate
    """Trained less the player that asks nothing and infers."""
    regret: Estimate
    """The best player less trained."""
    over_asking_on: Estimate
    """Trained less ASKS_ON."""
    over_asking_unknown: Estimate
    """Trained less ASKS_UNKNOWN."""
    over_asking_planned: Estimate
    """Trained less ASKS_PLANNED."""
    room: Estimate
    """What asking can earn: the best player less what its own view alone is worth."""
    leak: Estimate
    """The player that asks nothing and infers, less what its own view alone is worth."""
    choice: Estimate
    """`optimal` less AT_RANDOM."""
    rank: Estimate
    """Rank of the cells that the trained model asked for; see `choices`."""
    rank_unknown: Estimate
    """The same of unknown cells, among unknown cells."""
    follows: Estimate
    """Rank correlation of the cells asked for with the partner's patience, or against the price: trained less base."""
    transplanted: Estimate
    """`gain` on the boards of the transplant, like the two below."""
    asks: Estimate
    """The base model with the trained model's questions, less free play."""
    worth: Estimate
    """The trained model in free play less the same forbidden to ask."""

    def numbers(self) -> dict[str, float]:
        """For metrics.json."""
        numbers: dict[str, float] = {}
        for name, value in vars(self).items():
            numbers |= value.numbers(name) if isinstance(value, Estimate) else {name: value}
        return numbers


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    text: str
    criteria: tuple[Criterion, ...]

    @property
    def supported(self) -> bool:
        return self.outcome in ("supported", "learnt how many and not which", "learnt to ask and not what")


def best_player(players: Mapping[str, pd.DataFrame]) -> str:
    """`optimal`; where it was not played, the player that earns most, models included: one must show what asking can
    earn."""
    return "optimal" if "optimal" in players else max(players, key=lambda name: players[name]["reward"].mean())


def evidence(players: Mapping[str, pd.DataFrame], transplant: Transplant | None) -> Evidence:
    """The evidence of episodes on the same held-out games.

    Args:
        players: `Sample.episodes` by player, with the columns of `choices` where they are known. `base`, `trained` and
            `bayes` are among them.
    """
    base, trained, bayes = (players[name] for name in ("base", "trained", "bayes"))
    best = players[best_player(players)]

    def less(one: pd.DataFrame, other: str | pd.DataFrame, column: str = "reward") -> Estimate:
        if isinstance(other, str):
            return less(one, players[other], column) if other in players else unknown()
        return paired_difference(one, other, column)

    def over_own_view(player: pd.DataFrame) -> Estimate:
        return estimate(player.assign(over=player["reward"] - player["own_view"]), "over")

    gain, pays = less(trained, base), less(trained, bayes)
    return Evidence(
        games=min(gain.games, pays.games),
        reward_base=float(base["reward"].mean()),
        reward_trained=float(trained["reward"].mean()),
        reward_best=float(best["reward"].mean()),
        useful_base=float(base["useful_cells"].mean()),
        useful_trained=float(trained["useful_cells"].mean()),
        truncated_base=float(base["truncated"].mean()),
        more=less(trained, base, "useful_cells"),
        gain=gain,
        pays=pays,
        regret=unknown() if best is trained else less(best, trained),
        over_asking_on=less(trained, ASKS_ON),
        over_asking_unknown=less(trained, ASKS_UNKNOWN),
        over_asking_planned=less(trained, ASKS_PLANNED),
        room=over_own_view(best),
        leak=over_own_view(bayes),
        choice=less(best, AT_RANDOM) if "optimal" in players else unknown(),
        rank=estimate(trained, "rank", "ranked") if "rank" in trained else unknown(),
        rank_unknown=estimate(trained, "rank_unknown", "ranked_unknown") if "rank" in trained else unknown(),
        follows=_follows(base, trained),
        transplanted=transplant.parts["gain"] if transplant else unknown(),
        asks=transplant.parts["asks"] if transplant else unknown(),
        worth=transplant.worth_of_asking("trained") if transplant else unknown(),
    )


def _follows(base: pd.DataFrame, trained: pd.DataFrame) -> Estimate:
    """See `Evidence.follows`; unknown if neither patience nor price differs from game to game."""
    varied = [name for name in ("patience", "price") if name in trained and trained[name].nunique() > 1]
    if not varied:
        return unknown()
    after, before = (_with_agreement(episodes, varied[0]) for episodes in (trained, base))
    return paired_difference(after, before, "agreement")


def _with_agreement(episodes: pd.DataFrame, limit: str) -> pd.DataFrame:
    """Spearman's rank correlation is a mean over games; `agreement` is what each contributes to it."""
    ranks = episodes[["question_count", limit]].rank()
    asked, limits = (ranks[name] - ranks[name].mean() for name in ranks)
    spread = float(asked.std(ddof=0) * limits.std(ddof=0))  # who always asks for the same number follows nothing
    agreement = asked * limits / spread if spread else 0.0 * asked
    return episodes.assign(agreement=-agreement if limit == "price" else agreement)


def pooled_evidence(runs: Sequence[Mapping[str, Any]]) -> Evidence:
    """The evidence of several runs, the run as the unit.

    Args:
        runs: `Evidence.numbers` of each.
    """
    values_of_fields: dict[str, Any] = {}
    for field in fields(Evidence):
        values = [math.nan if (value := run.get(field.name)) is None else float(value) for run in runs]
        if field.type is Estimate:
            values_of_fields[field.name] = pooled(values)
        else:
            values_of_fields[field.name] = min(values) if field.name == "games" else sum(values) / len(values)
    return Evidence(**values_of_fields)


def judge(e: Evidence) -> Verdict:
    c = criteria()
    few, many = f"{e.useful_base:.2f}", f"{e.useful_trained:.2f}"
    asks_more = e.more.low > 0 and e.more.mean >= c.min_cells
    requirements = [
        Criterion(
            e.gain.low > 0,
            f"It earns more: reward {e.reward_trained:.3f} ({e.reward_base:.3f} before); by "
            f"{e.gain.text('+.3f')}. Required: above 0.",
        ),
        Criterion(
            e.useful_trained >= c.min_cells and e.pays.low > 0,
            f"It asks: {many} useful cells a game ({few} before), and earns {e.pays.text('+.3f')} more than a "
            f"player that asks nothing and infers. Required: {c.min_cells} cells, and above 0.",
        ),
        _asking_is_why(e, asks_more, c),
    ]
    earns, asks, causes = (criterion.met for criterion in requirements)
    beats_a_rule, follows, chooses = _beats_a_rule(e), _follows_the_limits(e, c), _chooses(e, c)
    outcome: Outcome
    said = (
        f"It asks for {many} useful cells a game ({few} before training) and earns {e.reward_trained:.3f} "
        f"({e.reward_base:.3f} before)."
    )
    if e.games < c.min_games:
        outcome = "too little data"
        text = f"Too little data: the players share {e.games:.0f} boards; a verdict needs {c.min_games}."
    elif not (e.room.low > 0 and e.room.mean >= c.min_room):
        nothing = f"asking earns the best player no more than {max(e.room.mean, 0):.3f} above what it sees"
        if asks_more:
            outcome, text = "asks more without gain", f"Not supported: asks more without gain. {said} But {nothing}."
        else:
            outcome, text = "nothing to learn", f"Nothing to learn: {nothing}. {said}"
    elif e.leak.low > 0 and e.leak.mean >= c.max_leak_share * e.room.mean:
        outcome = "invalid test: the boards leak"
        text = (
            "Invalid test: the boards leak. Without a question, a player that knows how boards are selected earns "
            f"{e.leak.mean:.3f} more than its view is worth; asking earns the best player {e.room.mean:.3f}. {said}"
        )
    elif earns and asks and causes and beats_a_rule and not beats_a_rule.met:
        outcome, does = "no better than a rule", _does(e.over_asking_on, e.reward_trained)
        text = f"Not supported: a base model with one hand-written rule, not to stop, {does}. {said}"
    elif earns and asks and causes:
        what, outcome = _what_was_learnt(follows, chooses, of_a_kind=not e.rank_unknown.low >= c.min_rank)
        best = "The best player" if math.isnan(e.choice.mean) else "The two-step asker, a script,"
        text = f"Supported: the model learnt {what}. {said} {best} earns {e.reward_best:.3f}."
        if not math.isnan(e.over_asking_unknown.mean) and not e.over_asking_unknown.low > 0:
            does = _does(e.over_asking_unknown, e.reward_trained)
            text += f" A base model with two hand-written rules {does}: it does not stop, and asks for unknown scores."
    elif earns:
        outcome, text = "gains without asking", f"Not supported: {_earns_otherwise(e, asks_more, c)}. {said}"
    elif asks_more:
        outcome, text = "asks more without gain", f"Not supported: asks more without gain. {said}"
    else:
        outcome, text = "not supported", f"Not supported: it neither asks nor earns clearly more. {said}"
    if e.truncated_base > 0.5:
        text += (
            f" But the base model runs out of turns in {e.truncated_base:.0%} of its games: it cannot play yet, so "
            "this says little about asking."
        )
    choices = [criterion for criterion in (beats_a_rule, follows, chooses) if criterion]
    return Verdict(outcome, text, (*requirements, *choices))


def _does(trained_over: Estimate, trained: float) -> str:
    """How another player does beside the trained model, which earns `trained`, and by `trained_over` more than it."""
    how = "does better" if trained_over.high < 0 else "does about as well"
    return f"{how} ({trained - trained_over.mean:.3f} against {trained:.3f})"


def _asking_is_why(e: Evidence, asks_more: bool, c: Criteria) -> Criterion:
    if math.isnan(e.asks.mean):
        return Criterion(
            asks_more,
            f"It asks more: {e.more.text('+.2f')} useful cells a game. Required: above 0, and at "
            f"least {c.min_cells} more. (The transplant was not played, so this does not show that asking causes the gain.)",
        )
    return Criterion(
        e.asks.low > 0 and e.asks.mean >= c.min_share * e.transplanted.mean and e.worth.low > 0,
        f"Asking causes the gain: with the trained model's questions the base model earns {e.asks.text('+.3f')} more, of a "
        f"gain of {e.transplanted.mean:+.3f} on these boards; the trained model earns "
        f"{e.worth.text('+.3f')} more than when it is forbidden to ask. "
        f"Required: both above 0, and {c.min_share:.0%} of the gain.",
    )


def _earns_otherwise(e: Evidence, asks_more: bool, c: Criteria) -> str:
    """Why a model that earns more has not shown that asking is the reason."""
    transplanted = not math.isnan(e.asks.mean)
    if transplanted and not e.asks.low > 0:
        return "gains without asking"
    if e.more.high < 0:
        return "it gains by asking less"
    if not transplanted and not asks_more:
        return "gains without asking"
    if e.asks.mean < c.min_share * e.transplanted.mean:
        return "most of the gain comes without asking"
    if not e.pays.low > 0:
        return "it gains by its questions, but by too little to beat a player that asks nothing"
    if e.useful_trained < c.min_cells:
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


def _follows_the_limits(e: Evidence, c: Criteria) -> Criterion | None:
    """None if the limits do not differ from game to game."""
    if math.isnan(e.follows.mean):
        return None
    return Criterion(
        e.follows.low >= c.min_follow,
        "It learnt how many: the rank correlation of the questions with patience, or against price, is "
        f"{e.follows.text('+.2f')} above the base model's. Required: {c.min_follow}.",
    )


def _chooses(e: Evidence, c: Criteria) -> Criterion | None:
    """None if it is known that it matters little which cells are asked for."""
    if e.choice.mean < c.min_choice:
        return None
    return Criterion(
        e.rank.low >= c.min_rank,
        f"It chooses: the cells it asks for rank {e.rank.text('.2f')} by value among the open ones, random cells "
        f"0.50. Required: {c.min_rank}.",
    )


def _what_was_learnt(follows: Criterion | None, chooses: Criterion | None, of_a_kind: bool) -> tuple[str, Outcome]:
    """In words, and the outcome.

    Args:
        of_a_kind: it is not shown to choose among unknown cells, so if its cells rank high it is
            because it knows nothing of them.
    """
    many = follows is not None and follows.met
    if chooses is not None and chooses.met:
        which = "of which kind" if of_a_kind else "which" if many else "which cells to ask for"
        return f"{'how many cells to ask for' if many else 'to ask'}, and {which}", "supported"
    if chooses is None and (many or follows is None):
        return ("how many cells to ask for" if many else "to ask"), "supported"
    if many:
        return "how many cells to ask for, and not which", "learnt how many and not which"
    if follows is None:
        return "to ask, and not which cells to ask for", "learnt to ask and not what"
    neither = (
        "and not how many cells to ask for" if chooses is None else "but neither how many cells to ask for nor which"
    )
    return f"to ask, {neither}", "learnt to ask and not what"
