"""What is measured of an agent: its episodes on disk as a table, and the numbers a report shows of them."""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from slim_rl.analysis.kinds import KINDS
from slim_rl.analysis.questions import classify
from slim_rl.analysis.statistics import Estimate, estimate, estimates
from slim_rl.errors import UserError
from slim_rl.games.matching.language import read_prompt
from slim_rl.games.matching.questions import Pair
from slim_rl.rollout.store import Shard, latest, shards

AGENT = "player-1"
"""The seat that is watched."""


class Measure(NamedTuple):
    name: str
    title: str
    meaning: str
    spec: str = ".2f"
    """How its numbers are written."""
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
    Measure(
        "wasted_share", "Wasted", "share of all questions that were not useful", ".0%", "wasted", "questions"
    ),
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
        "reward of the best assignment for somebody who knows just what the agent knew in the end",
        ".3f",
    ),
    Measure(
        "gap_to_oracle",
        "Gap to oracle",
        "what the agent left on the table: that oracle less the reward",
        ".3f",
    ),
    Measure("turns", "Turns", "turns of both players in a game"),
    Measure("errors", "Errors", "turns of the agent in a game that broke a rule"),
)
"""In the order of a report's columns."""
TALK_MEASURES = tuple(
    m for m in MEASURES if m.name in ("reward", "questions", "useful_questions", "answered_share", "turns")
)
"""Those that mean the same for people, who tell each other much unasked: what they knew in the end is not in
the facts, and a question that names no pair was not wasted on them."""
KIND_COLUMNS = tuple(f"kind_{kind}" for kind in KINDS)
_COUNTS = (
    "questions",
    "useful_questions",
    "repeated",
    "known",
    "unanswerable",
    "answered",
    "answered_with_number",
    *KIND_COLUMNS,
    "question_marks",
)
_FACTS = ("oracle_given_information", "own_view", "unknown_cells", "turns", "errors")

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
    return _TITLES.get(player, player)


def _rank(player: str) -> tuple[int, int, str]:
    known = [*_TITLES].index(player) if player in _TITLES else len(_TITLES)
    number = re.search(r"\d+", player)
    return known, int(number[0]) if number else 0, player


@dataclass(frozen=True, eq=False)
class Sample:
    """The episodes of one player on one set of boards."""

    episodes: pd.DataFrame
    """A row a finished episode: `episode_id`, `game_id`, `step`, `shard` (a place in `shards`), `status`,
    `reward`, the agent's facts by their names, the counts of its questions by kind (`kind_specific`, ...) and
    by use (`useful_questions`, `repeated`, ...), and `question_marks`, messages of both players with a mark."""
    shards: tuple[Path, ...]
    failed: int
    """Episodes that failed and were not played again with success."""
    played: int
    """Episodes on disk, those that failed included."""
    sampled_tokens: int
    """Tokens that the policy sampled in them."""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        plain = [m.name for m in MEASURES if not m.per]
        means = estimates(self.episodes, [*plain, *KIND_COLUMNS, "question_marks", "own_view"])
        return means | {m.name: estimate(self.episodes, m.of, m.per) for m in MEASURES if m.per}


def read_sample(folder: Path, processes: int = 1) -> Sample:
    """The episodes in `folder`.

    Raises:
        UserError: there are none, or all of them failed.
    """
    paths = tuple(shards(folder))
    parts = _each(_measure_shard, list(enumerate(paths)), processes)
    frame, tokens = latest([part for part, _ in parts]), sum(count for _, count in parts)
    if frame.empty:
        raise UserError(_no_episodes(folder))
    failed = frame["status"] == "failed"
    if failed.all():
        raise UserError(
            f"All {len(frame)} episodes in {folder} failed, the first with {frame['error'].iloc[0]!r}; "
            "mend that and play them again with `dvc repro`."
        )
    episodes = frame[~failed].drop(columns="error").reset_index(drop=True)
    return Sample(episodes, paths, int(failed.sum()), len(frame), tokens)


def _each(work: Callable, jobs: Sequence, processes: int) -> list:
    """`work` on each of `jobs`, in order; by several processes if it is worth starting them."""
    if processes == 1 or len(jobs) < 512:
        return list(map(work, jobs))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, jobs, chunksize=32))


def _measure_shard(job: tuple[int, Path]) -> tuple[pd.DataFrame, int]:
    """The measures of one shard's episodes, and how many tokens were sampled in them."""
    number, path = job
    shard = Shard(path)
    frame = shard.numbers()
    columns = {name: frame[name] for name in ("episode_id", "game_id", "step", "status", "error")}
    missing = np.full(len(frame), np.nan)
    columns["reward"] = frame.get(f"reward.{AGENT}", missing)
    # What a player has no fact of is missing from all its rows; its mean is then not a number.
    columns |= {name: frame.get(f"{AGENT}.{name}", frame.get(name, missing)) for name in _FACTS}
    counts = np.array([_counts(*dialogue) for dialogue in shard.dialogues()], np.int32)
    columns |= dict(zip(_COUNTS, counts.reshape(-1, len(_COUNTS)).T, strict=True))
    columns["shard"] = np.full(len(frame), number, np.int32)
    measured = pd.DataFrame(columns)
    measured["wasted"] = measured["questions"] - measured["useful_questions"]
    measured["gap_to_oracle"] = measured["oracle_given_information"] - measured["reward"]
    return measured, shard.sampled_tokens()


def _counts(seats: Sequence[str], observations: Sequence[str], texts: Sequence[str]) -> list[int]:
    """_COUNTS of one episode."""
    asked = classify(list(zip(seats, texts, strict=True)), AGENT, seen_cells(seats, observations))
    sums = [len(asked), *(0 for _ in _COUNTS[1:])]
    for question in asked:
        sums[1] += question.useful
        sums[2] += question.repeated
        sums[3] += question.known
        sums[4] += question.unanswerable
        sums[5] += question.answered
        sums[6] += question.with_number
        sums[7 + KINDS.index(question.question.kind)] += 1
    sums[-1] = sum("?" in text for text in texts)
    return sums


def seen_cells(seats: Sequence[str], observations: Sequence[str]) -> dict[str, frozenset[Pair]]:
    """By seat: the cells that it sees, read from what it was told first; nothing in a game without boards."""
    seen: dict[str, frozenset[Pair]] = {}
    for seat, observation in zip(seats, observations, strict=True):
        if seat not in seen:
            seen[seat] = _cells(observation)
    return seen


@lru_cache(maxsize=4096)
def _cells(observation: str) -> frozenset[Pair]:
    numbers = read_prompt(observation)
    return frozenset() if numbers is None else frozenset(map(tuple, np.argwhere(numbers >= 0).tolist()))


def read_players(folder: Path, required: Iterable[str] = (), processes: int = 1) -> dict[str, Sample]:
    """The episodes of every player that has a folder in `folder`, in the order of a report's rows.

    Raises:
        UserError: there is no player, or one of `required` or of those there has no finished episode.
    """
    names = {path.name for path in folder.glob("*") if path.is_dir()} | set(required)
    if not names:
        raise UserError(_no_episodes(folder))
    return {name: read_sample(folder / name, processes) for name in sorted(names, key=_rank)}


def _no_episodes(folder: Path) -> str:
    return (
        f"There are no episodes in {folder} to analyze; `dvc repro` plays them, "
        "those of a reference player if the parameters of `evaluate` name it."
    )
