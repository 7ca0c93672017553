"""What is found of a game with winners: who beats whom from which seat, ratings, and what cannot be exploited."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from statsmodels.stats.proportion import proportion_confint

from slim_rl.analysis.statistics import SEED, WINDOW, Estimate, estimate, paired_difference, step_estimates
from slim_rl.errors import UserError
from slim_rl.rollout.store import read_frame

OUTCOMES = ("won", "drawn", "lost")
UNFINISHED = "unfinished"
"""A limit of turns or tokens was reached first; such games count in shares and rewards, but not in ratings."""
MODELS = ("base", "trained")
_RESAMPLES = 400
_ELO = 400 / np.log(10)
"""Of a difference in log-odds: 400 points are odds of 10 to 1 (Elo 1978)."""
_NAMES = {
    "random": "Random play",
    "scripted": "Perfect player",
    "base": "Base model",
    "trained": "Trained model",
}
_STEP = "step-"


def name_of(player: str) -> str:
    """What a report calls `player`."""
    if player.startswith(_STEP):
        return f"After {int(player.removeprefix(_STEP))} steps"
    return _NAMES.get(player, player)


class Share(NamedTuple):
    """Of games, with its 95% Wilson interval (Wilson 1927), which is sound where nothing was ever seen."""

    mean: float
    low: float
    high: float
    games: int

    def text(self) -> str:
        return f"{self.mean:.1%} (95% interval {self.low:.1%} to {self.high:.1%}, {self.games} games)"


@dataclass(frozen=True, eq=False)
class Matches:
    played: pd.DataFrame
    """A row for each game and seat: `player`, `opponent`, `seat`, `game_id`, `reward`, OUTCOMES (0 or 1),
    `illegal_moves`, `turns`."""
    training: pd.DataFrame
    """A row an episode of training; see `slim_rl.rollout.store.Shard.numbers`."""
    solved: dict[str, dict[str, float]] = field(default_factory=dict)
    """By model: what was computed of it, in the game's units; empty for a game that cannot be computed."""

    @cached_property
    def seats(self) -> list[str]:
        return list(dict.fromkeys(self.played["seat"]))

    @cached_property
    def opponents(self) -> list[str]:
        """Those that need no model."""
        players = dict.fromkeys(self.played["player"])
        return [name for name in players if name not in MODELS and not name.startswith(_STEP)]

    def rows(self, player: str, opponent: str, seat: str) -> pd.DataFrame:
        chosen = self.played
        return chosen[
            (chosen["player"] == player) & (chosen["opponent"] == opponent) & (chosen["seat"] == seat)
        ]

    def share(self, outcome: str, player: str, opponent: str, seat: str) -> Share:
        rows = self.rows(player, opponent, seat)
        count, games = int(rows[outcome].sum()), len(rows)
        if not games:
            return Share(np.nan, np.nan, np.nan, 0)
        return Share(count / games, *proportion_confint(count, games, method="wilson"), games)

    def reward(self, player: str, opponent: str, seat: str) -> Estimate:
        return estimate(self.rows(player, opponent, seat), "reward")

    def gain(self, opponent: str, seat: str) -> Estimate:
        """What training added to the reward, in the same games."""
        return paired_difference(*(self.rows(model, opponent, seat) for model in MODELS[::-1]), "reward")

    @cached_property
    def verdict(self) -> str:
        """One sentence: against whom, and from which seats, the trained model earns more than the base model."""
        gains = {
            f"{name_of(opponent).lower()} as {seat}": self.gain(opponent, seat)
            for opponent, seat in product(self.opponents, self.seats)
        }
        better = [where for where, gain in gains.items() if gain.low > 0]
        worse = [where for where, gain in gains.items() if gain.high < 0]
        if gains and len(better) == len(gains):
            return "The trained model plays better than the base model against everybody, from every seat."
        told = ("better", better), ("worse", worse)
        said = [f"{how} against {', '.join(where)}" for how, where in told if where]
        if not said:
            return "The trained model cannot be told from the base model."
        return (
            f"Compared with the base model, the trained model plays {' and '.join(said)}; "
            "elsewhere they cannot be told apart."
        )

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every model against every opponent, by seat."""
        rows = []
        models = [name for name in dict.fromkeys(self.played["player"]) if name not in self.opponents]
        for player, opponent, seat in product(models, self.opponents, self.seats):
            chosen = self.rows(player, opponent, seat)
            if chosen.empty:
                continue
            row: dict[str, object] = {
                "player": player,
                "opponent": opponent,
                "seat": seat,
                "games": len(chosen),
            }
            for outcome in (*OUTCOMES, UNFINISHED):
                share = self.share(outcome, player, opponent, seat)
                row |= {outcome: share.mean, f"{outcome}_low": share.low, f"{outcome}_high": share.high}
            reward = self.reward(player, opponent, seat)
            row |= {"reward": reward.mean, "reward_low": reward.low, "reward_high": reward.high}
            rows.append({**row, "illegal_moves": chosen["illegal_moves"].mean()})
        return pd.DataFrame(rows)

    @cached_property
    def learning(self) -> pd.DataFrame:
        """`table` of the snapshots and the trained model, with the `step` of each."""
        table = self.table
        steps = table["player"].str.removeprefix(_STEP)
        last = int(self.training["step"].max()) + 1 if len(self.training) else 0
        named = {"base": 0, "trained": last}
        if "step-00000" in set(table["player"]):
            del named["base"]
        steps = steps.where(~table["player"].isin(list(named)), table["player"].map(named))
        table = table.assign(step=pd.to_numeric(steps, errors="coerce"))
        table = table[
            (table["step"] != last) | (table["player"] == "trained")
        ]  # its own snapshot played less
        return table.dropna(subset="step").sort_values(["opponent", "seat", "step"], ignore_index=True)

    @cached_property
    def exactly(self) -> pd.DataFrame:
        """What was computed of each model, by step."""
        last = int(self.training["step"].max()) + 1 if len(self.training) else 0
        steps = {"base": 0, "trained": last}
        rows = [
            {"player": player, "step": steps.get(player, player.removeprefix(_STEP)), **values}
            for player, values in self.solved.items()
        ]
        frame = pd.DataFrame(rows)
        return (
            frame.astype({"step": int}).sort_values(["step", "player"], ignore_index=True) if rows else frame
        )

    @cached_property
    def followed(self) -> dict[str, str]:
        """Columns of `training` that are followed over it, and what to call them."""
        seats = {f"reward.{seat}": f"reward, {seat}" for seat in self.seats}
        illegal = {f"{seat}.illegal_moves": f"illegal moves, {seat}" for seat in self.seats}
        return {k: v for k, v in {**seats, "drawn": "drawn", **illegal}.items() if k in self.training}

    @cached_property
    def curves(self) -> pd.DataFrame:
        """`followed` by training step, with 95% intervals; each pools WINDOW steps around it."""
        return step_estimates(self.training, list(self.followed), WINDOW)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By file name."""
        tables = {
            "players": self.table,
            "learning": self.learning,
            "training": self.curves,
            "elo": self.ratings,
        }
        return tables | ({"exactly": self.exactly} if self.solved else {})

    @cached_property
    def metrics(self) -> dict[str, object]:
        """For DVC: of base and trained model, by opponent and seat, their difference, and what was computed."""
        gains = {
            opponent: {seat: self.gain(opponent, seat).numbers("reward_difference") for seat in self.seats}
            for opponent in self.opponents
        }
        found: dict[str, object] = {"verdict": self.verdict, "comparison": gains}
        for model in MODELS:
            found[model] = {
                opponent: {
                    seat: {
                        **{outcome: self.share(outcome, model, opponent, seat).mean for outcome in OUTCOMES},
                        **self.reward(model, opponent, seat).numbers("reward"),
                    }
                    for seat in self.seats
                }
                for opponent in self.opponents
            } | {"exactly": self.solved.get(model, {})}
        return found

    @cached_property
    def ratings(self) -> pd.DataFrame:
        """Elo ratings, random play at 0, with 95% intervals by drawing each pair's games again."""
        return elo(self.played)


def read_matches(folder: Path, rollouts: Path) -> Matches:
    """The games in `folder/matches`, what was computed in `folder/solved.json`, and the training in `rollouts`.

    Raises:
        UserError: there are no games, or all failed.
    """
    parts = []
    for series in sorted((folder / "matches").glob("*-against-*")):
        frame = read_frame(series)
        names = series.name.split("-against-")
        seats = [column.removeprefix("reward.") for column in frame if column.startswith("reward.")]
        frame = frame[frame["status"].isin(("completed", "truncated"))]
        ended = frame["status"] == "completed"
        for place, seat in enumerate(seats):
            reward = frame[f"reward.{seat}"]
            others = frame[[f"reward.{other}" for other in seats if other != seat]].max(axis=1)
            parts.append(
                pd.DataFrame(
                    {
                        "player": names[place],
                        "opponent": names[1 - place],
                        "seat": seat,
                        "game_id": frame["game_id"],
                        "reward": reward,
                        "won": (ended & (reward > others)).astype(int),
                        "drawn": (ended & (reward == others)).astype(int),
                        "lost": (ended & (reward < others)).astype(int),
                        UNFINISHED: (~ended).astype(int),
                        "illegal_moves": frame.get(f"{seat}.illegal_moves", 0.0),
                        "turns": frame["turns"],
                    }
                )
            )
    if not parts or not sum(map(len, parts)):
        raise UserError(f"There are no finished games in {folder / 'matches'}; `dvc repro` plays them.")
    solved = folder / "solved.json"
    return Matches(
        pd.concat(parts, ignore_index=True),
        read_frame(rollouts),
        json.loads(solved.read_text()) if solved.exists() else {},
    )


def elo(played: pd.DataFrame) -> pd.DataFrame:
    """Ratings by maximum likelihood of the Bradley-Terry model (1952), a draw as half a game won.

    Each pair is given one draw more than it played, so that who never loses has a rating, too; how much better it
    may be, nobody knows, and its interval does not say. Intervals are by bootstrap over games: each is drawn, or
    not, for all pairs and seats at once.

    Args:
        played: see `Matches.played`.

    Returns:
        `player`, `elo`, `low`, `high`, `games`, best first; relative to random play, or else the worst.
    """
    players = sorted(set(played["player"]))
    one = played[played["player"] < played["opponent"]]  # each game once; nobody is rated by playing itself
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

    rng, even = np.random.default_rng(SEED), np.full(len(games), 1 / len(games))
    drawn = [fit(rng.multinomial(len(games), even)) for _ in range(_RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    rated = pd.DataFrame({"player": players, "elo": fit(np.ones(len(games))), "low": low, "high": high})
    rated["games"] = [int(outcomes[:, (first == i) | (second == i)].sum()) for i in range(len(players))]
    return rated.sort_values("elo", ascending=False, ignore_index=True)
