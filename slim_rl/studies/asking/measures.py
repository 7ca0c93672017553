"""What is measured of a player: its episodes on disk as a table, and the numbers that a report shows of them.

What was asked for and answered is what the game records, in cells. Only people's messages are read again for questions.
"""

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from slim_rl.analysis import titles
from slim_rl.analysis.statistics import Estimate, estimate
from slim_rl.core.errors import UserError
from slim_rl.rollout.shards import read_frame


class Measure(NamedTuple):
    name: str
    title: str
    meaning: str
    spec: str = ".2f"
    """The format of its numbers."""
    of: str = ""
    """The column that is averaged; by default the one of this name."""
    per: str | None = None
    """The column by whose sum the sum is divided; by default the episodes are counted."""


MEASURES = (
    Measure(
        "reward",
        "Reward",
        "value of the agreed assignment, divided by that of the best when both pool what they see, less the price of "
        "the questions; no value without an agreement",
        ".3f",
    ),
    Measure(
        "question_count",
        "Questions",
        "cells of the board that the agent asked for in a game; a message may ask for several",
    ),
    Measure("useful_cells", "Useful", "those that it neither saw nor had asked for before"),
    Measure("answers", "Answered", "cells whose score it learnt"),
    Measure(
        "rank",
        "Rank",
        "how high the cells it asked for rank by their value of information among the open ones: 0 the least valuable, "
        "1 the most, .5 at random",
        per="ranked",
    ),
    Measure(
        "rank_unknown",
        "Rank, unknown",
        "the same for cells that it did not know, not even roughly, among its unknown cells",
        per="ranked_unknown",
    ),
    Measure(
        "unknown_share",
        "Unknown",
        "share of unknown cells among the open ones that it asked for",
        ".0%",
        "chosen_unknown",
        "useful_cells",
    ),
    Measure(
        "malformed",
        "Malformed",
        "share of its messages in which names run into each other; the partner answers none of them",
        ".1%",
        "malformed_count",
        "message_count",
    ),
    Measure("truncated", "Out of turns", "share of games that ended at the limit of turns", ".1%"),
    Measure("errors", "Errors", "turns of the agent in a game that broke a rule"),
)
"""In the order of a report's columns."""
_METRICS = (
    "question_count", "useful_cells", "answers", "own_view", "unknown_cells", "errors", "message_count", "malformed_count",
    "turn_count", "patience", "price",
)  # fmt: skip
_TITLES = {
    "base": "Base model",
    "trained": "Trained model",
    "base-asks-on": "Base model, not allowed to stop",
    "base-asks-unknown": "Base model, not allowed to stop, must ask for unknown scores",
    "base-asks-planned": "Base model, asks what the two-step asker asks",
    "humans": "People",
    "optimal": "Two-step asker",
    "greedy": "One-step asker",
    "bayes": "Asks nothing, infers",
    "own-view": "Asks nothing",
    "random": "Random assignment",
}
_ORDERS = {
    "random": "at random",
    "useful": "most useful first",
    "table": "in table order",
    "unknown": "least known first",
}


def title(player: str) -> str:
    """What a report calls `player`."""
    if asks := re.fullmatch(r"asks-(\d+|all)-(\w+)", player):
        return f"Asks {asks[1]}, {_ORDERS.get(asks[2], asks[2])}"
    return _TITLES.get(player) or titles.title(player)


def _rank(player: str) -> tuple[int, int, str]:
    known, number = [*_TITLES, player].index(player), re.search(r"\d+", player)
    return known, int(number[0]) if number else 0, player


@dataclass(frozen=True, eq=False)
class Sample:
    """Episodes of one player on one set of boards."""

    episodes: pd.DataFrame
    """A row for each episode that did not fail: `episode_id`, `game_id`, `arm`, `step`, `status`, `reward`; `player`,
    who is measured, and `seat`, where it sits; `shard`, the path of its file; `truncated`, 1 at the limit of turns; and
    its metrics by their names."""
    failed: int
    """Episodes that failed and were not played again with success."""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """By measure; unknown if the episodes do not have it."""
        return {m.name: estimate(self.episodes, m.of or m.name, m.per) for m in MEASURES}


def read_sample(folder: Path, players: Collection[str], game: str | None = None) -> Sample:
    """The episodes in `folder`.

    Args:
        players: who is measured: in each episode the first seat that one of them takes.
        game: leave out episodes of other games.

    Raises:
        UserError: there are none, or all of them failed.
    """
    frame = read_frame(folder)
    frame = frame if game is None or frame.empty else frame[frame["game"] == game]
    if frame.empty:
        raise UserError(_no_episodes(folder))
    failed = frame["status"] == "failed"
    if failed.all():
        raise UserError(
            f"All {len(frame)} episodes in {folder} failed, the first with {frame['error'].iloc[0]!r}; "
            "remove the cause and play them again with `dvc repro`."
        )
    frame = frame[~failed].reset_index(drop=True)
    seats = [name.removeprefix("seat.") for name in frame if name.startswith("seat.")]
    sits = pd.DataFrame({seat: frame[f"seat.{seat}"].isin(players) for seat in seats})
    seat = sits.idxmax(axis=1).where(sits.any(axis=1))

    missing = pd.Series(math.nan, frame.index, object)

    def of_seat(name: str, shared: str = "") -> pd.Series:
        """The column `name` of the seat in each row, or else the column `shared`; missing where there is neither."""
        values = frame.get(shared, missing)
        for one in seats:
            values = values.mask(seat == one, frame.get(name.format(one), values))
        return values

    columns = {n: frame[n] for n in ("episode_id", "game_id", "arm", "step", "status", "shard")}
    columns |= {"player": of_seat("seat.{}"), "seat": seat, "reward": of_seat("reward.{}").astype(float)}
    # A metric that a player does not have is missing from all its rows; its mean is then not a number.
    columns |= {name: of_seat(f"{{}}.{name}", name).astype(float) for name in _METRICS}
    columns["truncated"] = (frame["status"] == "truncated").astype(float)
    return Sample(pd.DataFrame(columns), int(failed.sum()))


def read_players(folder: Path, required: Iterable[str] = ()) -> dict[str, Sample]:
    """The episodes of every player that has a folder in `folder`, in the order of a report's rows.

    Raises:
        UserError: there is no player, or one of `required` or of those there has no finished episode.
    """
    names = {path.name for path in folder.glob("*") if path.is_dir()} | set(required)
    if not names:
        raise UserError(_no_episodes(folder))
    return {name: read_sample(folder / name, (name,)) for name in sorted(names, key=_rank)}


def _no_episodes(folder: Path) -> str:
    return (
        f"There are no episodes in {folder} to analyze; `dvc repro` plays them, "
        "those of a reference player if the parameters of the study name it."
    )
