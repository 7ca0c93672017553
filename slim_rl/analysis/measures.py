"""What is measured of an agent: its episodes on disk as a table, and the numbers a report shows of them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from slim_rl.analysis.statistics import Estimate, estimate
from slim_rl.errors import UserError
from slim_rl.rollout.store import read_frame

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
TALK_MEASURES = tuple(m for m in MEASURES if m.name in ("reward", "questions", "turns"))
"""Those that mean the same for people, who tell each other much unasked and ask about more than one score at
a time: what was useful to them, and what they knew in the end, is not in the facts."""

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
    """A row a finished episode: `episode_id`, `game_id`, `step`, `own_view` and the columns that MEASURES
    average."""
    failed: int
    """Episodes that failed and were not played again with success."""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        return {m.name: estimate(self.episodes, m.of or m.name, m.per) for m in MEASURES}


def read_sample(folder: Path) -> Sample:
    """The episodes in `folder`.

    Raises:
        UserError: there are none, or all of them failed.
    """
    frame = read_frame(folder)
    if frame.empty:
        raise UserError(_no_episodes(folder))
    failed = frame["status"] == "failed"
    if failed.all():
        raise UserError(
            f"All {len(frame)} episodes in {folder} failed, the first with {frame['error'].iloc[0]!r}; "
            "mend that and play them again with `dvc repro`."
        )
    lost = set(frame.loc[failed, "episode_id"]) - set(frame.loc[~failed, "episode_id"])
    frame.columns = frame.columns.str.removeprefix(f"{AGENT}.")
    frame = frame.rename(columns={f"reward.{AGENT}": "reward"})[~failed]
    # What a player has no fact of is missing from all its rows; its mean is then not a number.
    facts = [
        "reward",
        "questions",
        "useful_questions",
        "oracle_given_information",
        "own_view",
        "turns",
        "errors",
    ]
    episodes = frame.reindex(columns=["episode_id", "game_id", "step", *facts]).reset_index(drop=True)
    episodes["wasted"] = episodes["questions"] - episodes["useful_questions"]
    episodes["gap_to_oracle"] = episodes["oracle_given_information"] - episodes["reward"]
    return Sample(episodes, len(lost))


def read_players(folder: Path, required: Iterable[str] = ()) -> dict[str, Sample]:
    """The episodes of every player that has a folder in `folder`, in the order of a report's rows.

    Raises:
        UserError: there is no player, or one of `required` or of those there has no finished episode.
    """
    names = {path.name for path in folder.glob("*") if path.is_dir()} | set(required)
    if not names:
        raise UserError(_no_episodes(folder))
    return {name: read_sample(folder / name) for name in sorted(names, key=_rank)}


def _no_episodes(folder: Path) -> str:
    return (
        f"There are no episodes in {folder} to analyze; `dvc repro` plays them, "
        "those of a reference player if the parameters of `evaluate` name it."
    )
