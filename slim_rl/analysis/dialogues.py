"""A sample of episodes to be looked at: what was said on which board, which cells were asked for, who got what."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from slim_rl.analysis.measures import AGENT, Sample, seen_cells
from slim_rl.analysis.questions import Asked, classify
from slim_rl.games.matching.language import MUST_ANSWER, read_prompt
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, InvalidProposal, parse_proposal
from slim_rl.rollout.store import Shard

BOARDS, STEPS, PER_STEP = 60, 20, 6
"""Held-out boards that are shown, steps of training, and episodes of each step."""
MAX_BYTES = 1_200_000
"""Of all dialogues together; what does not fit is left out from the end."""


class Shown(NamedTuple):
    """One episode of a sample that is to be shown."""

    player: str
    sample: Sample
    row: Any
    """Its row in `sample.episodes`."""


def choose(held_out: Mapping[str, Sample], people: Sample | None, training: Sample) -> list[Shown]:
    """By fixed rules: both models on boards from the greatest loss to the greatest gain, people's games, and
    episodes of training from the worst to the best of a step."""
    chosen = []
    base, trained = (
        held_out[name].episodes.drop_duplicates("game_id").set_index("game_id")
        for name in ("base", "trained")
    )
    gains = (trained["reward"] - base["reward"]).dropna().reset_index().sort_values(["reward", "game_id"])
    for game in _spread(gains, BOARDS)["game_id"]:
        for name in ("base", "trained"):
            chosen.append((name, held_out[name], held_out[name].episodes["game_id"] == game))
    shown = [Shown(name, sample, next(sample.episodes[rows].itertuples())) for name, sample, rows in chosen]
    if people:
        ranked = people.episodes.sort_values(["reward", "episode_id"])
        shown += [Shown("humans", people, row) for row in _spread(ranked, PER_STEP * 4).itertuples()]
    steps = np.unique(training.episodes["step"])
    for step in steps[np.unique(np.linspace(0, len(steps) - 1, STEPS).round().astype(int))]:
        ranked = training.episodes[training.episodes["step"] == step].sort_values(["reward", "episode_id"])
        shown += [Shown("training", training, row) for row in _spread(ranked, PER_STEP).itertuples()]
    return shown


def _spread(ranked: pd.DataFrame, count: int) -> pd.DataFrame:
    """`count` rows from the first to the last, evenly."""
    return ranked.iloc[
        np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int))
    ]


def to_json(shown: Sequence[Shown]) -> str:
    """What the page's browser reads: names, boards by game, and episodes."""
    boards: dict[str, Any] = {}
    episodes: list[dict] = []
    said = _said(shown)
    used = 0
    for one in shown:
        seats, observations, texts = said[one.row.episode_id]
        episode, board = _episode(one, seats, observations, texts), _boards(seats, observations)
        used += len(json.dumps(episode)) + (0 if one.row.game_id in boards else len(json.dumps(board)))
        if used > MAX_BYTES:
            break
        boards.setdefault(one.row.game_id, board)
        for seat, numbers in board.items():  # an episode that ended early shows one board only
            boards[one.row.game_id].setdefault(seat, numbers)
        episodes.append(episode)
    names = {"reviewers": REVIEWERS, "papers": SHORT_PAPERS}
    whole = json.dumps(
        {**names, "boards": boards, "episodes": episodes}, separators=(",", ":"), ensure_ascii=False
    )
    return whole.replace("<", "\\u003c")  # so that no text can end the script element it stands in


def _said(shown: Sequence[Shown]) -> dict[str, tuple[list[str], list[str], list[str]]]:
    """Seats, observations and texts of each episode by its id; every shard is read once."""
    wanted: dict[Any, set[str]] = {}
    for one in shown:
        wanted.setdefault(one.sample.shards[one.row.shard], set()).add(one.row.episode_id)
    found = {}
    for path, ids in wanted.items():
        shard = Shard(path)
        for episode_id, dialogue in zip(shard.numbers()["episode_id"], shard.dialogues(), strict=True):
            if episode_id in ids:
                found[episode_id] = dialogue
    return found


def _episode(one: Shown, seats: list[str], observations: list[str], texts: list[str]) -> dict[str, Any]:
    asked = classify(list(zip(seats, texts, strict=True)), AGENT, seen_cells(seats, observations))
    numbers = ("reward", "own_view", "oracle_given_information")
    return {
        "id": one.row.episode_id,
        "player": one.player,
        "game": one.row.game_id,
        "step": int(one.row.step),
        "status": one.row.status,
        **{name: _rounded(getattr(one.row, name)) for name in numbers},
        "questions": int(one.row.questions),
        "useful": int(one.row.useful_questions),
        "turns": list(_turns(seats, observations, texts)),
        "asked": [[*pair, _use(question)] for question in asked for pair in question.question.pairs],
        "final": _final(seats, observations, texts),
    }


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def _use(asked: Asked) -> str:
    use = "useful" if asked.useful else "repeated" if asked.repeated else "known" if asked.known else "other"
    return f"{use}, {'answered with a number' if asked.with_number else 'no number'}"


def _turns(seats: list[str], observations: list[str], texts: list[str]) -> Iterator[list]:
    """[1 for the agent, what was said, which rule the turn before broke]."""
    for seat, observation, text in zip(seats, observations, texts, strict=True):
        errors = [line for line in observation.splitlines() if line.startswith("Error:")]
        yield [int(seat == AGENT), text, *errors]


def _boards(seats: list[str], observations: list[str]) -> dict[str, list]:
    """By seat: the numbers it reads, None where it sees none."""
    boards: dict[str, list] = {}
    for seat, observation in zip(seats, observations, strict=True):
        numbers = None if seat in boards else read_prompt(observation)
        if numbers is not None:
            boards[seat] = [[None if n < 0 else n for n in row] for row in numbers.tolist()]
    return boards


def _final(seats: list[str], observations: list[str], texts: list[str]) -> list[int] | None:
    """The paper of each reviewer in the last proposal, if that was accepted."""
    board = next(iter(_boards(seats, observations).values()), None)
    proposals = [text for text in texts if text.startswith("[propose]")]
    if board is None or not proposals or texts[-1].strip() != "[accept]":
        return None
    try:
        text = proposals[-1].removeprefix("[propose]").replace(MUST_ANSWER, "")
        return list(parse_proposal(text, len(board)))
    except InvalidProposal:
        return None
