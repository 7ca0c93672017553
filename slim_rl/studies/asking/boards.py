"""What the page's dialogue browser shows besides messages: the boards of both seats, and what was asked for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from slim_rl.analysis import dialogues
from slim_rl.analysis.page import number
from slim_rl.core.episode import Episode, Turn
from slim_rl.evaluation.base_and_trained import MODELS
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, InvalidProposal, parse_proposal
from slim_rl.games.matching.reader import Asked, classify
from slim_rl.games.matching.rules import MUST_ANSWER, ROUGH_MARK, read_prompt, read_rough
from slim_rl.studies.asking.measures import Sample, title

_CHANGED = ["reward", "question_count"]


def typical_board(held_out: Mapping[str, Sample]) -> str | None:
    """The board closest to the average change in questions, then to the average gain; None if the models share none."""
    frames = [held_out[model].episodes.drop_duplicates("game_id").set_index("game_id") for model in MODELS]
    changes = (frames[1][_CHANGED] - frames[0][_CHANGED]).dropna().sort_index()
    if changes.empty:
        return None
    off = (changes - changes.mean()).abs()
    return off[off["question_count"] == off["question_count"].min()]["reward"].idxmin()


def sample_of_dialogues(held_out: Mapping[str, Sample], people: Sample | None, training: Sample) -> Markup:
    """JSON of episodes chosen by fixed rules; see `slim_rl.analysis.dialogues`."""
    return dialogues.sample(
        held_out["base"].episodes,
        held_out["trained"].episodes,
        training.episodes,
        _questions,
        people=people.episodes if people else None,
        first=typical_board(held_out),
        titles=title,
        heard=_errors,
        caption=_caption,
        count="question_count",
        extra=_on_boards,
        shared={"reviewers": REVIEWERS, "papers": SHORT_PAPERS},
    )


def _questions(row: Any) -> str:
    return f"{row.question_count:.0f} question{'s' * (row.question_count != 1)}"


def _caption(row: Any) -> str:
    return (
        f"reward {number(row.reward)}, {_questions(row)}, {row.useful_cells:.0f} of them useful, "
        f"{row.answers:.0f} answered; own view {number(row.own_view)}."
    )


def _errors(turn: Turn) -> list[list[str]]:
    """Which rule the turn before broke; the rest of what a seat reads is what the other one said."""
    return [["error", line] for line in turn.read.splitlines() if line.startswith("Error:")]


def _on_boards(episode: Episode, row: Any) -> dict[str, Any]:
    """`boards`: by seat what it sees, a text where it knows a score roughly, None where it knows nothing. `asked`: reviewer,
    paper and use of each cell that the measured seat asked for. `final`: the paper of each reviewer in the end."""
    boards: dict[str, list[list[int | str | None]]] = {}
    asked: list[list[Any]] = []
    for turn in episode.turns:
        if turn.seat in boards:
            continue
        exact, rough = read_prompt(turn.read), read_rough(turn.read)
        if exact is None or rough is None:
            continue
        boards[turn.seat] = [list(map(_read, *rows)) for rows in zip(exact.tolist(), rough.tolist(), strict=True)]
        if turn.seat == row.seat:
            asked = _asked(episode, row.seat, exact)
    size = max(map(len, boards.values()), default=len(REVIEWERS))
    return {"boards": boards, "asked": asked, "final": _final(episode, size)}


def _read(exact: int, rough: int) -> int | str | None:
    """What a player reads in a cell."""
    return exact if exact >= 0 else f"{rough}{ROUGH_MARK}" if rough >= 0 else None


def _asked(episode: Episode, seat: str, board: np.ndarray) -> list[list[Any]]:
    """Reviewer, paper, and what became of the question, in order."""
    seen = [(int(r), int(p)) for r, p in np.argwhere(board >= 0)]
    turns = [(turn.seat, turn.text) for turn in episode.turns]
    return [[*asked.cell, _use(asked)] for asked in classify(turns, seat, seen, len(board))]


def _use(asked: Asked) -> str:
    use = "known" if asked.known else "asked before" if asked.repeated else "useful"
    return f"{use}, {'answered with a number' if asked.with_number else 'no number'}"


def _final(episode: Episode, size: int) -> list[int] | None:
    """The last proposal, if it was accepted."""
    proposals = [turn.text for turn in episode.turns if turn.text.startswith("[propose]")]
    if not proposals or episode.turns[-1].text.strip() != "[accept]":
        return None
    try:
        return list(parse_proposal(proposals[-1].removeprefix("[propose]").replace(MUST_ANSWER, ""), size))
    except InvalidProposal:
        return None
