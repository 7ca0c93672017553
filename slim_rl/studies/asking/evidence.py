"""What a verdict rests on: differences between players on the same held-out boards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from slim_rl.analysis.statistics import (
    Estimate,
    as_metrics,
    estimate,
    paired_difference,
    pooled,
    rank_correlation_difference,
    unknown,
)
from slim_rl.studies.asking.parameters import ASKS_ON, ASKS_PLANNED, ASKS_UNKNOWN
from slim_rl.studies.asking.transplant import Transplant

AT_RANDOM = "asks-all-random"
"""The player without a model that asks for random cells as long as it can."""


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
    """The base model with the trained model's questions less the same with its own; it has to propose after both."""
    worth: Estimate
    """The trained model in free play less the same forbidden to ask."""

    def numbers(self) -> dict[str, float]:
        """For metrics.json."""
        numbers = {name: value for name, value in vars(self).items() if not isinstance(value, Estimate)}
        return numbers | as_metrics({name: value for name, value in vars(self).items() if name not in numbers})


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

    def over(other: str, column: str = "reward") -> Estimate:
        """The trained model less another player."""
        return paired_difference(trained, players[other], column) if other in players else unknown()

    def over_own_view(player: pd.DataFrame) -> Estimate:
        return estimate(player.assign(over=player["reward"] - player["own_view"]), "over")

    gain, pays = over("base"), over("bayes")
    chosen = {"optimal", AT_RANDOM} <= players.keys()
    by_transplant = transplant.differences if transplant else {}
    return Evidence(
        games=min(gain.games, pays.games),
        reward_base=float(base["reward"].mean()),
        reward_trained=float(trained["reward"].mean()),
        reward_best=float(best["reward"].mean()),
        useful_base=float(base["useful_cells"].mean()),
        useful_trained=float(trained["useful_cells"].mean()),
        truncated_base=float(base["truncated"].mean()),
        more=over("base", "useful_cells"),
        gain=gain,
        pays=pays,
        regret=unknown() if best is trained else paired_difference(best, trained, "reward"),
        over_asking_on=over(ASKS_ON),
        over_asking_unknown=over(ASKS_UNKNOWN),
        over_asking_planned=over(ASKS_PLANNED),
        room=over_own_view(best),
        leak=over_own_view(bayes),
        choice=paired_difference(best, players[AT_RANDOM], "reward") if chosen else unknown(),
        rank=estimate(trained, "rank", "ranked"),
        rank_unknown=estimate(trained, "rank_unknown", "ranked_unknown"),
        follows=_follows(base, trained),
        transplanted=by_transplant.get("gain", unknown()),
        asks=by_transplant.get("asks", unknown()),
        worth=by_transplant.get("worth_of_asking_trained", unknown()),
    )


def _follows(base: pd.DataFrame, trained: pd.DataFrame) -> Estimate:
    """See `Evidence.follows`; unknown if neither patience nor price differs from game to game."""
    varied = [name for name in ("patience", "price") if name in trained and trained[name].nunique() > 1]
    if not varied:
        return unknown()
    # More patience, more questions; a higher price, fewer, so there the base model's less the trained one's.
    pair = (base, trained) if varied[0] == "price" else (trained, base)
    return rank_correlation_difference(*pair, varied[0], "question_count")


def pooled_evidence(runs: Sequence[Mapping[str, Any]]) -> Evidence:
    """The evidence of several runs, the run as the unit.

    Args:
        runs: `Evidence.numbers` of each.
    """
    values: dict[str, Any] = {}
    for field in fields(Evidence):
        of_runs = [math.nan if (value := run.get(field.name)) is None else float(value) for run in runs]
        values[field.name] = pooled(of_runs) if field.type is Estimate else sum(of_runs) / len(of_runs)
        if field.name == "games":
            values[field.name] = min(of_runs)
    return Evidence(**values)
