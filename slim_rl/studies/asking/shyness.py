"""How shy the partner was when it was probed: what it told unasked, and what it told wrong."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from slim_rl.analysis.statistics import Estimate, as_metrics, estimate
from slim_rl.core.episode import Episode
from slim_rl.games.matching.reader import asked_cells
from slim_rl.games.matching.rules import read_prompt
from slim_rl.games.matching.scripted import PLEADING, VAGUE_QUESTIONS
from slim_rl.rollout.shards import read_episodes

KINDS = {
    "direct": "A score that it sees",
    "unknown": "A score that it does not see",
    "vague": "Vague",
    "pleading": "Pleading",
}
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w]|\.\d)")


class Shyness(NamedTuple):
    """Shares of the questions of one kind, with their uncertainty over boards."""

    questions: int
    unasked: Estimate
    """Answered with a score that was not asked for."""
    wrong: Estimate
    """Answered with a score that is not the true one."""
    withheld: Estimate
    """Not answered with the score, though it was asked for and the partner sees it."""

    def numbers(self) -> dict[str, float]:
        """For metrics.json."""
        shares = as_metrics({"unasked": self.unasked, "wrong": self.wrong, "withheld": self.withheld})
        return {"questions": self.questions, **shares}


def shyness(folder: Path) -> dict[str, Shyness]:
    """By kind of question, from the probe's episodes in `folder`; kinds that were not asked are left out."""
    rows = pd.DataFrame(judge(read_episodes(folder)))
    of_kind = dict(iter(rows.groupby("kind"))) if len(rows) else {}
    return {
        kind: Shyness(len(of_kind[kind]), *(_share(of_kind[kind], name) for name in ("unasked", "wrong", "withheld")))
        for kind in KINDS
        if kind in of_kind
    }


def _share(rows: pd.DataFrame, name: str) -> Estimate:
    """A share over boards. The bootstrap gives no width to what never or always happened; then the interval is the
    exact one (Clopper and Pearson 1934)."""
    share = estimate(rows, name)
    if share.mean in (0.0, 1.0):
        interval = binomtest(int(share.mean * share.games), share.games).proportion_ci()
        share = share._replace(low=interval.low, high=interval.high)
    return share


def judge(episodes: Iterable[Episode]) -> Iterator[dict]:
    """A row for each of the probe's questions that was answered: `game_id`, `kind`, and whether the reply
    gave a score `unasked`, gave a `wrong` one, or `withheld` the one it was asked for."""
    for episode in episodes:
        if episode.status == "failed":
            continue
        board, said = np.empty((0, 0), int), ""
        for turn in episode.turns:
            if turn.seat == episode.turns[0].seat:
                said = turn.text.removeprefix("[message] ")
                continue
            if not board.size and (sees := read_prompt(turn.read)) is not None:
                board = sees
            scores = [int(board[cell]) for cell in asked_cells(said, len(board))]  # -1 where it sees none
            kind = _kind(said, scores)
            if kind is None or turn.read.startswith("Error:"):
                continue
            numbers = [int(number) for number in _NUMBER.findall(turn.text)]
            asked = [score for score in scores if score >= 0]
            right = [score for score in asked if score in numbers]
            others = len(set(numbers) - set(asked))
            missed = len(scores) - len(right)
            yield {
                "game_id": episode.game_id,
                "kind": kind,
                # Of the numbers that are not asked for, as many as answers are missing stand for these.
                "unasked": float(others > missed),
                "wrong": float(others > 0 and missed > 0),
                "withheld": float(len(right) < len(asked)),
            }


def _kind(said: str, scores: list[int]) -> str | None:
    if scores:
        return "unknown" if scores[0] < 0 else "direct"
    return "vague" if said in VAGUE_QUESTIONS else "pleading" if said in PLEADING else None
