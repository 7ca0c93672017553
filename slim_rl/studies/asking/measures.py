"""What is measured of a player: its episodes on disk as a table, and the numbers that a report shows of them.

What was asked for and answered is what the game records, in cells. Only people's messages are read again for questions.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from slim_rl.analysis import titles
from slim_rl.analysis.statistics import Estimate, estimate, unknown
from slim_rl.core.errors import UserError
from slim_rl.rollout.shards import Shard, latest, shards


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
        "the cells asked for; no value without an agreement",
        ".3f",
    ),
    Measure("cells_asked", "Cells asked", "cells of the board that the agent asked for in a game"),
    Measure("useful_cells", "Useful", "those that it neither saw nor had asked for before"),
    Measure("answers", "Answered", "cells whose score it learnt"),
    Measure(
        "rank",
        "Rank",
        "how high the cells it asked for rank by their value of information among the open ones: 0 the least valuable, "
        "1 the most, .5 at random",
        of="rank",
        per="ranked",
    ),
    Measure(
        "rank_unknown",
        "Rank, unknown",
        "the same for the cells of which it knew nothing, among such cells",
        of="rank_unknown",
        per="ranked_unknown",
    ),
    Measure(
        "unknown_share",
        "Unknown",
        "share of the open cells that it asked for of which it knew nothing, not even roughly",
        ".0%",
        "chosen_unknown",
        "useful_cells",
    ),
    Measure("truncated", "Out of turns", "share of games that ended at the limit of turns", ".1%"),
    Measure("errors", "Errors", "turns of the agent in a game that broke a rule"),
)
"""In the order of a report's columns."""
SHORT = ("reward", "cells_asked", "rank", "truncated")
"""Those of the table that is open."""
FOLDED = ("random", "asks-all-table", "asks-all-useful", "greedy")
"""Players in the table that is folded."""
_METRICS = (
    "cells_asked", "useful_cells", "answers", "own_view", "unknown_cells", "errors", "turns", "turn_limit", "patience",
    "price",
)  # fmt: skip

_TITLES = {
    "base": "Base model",
    "trained": "Trained model",
    "base-asks-on": "Base model, told not to stop",
    "base-asks-unknown": "Base model, told not to stop, and to ask for unknown scores alone",
    "humans": "People",
    "optimal": "Optimal asker",
    "greedy": "Greedy asker",
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
    who is measured, and `seat`, where it sits; `shard`, a place in `shards`; `truncated`, 1 at the limit of turns; and
    its metrics by their names."""
    shards: tuple[Path, ...]
    failed: int
    """Episodes that failed and were not played again with success."""
    played: int
    """Episodes on disk, including those that failed."""
    sampled_tokens: int
    """Tokens that the policy sampled in them."""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """By measure; unknown if the episodes do not have it."""
        return {m.name: self.estimate(m.of or m.name, m.per) for m in MEASURES}

    def estimate(self, of: str, per: str | None = None) -> Estimate:
        """The mean of a column, or of its sum for one of `per`."""
        return estimate(self.episodes, of, per) if of in self.episodes else unknown()

    def dialogues(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """The id of every episode on disk, and its turns as (seat, text)."""
        for path in self.shards:
            shard = Shard(path)
            for name, (seats, texts) in zip(shard.numbers()["episode_id"], shard.dialogues(), strict=True):
                yield name, list(zip(seats, texts, strict=True))


def read_sample(folder: Path, players: Collection[str], processes: int = 1, game: str | None = None) -> Sample:
    """The episodes in `folder`.

    Args:
        players: who is measured: in each episode the first seat that one of them takes.
        game: leave out episodes of other games.

    Raises:
        UserError: there are none, or all of them failed.
    """
    paths = tuple(shards(folder))
    parts = _each(partial(_measure_shard, tuple(players), game), list(enumerate(paths)), processes)
    frame, tokens = latest([part for part, _ in parts]), sum(count for _, count in parts)
    if frame.empty:
        raise UserError(_no_episodes(folder))
    failed = frame["status"] == "failed"
    if failed.all():
        raise UserError(
            f"All {len(frame)} episodes in {folder} failed, the first with {frame['error'].iloc[0]!r}; "
            "remove the cause and play them again with `dvc repro`."
        )
    episodes = frame[~failed].drop(columns="error").reset_index(drop=True)
    return Sample(episodes, paths, int(failed.sum()), len(frame), tokens)


def _each(work: Callable, jobs: Sequence, processes: int) -> list:
    """`work` on each of `jobs`, in order; by several processes if there are enough to pay for starting them."""
    if processes == 1 or len(jobs) < 512:
        return list(map(work, jobs))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, jobs, chunksize=32))


def _measure_shard(players: tuple[str, ...], game: str | None, numbered: tuple[int, Path]) -> tuple[pd.DataFrame, int]:
    """The measures of one shard's episodes, and how many tokens were sampled in them."""
    number, shard = numbered[0], Shard(numbered[1])
    frame = shard.numbers()
    chosen = np.full(len(frame), True) if game is None else (frame["game"] == game).to_numpy()
    columns: dict[str, Any] = {n: frame[n] for n in ("episode_id", "game_id", "arm", "step", "status", "error")}
    player, seat = _watched(frame, players)
    columns |= {"player": player, "seat": seat, "reward": _of_seat(frame, seat, "reward.{}")}
    # A metric that a player does not have is missing from all its rows; its mean is then not a number.
    columns |= {name: _of_seat(frame, seat, f"{{}}.{name}", name) for name in _METRICS}
    columns["truncated"] = (frame["status"] == "truncated").astype(float)
    columns["shard"] = np.full(len(frame), number, np.int32)
    return pd.DataFrame(columns)[chosen], int(shard.sampled_tokens()[chosen].sum())


def _watched(frame: pd.DataFrame, players: Collection[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of each episode who is measured and in which seat; None where none of `players` sits."""
    player, seat = (np.full(len(frame), None, object) for _ in range(2))
    for column in [name for name in frame if name.startswith("seat.")]:
        here = frame[column].isin(players).to_numpy() & (player == None)  # noqa: E711
        player[here], seat[here] = frame[column].to_numpy()[here], column.removeprefix("seat.")
    return player, seat


def _of_seat(frame: pd.DataFrame, seats: np.ndarray, name: str, shared: str = "") -> np.ndarray:
    """The column `name` of each row's seat, or else the column `shared`; missing where there is neither."""
    values = frame[shared].to_numpy(float, copy=True) if shared in frame else np.full(len(frame), np.nan)
    for seat in set(seats) - {None}:
        if name.format(seat) in frame:
            here = seats == seat
            values[here] = frame[name.format(seat)].to_numpy(float)[here]
    return values


def read_players(folder: Path, required: Iterable[str] = (), processes: int = 1) -> dict[str, Sample]:
    """The episodes of every player that has a folder in `folder`, in the order of a report's rows.

    Raises:
        UserError: there is no player, or one of `required` or of those there has no finished episode.
    """
    names = {path.name for path in folder.glob("*") if path.is_dir()} | set(required)
    if not names:
        raise UserError(_no_episodes(folder))
    return {name: read_sample(folder / name, (name,), processes) for name in sorted(names, key=_rank)}


def _no_episodes(folder: Path) -> str:
    return (
        f"There are no episodes in {folder} to analyze; `dvc repro` plays them, "
        "those of a reference player if the parameters of the study name it."
    )
