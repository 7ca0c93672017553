"""What is measured of a game with winners: who beats whom from which seat, ratings, and exact solutions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from slim_rl.analysis import statistics
from slim_rl.analysis.statistics import MIN_TASKS, Estimate, as_metrics, paired_difference
from slim_rl.analysis.titles import rule_of, step_of, title
from slim_rl.core.errors import UserError
from slim_rl.evaluation.base_and_trained import MODELS
from slim_rl.evaluation.study import Results

OUTCOMES = ("won", "drawn", "lost")
UNFINISHED = "unfinished"
"""A limit of turns or tokens was reached first; such games count in shares and rewards, but not in ratings."""
EACH_OTHER = "each other"
"""The opponent of both models in a game that has no players of its own."""
_RESAMPLES = 400
_ELO = 400 / np.log(10)
"""Rating points of a difference in log-odds: 400 are odds of 10 to 1 (Elo 1978)."""


@dataclass(frozen=True, eq=False)
class Matches:
    played: pd.DataFrame
    """A row for each game and seat: `player`, `opponent`, `seat`, `game_id`, `reward`, OUTCOMES and UNFINISHED
    (0 or 1), `illegal_moves`."""
    training: pd.DataFrame
    """A row an episode of training; see `slim_rl.rollout.shards.read_frame`."""
    solved: dict[str, dict[str, float]] = field(default_factory=dict)
    """Exact solutions by model, in the game's units; empty for a game that cannot be solved."""

    @cached_property
    def rules(self) -> list[str]:
        """Players that follow a rule."""
        return [name for name in dict.fromkeys(self.played["player"]) if rule_of(name)]

    @cached_property
    def models(self) -> list[str]:
        """Checkpoints and snapshots."""
        return [name for name in dict.fromkeys(self.played["player"]) if name in MODELS or step_of(name) is not None]

    @cached_property
    def opponents(self) -> list[str]:
        """All other players; EACH_OTHER if there are none."""
        known = {*self.models, *self.rules}
        return [name for name in dict.fromkeys(self.played["player"]) if name not in known] or [EACH_OTHER]

    @cached_property
    def seats(self) -> list[str]:
        """The seats in which models play."""
        return list(dict.fromkeys(self.played["seat"][~self.played["player"].isin(self.opponents)]))

    def rows(self, player: str, opponent: str, seat: str) -> pd.DataFrame:
        if opponent == EACH_OTHER:
            opponent = MODELS[player == MODELS[0]]
        chosen = self.played
        return chosen[(chosen["player"] == player) & (chosen["opponent"] == opponent) & (chosen["seat"] == seat)]

    def share(self, outcome: str, player: str, opponent: str, seat: str) -> Estimate:
        return statistics.share(self.rows(player, opponent, seat), outcome)

    def reward(self, player: str, opponent: str, seat: str) -> Estimate:
        return statistics.estimate(self.rows(player, opponent, seat), "reward")

    def gain(self, opponent: str, seat: str, over: str = MODELS[0]) -> Estimate:
        """What the trained model earns more than another player, on the same tasks."""
        trained, other = (self.rows(player, opponent, seat) for player in (MODELS[1], over))
        return paired_difference(trained, other, "reward")

    def best_rule(self, opponent: str, seat: str) -> str | None:
        """The rule that earns most; None if no rule plays this seat."""
        played = [rule for rule in self.rules if len(self.rows(rule, opponent, seat))]
        return max(played, key=lambda rule: self.reward(rule, opponent, seat).mean, default=None)

    @cached_property
    def verdict(self) -> str:
        """Against whom, and from which seats, the trained model earns more than the base model, and than the best rule."""
        fewest = min(self.gain(*place).games for place in product(self.opponents, self.seats))
        if fewest < MIN_TASKS:
            return f"Too little data: the models share {fewest} held-out games; {MIN_TASKS} are needed for a verdict."
        return " ".join([self._over_base, *self._over_rules])

    @property
    def _over_rules(self) -> Iterator[str]:
        places = [(*place, rule) for place in product(self.opponents, self.seats) if (rule := self.best_rule(*place))]
        gains = {place: self.gain(*place) for place in places}
        if gains and all(gain.low > 0 for gain in gains.values()):
            yield "It also plays better than every simple rule that the game names."
            return
        for (opponent, seat, rule), gain in gains.items():
            how = "plays better" if gain.low > 0 else "plays worse" if gain.high < 0 else "is not shown to play better"
            where = f"against {title(opponent).lower()} as {seat}"
            yield f"It {how} than the simple rule “{rule_of(rule)}” {where}: {gain.text('+.3f')} in reward."

    @property
    def _over_base(self) -> str:
        gains = {
            f"{title(opponent).lower()} as {seat}": self.gain(opponent, seat)
            for opponent, seat in product(self.opponents, self.seats)
        }
        better = [where for where, gain in gains.items() if gain.low > 0]
        worse = [where for where, gain in gains.items() if gain.high < 0]
        if len(better) == len(gains):
            return "The trained model plays better than the base model against every opponent, from every seat."
        parts = ("better", better), ("worse", worse)
        outcomes = [f"{how} against {', '.join(where)}" for how, where in parts if where]
        if not outcomes:
            return "It is not shown that the trained model plays better or worse than the base model."
        return (
            f"Compared with the base model, the trained model plays {' and '.join(outcomes)}; "
            "elsewhere no difference is shown."
        )

    def numbers(self, player: str, opponent: str, seat: str) -> dict[str, float]:
        """What is known of a model against an opponent, from one seat."""
        rows = self.rows(player, opponent, seat)
        shares = {outcome: self.share(outcome, player, opponent, seat) for outcome in (*OUTCOMES, UNFINISHED)}
        means = as_metrics({**shares, "reward": self.reward(player, opponent, seat)})
        return {"games": len(rows), "illegal_moves": rows["illegal_moves"].mean(), **means}

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every model and every rule against every opponent, by seat."""
        players = [name for name in dict.fromkeys(self.played["player"]) if name not in self.opponents]
        rows = [
            {"player": player, "opponent": opponent, "seat": seat, **self.numbers(player, opponent, seat)}
            for player, opponent, seat in product(players, self.opponents, self.seats)
        ]
        return pd.DataFrame([row for row in rows if row["games"]])

    def step(self, model: str) -> int | None:
        """The training steps behind a model."""
        last = int(self.training["step"].max()) + 1 if len(self.training) else 0
        return {"base": 0, "trained": last}.get(model, step_of(model))

    @cached_property
    def learning(self) -> pd.DataFrame:
        """`table` of the snapshots and the trained model, with the `step` of each."""
        table = self.table[self.table["player"].isin(self.models)]
        table = table.assign(step=table["player"].map(self.step))
        # A snapshot of the first or the last step is the same model; the trained one played more games.
        twice = (table["step"] == self.step("trained")) & (table["player"] != "trained")
        if "step-00000" in set(table["player"]):
            twice |= table["player"] == "base"
        return table[~twice].sort_values(["opponent", "seat", "step"], ignore_index=True)

    @cached_property
    def exactly(self) -> pd.DataFrame:
        """The exact solution of each model, by step."""
        rows = [{"player": player, "step": self.step(player), **values} for player, values in self.solved.items()]
        return pd.DataFrame(rows).sort_values(["step", "player"], ignore_index=True)

    @cached_property
    def followed(self) -> dict[str, str]:
        """Columns of `training` that are followed over it, and what to call them."""
        seats = {f"reward.{seat}": f"reward, {seat}" for seat in self.seats}
        illegal = {f"{seat}.illegal_moves": f"illegal moves, {seat}" for seat in self.seats}
        return {k: v for k, v in {**seats, "drawn": "drawn", **illegal}.items() if k in self.training}

    @cached_property
    def curves(self) -> pd.DataFrame:
        """`followed` by training step, with 95% intervals; each pools WINDOW steps around it."""
        return statistics.step_estimates(self.training, list(self.followed), statistics.WINDOW)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By file name."""
        tables = {"players": self.table, "learning": self.learning, "elo": self.ratings}
        if self.followed:
            tables["training"] = self.curves
        if self.solved:
            tables["exactly"] = self.exactly
        return tables

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """By opponent and seat: base and trained model, their difference and that from the best rule; and the exact
        solutions."""
        metrics: dict[str, Any] = {
            "comparison": {o: {seat: self._compared(o, seat) for seat in self.seats} for o in self.opponents}
        }
        for model in MODELS:
            by_opponent = {o: {seat: self.numbers(model, o, seat) for seat in self.seats} for o in self.opponents}
            metrics[model] = {"exactly": self.solved.get(model, {}), **by_opponent}
        return metrics

    def _compared(self, opponent: str, seat: str) -> dict[str, float]:
        differences = {"reward_difference": self.gain(opponent, seat)}
        if rule := self.best_rule(opponent, seat):
            differences["best_rule_difference"] = self.gain(opponent, seat, rule)
        return as_metrics(differences)

    @cached_property
    def ratings(self) -> pd.DataFrame:
        """Elo ratings, random play at 0, with 95% intervals by resampling each pair's games."""
        return elo(self.played)


def read_matches(results: Results) -> Matches:
    """The series `matches`, what `finish` wrote, and the episodes of training.

    Raises:
        UserError: there are no games, or all failed.
    """
    frame = results.series("matches")
    frame = frame[frame["status"].isin(("completed", "truncated"))] if len(frame) else frame
    if frame.empty:
        raise UserError(f"There are no finished games in {results.episodes / 'matches'}; `dvc repro` plays them.")
    ended = frame["status"] == "completed"
    seats = [column.removeprefix("reward.") for column in frame if column.startswith("reward.")]
    parts = []
    for seat, other in zip(seats, seats[::-1], strict=True):
        reward, others = frame[f"reward.{seat}"], frame[f"reward.{other}"]
        row = {
            "player": frame[f"seat.{seat}"],
            "opponent": frame[f"seat.{other}"],
            "seat": seat,
            "game_id": frame["game_id"],
            "reward": reward,
            "won": (ended & (reward > others)).astype(int),
            "drawn": (ended & (reward == others)).astype(int),
            "lost": (ended & (reward < others)).astype(int),
            UNFINISHED: (~ended).astype(int),
            "illegal_moves": frame.get(f"{seat}.illegal_moves", 0.0),
        }
        parts.append(pd.DataFrame(row))
    solved = results.episodes / "solved.json"
    return Matches(
        pd.concat(parts, ignore_index=True),
        results.training(),
        json.loads(solved.read_text(encoding="utf-8")) if solved.exists() else {},
    )


def elo(played: pd.DataFrame) -> pd.DataFrame:
    """Ratings by maximum likelihood of the Bradley-Terry model (1952), a draw as half a game won.

    Each pair is given one draw more than it played, so that a player that never loses has a rating, too; how much
    better it may be is unknown, and its interval does not say. Intervals are by bootstrap over tasks: each is drawn,
    or not, for all pairs and seats at once.

    Args:
        played: see `Matches.played`.

    Returns:
        `player`, `elo`, `low`, `high`, `games`, best first; relative to random play, or else the worst.
    """
    players = sorted(set(played["player"]))
    one = played[played["player"] < played["opponent"]]  # each game once, and no player against itself
    pairs = one.groupby(["player", "opponent"])
    names = pairs.size().index
    first, second = (names.get_level_values(level).map(players.index).to_numpy() for level in (0, 1))
    game, games = pd.factorize(one["game_id"])
    outcomes = np.zeros((len(games), len(names), len(OUTCOMES)))
    np.add.at(outcomes, (game, pairs.ngroup().to_numpy()), one[list(OUTCOMES)].to_numpy())
    anchor = players.index("random") if "random" in players else None

    def fit(weights: np.ndarray) -> np.ndarray:
        counts = np.tensordot(weights, outcomes, axes=1)
        points, total = counts @ (1, 0.5, 0) + 0.5, counts.sum(axis=1) + 1

        def loss(ratings: np.ndarray) -> tuple[float, np.ndarray]:
            margin = ratings[first] - ratings[second]
            slope = total / (1 + np.exp(-margin)) - points
            gradient = np.zeros(len(players))
            np.add.at(gradient, first, slope)
            np.add.at(gradient, second, -slope)
            return float((total * np.logaddexp(0, margin) - points * margin).sum()), gradient

        ratings = minimize(loss, np.zeros(len(players)), jac=True, method="L-BFGS-B").x * _ELO
        return ratings - (ratings.min() if anchor is None else ratings[anchor])

    rng, even = np.random.default_rng(statistics.SEED), np.full(len(games), 1 / len(games))
    drawn = [fit(rng.multinomial(len(games), even)) for _ in range(_RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    rated = pd.DataFrame({"player": players, "elo": fit(np.ones(len(games))), "low": low, "high": high})
    rated["games"] = [int(outcomes[:, (first == i) | (second == i)].sum()) for i in range(len(players))]
    return rated.sort_values("elo", ascending=False, ignore_index=True)
