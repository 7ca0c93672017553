"""What is measured of a player: its episodes on disk as a table, and the numbers that a report shows of them."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from slim_rl.analysis import titles
from slim_rl.analysis.statistics import Estimate, estimate, estimates
from slim_rl.core.errors import UserError
from slim_rl.games.matching.asking import classify
from slim_rl.games.matching.language import read_prompt
from slim_rl.games.matching.names import REVIEWERS
from slim_rl.games.matching.questions import Pair
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
        "score of the agreed assignment, divided by that of the best when both pool what they see; "
        "0 without an agreement",
        ".3f",
    ),
    Measure("questions", "Questions", "questions the agent asked in a game"),
    Measure(
        "useful_questions",
        "Useful questions",
        "those about a score that the agent neither sees nor has asked about before",
    ),
    Measure("wasted_share", "Wasted", "share of all questions that were not useful", ".0%", "wasted", "questions"),
    Measure(
        "answered_share",
        "With a number",
        "share of all questions that were answered with a number",
        ".0%",
        "answered_with_number",
        "questions",
    ),
    Measure(
        "oracle_given_information",
        "Oracle given information",
        "reward of the best assignment for a player that knows exactly what the agent knew in the end",
        ".3f",
    ),
    Measure("gap_to_oracle", "Gap to oracle", "what the agent left on the table: that oracle less the reward", ".3f"),
    Measure("turns", "Turns", "turns of both players in a game"),
    Measure("errors", "Errors", "turns of the agent in a game that broke a rule"),
)
"""In the order of a report's columns."""
TALK_MEASURES = tuple(
    m for m in MEASURES if m.name in ("reward", "questions", "useful_questions", "answered_share", "turns")
)
"""Those that mean the same for people, who tell each other much without being asked: the metrics do not hold what they
knew in the end, and a question of theirs that names no pair was not wasted."""
_USES = ("useful", "repeated", "known", "unanswerable", "with_number")
_COUNTS = (
    "questions", "useful_questions", "repeated", "known", "unanswerable", "answered_with_number", "question_marks",
)  # fmt: skip
_METRICS = ("oracle_given_information", "own_view", "turns", "errors")

_TITLES = {
    "base": "Base model",
    "trained": "Trained model",
    "humans": "People",
    "random": "Random assignment",
    "own-view": "Own view alone",
    "bayes": "No-question Bayes",
}
_ORDERS = {"random": "at random", "useful": "most useful first", "table": "in table order"}


def title(player: str) -> str:
    """What a report calls `player`."""
    if asks := re.fullmatch(r"asks-(\d+)-(\w+)", player):
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
    who is measured, and `seat`, where it sits; `shard`, a place in `shards`; its metrics by their names; how many
    questions it asked and what became of them (`useful_questions`, `repeated`, ...); and `question_marks`, messages of
    both players that have one."""
    shards: tuple[Path, ...]
    failed: int
    """Episodes that failed and were not played again with success."""
    played: int
    """Episodes on disk, including those that failed."""
    sampled_tokens: int
    """Tokens that the policy sampled in them."""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        plain = [m.name for m in MEASURES if not m.per]
        means = estimates(self.episodes, [*plain, "question_marks", "own_view"])
        return means | {m.name: estimate(self.episodes, m.of, m.per) for m in MEASURES if m.per}


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
    counts = [
        _counts(watched, *dialogue) if wanted else (0,) * len(_COUNTS)
        for watched, wanted, dialogue in zip(seat, chosen, shard.dialogues(), strict=True)
    ]
    columns |= dict(zip(_COUNTS, np.array(counts, np.int32).reshape(-1, len(_COUNTS)).T, strict=True))
    columns["shard"] = np.full(len(frame), number, np.int32)
    measured = pd.DataFrame(columns)
    measured["wasted"] = measured["questions"] - measured["useful_questions"]
    measured["gap_to_oracle"] = measured["oracle_given_information"] - measured["reward"]
    return measured[chosen], int(shard.sampled_tokens()[chosen].sum())


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


def _counts(
    seat: str | None, seats: Sequence[str], observations: Sequence[str], texts: Sequence[str]
) -> tuple[int, ...]:
    """_COUNTS of one episode."""
    turns = list(zip(seats, texts, strict=True))
    asked = classify(turns, seat, *seen_cells(seats, observations)) if seat else []
    uses = (sum(getattr(question, use) for question in asked) for use in _USES)
    return len(asked), *uses, sum("?" in text for text in texts)


def seen_cells(seats: Sequence[str], observations: Sequence[str]) -> tuple[dict[str, frozenset[Pair]], int]:
    """By seat the cells that it sees, read from what it was told first, and the size of the board.

    Without a board nothing is seen, and the size is the largest there is.
    """
    seen: dict[str, frozenset[Pair]] = {}
    largest = 0
    for seat, observation in zip(seats, observations, strict=True):
        if seat not in seen:
            seen[seat], size = _cells(observation)
            largest = max(size, largest)
    return seen, largest or len(REVIEWERS)


@lru_cache(4096)
def _cells(prompt: str) -> tuple[frozenset[Pair], int]:
    numbers = read_prompt(prompt)
    if numbers is None:
        return frozenset(), 0
    return frozenset((r, p) for r, p in np.argwhere(numbers >= 0).tolist()), len(numbers)


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
