"""What a study is: a question put to a game. A package of `slim_rl.studies`, or one of the user's own.

It has three modules, which are imported when they are needed: `parameters` with the class `Parameters`, `plan` with
the functions of `Plan`, and `reporting` with those of `Reporting`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis.comparison import Compared
from slim_rl.core.parameters import Section
from slim_rl.games import NamedGame
from slim_rl.rollout.shards import read_frame

if TYPE_CHECKING:  # `analyze` loads no model
    from slim_rl.evaluation.series import Evaluation, Series


def rewarded(frame: pd.DataFrame, player: str) -> pd.DataFrame:
    """The finished episodes of `frame` that have a reward, with `reward`, the mean over the seats of `player`."""
    frame = frame[frame["status"] != "failed"]
    seats = [column.removeprefix("reward.") for column in frame if column.startswith("reward.")]
    own = {
        seat: frame[f"reward.{seat}"].where(frame[f"seat.{seat}"] == player)
        for seat in seats
        if f"seat.{seat}" in frame  # not one that the game added, `solver#2`, whose reward is that of `solver`
    }
    return frame.assign(reward=pd.DataFrame(own).mean(axis=1)).dropna(subset="reward").reset_index(drop=True)


@dataclass(frozen=True)
class Results:
    """What a report is made from: the episodes of one game."""

    game: NamedGame
    parameters: Section
    """The study's parameters."""
    episodes: Path
    """The series of the evaluation: `SERIES/PLAYER/*.parquet`, and what `finish` wrote."""
    rollouts: Path
    """Episodes of training, of all games."""

    def series(self, name: str) -> pd.DataFrame:
        """Episodes of one series, or of all below it; see `read_frame`. Empty without any."""
        return read_frame(self.episodes / name)

    def training(self) -> pd.DataFrame:
        """The game's episodes of training; see `read_frame`."""
        frame = read_frame(self.rollouts)
        return frame if frame.empty else frame[frame["game"] == self.game.name].reset_index(drop=True)


@dataclass(frozen=True)
class Report:
    """What a study says of a run. The stage writes figures, tables and metrics, and fills in the page."""

    question: str
    verdict: str
    """One sentence, which can say no; `verdict` of the metrics."""
    figures: Mapping[str, Figure]
    """By file name."""
    tables: Mapping[str, pd.DataFrame]
    """By file name. A page shows every n-th row of long ones over training."""
    metrics: Mapping[str, Any]
    templates: Path | None = None
    """A folder with `report.html.j2`; without one the page is that of `study.html.j2` in `slim_rl/analysis/templates`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the templates use, besides what every page has; see `slim_rl.analysis.page.render`."""


class Plan(Protocol):
    """What to play. `finish` is optional. Files that it reads, besides tasks and checkpoints, are its parameters' `files`."""

    def series(self, run: "Evaluation") -> "list[Series]":
        """The series of a game, in the order in which they are played. It loads no model and reads no episode."""

    def finish(self, run: "Evaluation") -> None:
        """Write to `run.folder` what is computed or copied rather than played, after all series."""


class Reporting(Protocol):
    """What came of it. `compared` is optional; see `slim_rl.analysis.comparison.differences`."""

    def report(self, results: Results) -> Report:
        """Raises UserError: there are no episodes to report on."""

    def compared(self, metrics: Sequence[Mapping[str, Any]]) -> Compared:
        """What to compare of several runs.

        Args:
            metrics: of each run, by dotted name.
        """
