"""The language of the matching game: prompts, turns, questions and answers as text."""

import math
import re
from typing import Literal, NamedTuple

import numpy as np

from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS

Act = Literal["message", "propose", "accept", "reject"]

_INSTRUCTIONS = """\
You and a partner assign {size} papers to {size} reviewers, one paper each. Every reviewer has a score \
for every paper, and both of you earn the sum of the scores of the pairs you agree on. Each of you sees \
only some of the scores{scale}. Take turns. A turn is one of
[message] and what you want to say
[propose] Proposal: and then a line "Paper: Reviewer" for every paper
[accept] or [reject], to answer a proposal; accepting ends the game.
The scores you see:
"""
_OPENING = _INSTRUCTIONS.partition("{")[0]
_CELL = re.compile(rf"^(?:{'|'.join(REVIEWERS)}) - (?:{'|'.join(SHORT_PAPERS)}): (\d+|\?)$", re.MULTILINE)
_PRIVATE_SCALE = ", multiplied by a private factor of your own"
MUST_ANSWER = "You can output one of these choices: [accept] or [reject]"
VAGUE_ANSWER = "[message] Hard to say in general. Some of it looks good to me, some of it less."
"""A shy partner's turn after a question that is not about single scores."""


class Turn(NamedTuple):
    act: Act
    content: str


class InvalidTurn(ValueError):
    """A turn that the rules forbid; the speaker is told the message."""


def prompt(numbers: np.ndarray, private_scale: bool) -> str:
    """What a player reads first. `numbers` (N, N) int: what it sees of the board, -1 where it sees nothing."""
    size = len(numbers)
    cells = "".join(
        f"{REVIEWERS[r]} - {SHORT_PAPERS[p]}: {numbers[r, p] if numbers[r, p] >= 0 else '?'}\n"
        for r in range(size)
        for p in range(size)
    )
    return _INSTRUCTIONS.format(size=size, scale=_PRIVATE_SCALE if private_scale else "") + cells.rstrip()


def read_prompt(text: str) -> np.ndarray | None:
    """`numbers` from a text that begins with `prompt(numbers, ...)`; None from any other text."""
    cells = _CELL.findall(text)
    size = math.isqrt(len(cells))
    if not text.startswith(_OPENING) or size * size != len(cells) or not size:
        return None
    return np.array([-1 if number == "?" else int(number) for number in cells]).reshape(size, size)


def question(reviewer: int, paper: int) -> str:
    return f"[message] What is {REVIEWERS[reviewer]}'s score for {SHORT_PAPERS[paper]}?"


def parse_turn(text: str) -> Turn:
    """Split a turn into its tag and the rest.

    Raises:
        InvalidTurn: there is no tag, an unknown one, or an empty message.
    """
    match = re.match(r"\s*\[(message|propose|accept|reject)\](.*)\Z", text, re.DOTALL | re.IGNORECASE)
    if match is None:
        raise InvalidTurn("A turn begins with [message], [propose], [accept] or [reject].")
    turn = Turn(match[1].lower(), match[2].strip())  # type: ignore[arg-type]
    if turn.act in ("message", "propose") and not turn.content:
        raise InvalidTurn(f"Nothing stands after [{turn.act}].")
    return turn


def answer(reviewer: int, paper: int, number: int) -> str:
    """A shy answer to a question about one pair; `number` is -1 for a score that the speaker does not see."""
    pair = f"{REVIEWERS[reviewer]}'s score for {SHORT_PAPERS[paper]}"
    return f"{pair} is {number}." if number >= 0 else f"I do not know {pair}."
