"""Dialogues on their boards: two of them side by side on the page, and what its browser shows besides messages."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from slim_rl.analysis import dialogues
from slim_rl.analysis.page import number
from slim_rl.core.episode import Episode, Turn
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, InvalidProposal, parse_proposal
from slim_rl.games.matching.reader import Asked, Pair, classify
from slim_rl.games.matching.rules import MUST_ANSWER, ROUGH_MARK, read_prompt, read_rough
from slim_rl.rollout.shards import Shard
from slim_rl.studies.asking.measures import Sample, title

_MODELS = ("base", "trained")
_CHANGED = ["reward", "cells_asked"]


class Cell(NamedTuple):
    """A cell of the board that is drawn for a dialogue."""

    text: str
    """The score that the agent sees or its partner can tell; empty if neither knows it."""
    seen: bool
    """By the agent."""
    rough: bool
    """Whether the agent knows it roughly."""
    asked: int
    """Which of the cells asked for it was, from 1; 0 if it was not."""
    final: bool
    """Whether it is part of the last assignment."""


class Line(NamedTuple):
    own: bool
    """Whether the agent says it."""
    text: str


class Dialogue(NamedTuple):
    player: str
    reward: float
    cells_asked: int
    rows: list[tuple[str, list[Cell]]]
    """By reviewer."""
    lines: list[Line]


class SideBySide(NamedTuple):
    game_id: str
    papers: tuple[str, ...]
    dialogues: list[Dialogue]


def side_by_side(held_out: Mapping[str, Sample]) -> SideBySide | None:
    """Both models on a typical board; None if they share none. Of the boards on which training changed the number of cells
    asked for most nearly as on average, it is the one whose gain is nearest to the mean gain; the first by name of several."""
    frames = [held_out[model].episodes.drop_duplicates("game_id").set_index("game_id") for model in _MODELS]
    changes = (frames[1][_CHANGED] - frames[0][_CHANGED]).dropna().sort_index()
    if changes.empty:
        return None
    off = (changes - changes.mean()).abs()
    board = off[off["cells_asked"] == off["cells_asked"].min()]["reward"].idxmin()
    shown = [_dialogue(model, held_out[model], frame.loc[board]) for model, frame in zip(_MODELS, frames, strict=True)]
    return SideBySide(board, SHORT_PAPERS[: len(shown[0].rows)], shown)


def _dialogue(player: str, sample: Sample, row: Any) -> Dialogue:
    # An attempt that failed may stand before it, in the same shard.
    *_, episode = Shard(sample.shards[int(row["shard"])]).episodes([row["episode_id"]])
    boards, asked, final = _numbers(episode), _asked(episode, row["seat"]), _final(episode)
    own = boards.get(row["seat"], np.zeros((0, 0), int))
    rough = _numbers(episode, read_rough)[row["seat"]] if len(own) else own
    other = next((board for seat, board in boards.items() if seat != row["seat"]), np.full_like(own, -1))
    cells = [
        [
            Cell(
                _shown(max(own[r, p], other[r, p])),
                own[r, p] >= 0,
                rough[r, p] >= 0,
                next((n for n, (pair, _) in enumerate(asked, 1) if pair == (r, p)), 0),
                final is not None and final[r] == p,
            )
            for p in range(len(own))
        ]
        for r in range(len(own))
    ]
    lines = [Line(turn.seat == row["seat"], _line(turn)) for turn in episode.turns]
    return Dialogue(player, row["reward"], int(row["cells_asked"]), list(zip(REVIEWERS, cells, strict=False)), lines)


def _shown(score: int) -> str:
    return str(score) if score >= 0 else ""


def _line(turn: Turn) -> str:
    """What a turn says, without a message's tag; a proposal on one line."""
    tag, _, rest = turn.text.partition("]")
    return rest.strip() if tag == "[message" else turn.text.strip().replace("Proposal:\n", "").replace("\n", ", ")


def sample_of_dialogues(held_out: Mapping[str, Sample], people: Sample | None, training: Sample) -> Markup:
    """JSON of episodes chosen by fixed rules; see `slim_rl.analysis.dialogues`."""
    samples = {"base": held_out["base"], "trained": held_out["trained"], "policy": training}
    if people:
        samples["humans"] = people
    chosen = dialogues.choose(
        held_out["base"].episodes, held_out["trained"].episodes, training.episodes, people.episodes if people else None
    )
    seats = {row.episode_id: row.seat for _, row in chosen}
    shown = [
        dialogues.Shown(
            player,
            samples[player].shards[row.shard],
            row.episode_id,
            row.reward,
            f"{row.cells_asked:.0f} cell{'s' * (row.cells_asked != 1)} asked",
            _caption(row),
            row.cells_asked,
        )
        for player, row in chosen
    ]
    return dialogues.to_json(
        shown,
        title,
        _errors,
        lambda episode: _on_boards(episode, seats[episode.episode_id]),
        {"reviewers": REVIEWERS, "papers": SHORT_PAPERS},
    )


def _caption(row: Any) -> str:
    return (
        f"reward {number(row.reward)}, {row.cells_asked:.0f} cells asked for, {row.useful_cells:.0f} of them useful, "
        f"{row.answers:.0f} answered; own view {number(row.own_view)}."
    )


def _errors(turn: Turn) -> list[list[str]]:
    """Which rule the turn before broke; the rest of what a seat reads is what the other one said."""
    return [["error", line] for line in turn.read.splitlines() if line.startswith("Error:")]


def _on_boards(episode: Episode, seat: str | None) -> dict[str, Any]:
    """`boards`: by seat what it sees, a text where it knows a score roughly, None where it knows nothing. `asked`: reviewer,
    paper and use of each cell that was asked for. `final`: the paper of each reviewer in the end."""
    rough = _numbers(episode, read_rough)
    return {
        "boards": {
            seat: [
                [_read(*cell) for cell in zip(*rows, strict=True)]
                for rows in zip(board.tolist(), rough[seat].tolist(), strict=True)
            ]
            for seat, board in _numbers(episode).items()
        },
        "asked": [[*pair, use] for pair, use in _asked(episode, seat)],
        "final": _final(episode),
    }


def _read(number: int, rough: int) -> int | str | None:
    """What a player reads in a cell."""
    return number if number >= 0 else f"{rough}{ROUGH_MARK}" if rough >= 0 else None


def _numbers(episode: Episode, read: Callable[[str], np.ndarray | None] = read_prompt) -> dict[str, np.ndarray]:
    """By seat, what it reads of the board; with `read_rough`, what it knows roughly."""
    boards: dict[str, np.ndarray] = {}
    for turn in episode.turns:
        if turn.seat not in boards and (board := read(turn.read)) is not None:
            boards[turn.seat] = board
    return boards


def _asked(episode: Episode, seat: str | None) -> list[tuple[Pair, str]]:
    """The cells that a seat asked for, in order, and what became of the question."""
    boards = _numbers(episode)
    if seat not in boards:
        return []
    seen = [(int(r), int(p)) for r, p in np.argwhere(boards[seat] >= 0)]
    turns = [(turn.seat, turn.text) for turn in episode.turns]
    return [(asked.cell, _use(asked)) for asked in classify(turns, seat, seen, len(boards[seat]))]


def _use(asked: Asked) -> str:
    use = "known" if asked.known else "asked before" if asked.repeated else "useful"
    return f"{use}, {'answered with a number' if asked.with_number else 'no number'}"


def _final(episode: Episode) -> list[int] | None:
    """The last proposal, if it was accepted."""
    proposals = [turn.text for turn in episode.turns if turn.text.startswith("[propose]")]
    if not proposals or episode.turns[-1].text.strip() != "[accept]":
        return None
    size = max((len(board) for board in _numbers(episode).values()), default=len(REVIEWERS))
    try:
        return list(parse_proposal(proposals[-1].removeprefix("[propose]").replace(MUST_ANSWER, ""), size))
    except InvalidProposal:
        return None
