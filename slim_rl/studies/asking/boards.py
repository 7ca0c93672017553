"""Dialogues on their boards: what the page's dialogue browser shows of an episode besides its messages."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from slim_rl.analysis import dialogues
from slim_rl.analysis.page import number
from slim_rl.core.episode import Episode, Turn
from slim_rl.games.matching.asking import Asked, classify
from slim_rl.games.matching.language import MUST_ANSWER, read_prompt
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, InvalidProposal, parse_proposal
from slim_rl.studies.asking.measures import Sample, seen_cells, title


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
            f"{row.questions} question{'s' * (row.questions != 1)}",
            _caption(player, row),
            row.questions,
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


def _caption(player: str, row: Any) -> str:
    oracle = "" if player == "humans" else f", oracle given information {number(row.oracle_given_information)}"
    return (
        f"reward {number(row.reward)}, {row.questions} questions, {row.useful_questions} of them useful; "
        f"own view {number(row.own_view)}{oracle}."
    )


def _errors(turn: Turn) -> list[list[str]]:
    """Which rule the turn before broke; the rest of what a seat reads is what the other one said."""
    return [["error", line] for line in turn.read.splitlines() if line.startswith("Error:")]


def _on_boards(episode: Episode, seat: str | None) -> dict[str, Any]:
    """`boards`: by seat what it sees, None where it sees nothing. `asked`: reviewer, paper and use of each question
    about a score. `final`: the paper of each reviewer in the end."""
    seats, texts = [turn.seat for turn in episode.turns], [turn.text for turn in episode.turns]
    seen, size = seen_cells(seats, [turn.read for turn in episode.turns])
    asked = classify(list(zip(seats, texts, strict=True)), seat, seen, size) if seat else []
    return {
        "boards": _boards(episode),
        "asked": [[*question.cell, _use(question)] for question in asked if question.cell],
        "final": _final(texts, size),
    }


def _use(asked: Asked) -> str:
    use = "useful" if asked.useful else "repeated" if asked.repeated else "known" if asked.known else "other"
    return f"{use}, {'answered with a number' if asked.with_number else 'no number'}"


def _boards(episode: Episode) -> dict[str, list[list[int | None]]]:
    boards: dict[str, np.ndarray | None] = {}
    for turn in episode.turns:
        if turn.seat not in boards:
            boards[turn.seat] = read_prompt(turn.read)
    return {
        seat: [[None if n < 0 else n for n in row] for row in board.tolist()]
        for seat, board in boards.items()
        if board is not None
    }


def _final(texts: list[str], size: int) -> list[int] | None:
    """The last proposal, if it was accepted."""
    proposals = [text for text in texts if text.startswith("[propose]")]
    if not proposals or texts[-1].strip() != "[accept]":
        return None
    try:
        return list(parse_proposal(proposals[-1].removeprefix("[propose]").replace(MUST_ANSWER, ""), size))
    except InvalidProposal:
        return None
