"""The language of the matching game: prompts and turns as text."""

import re
from typing import Literal, NamedTuple

import numpy as np

from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS

Act = Literal["message", "propose", "accept", "reject"]

_INSTRUCTIONS = """\
You and a partner assign {size} papers to {size} reviewers, one paper each. Every reviewer has a score \
for every paper, and both of you earn the sum of the scores of the pairs you agree on. Each of you sees \
only some of the scores{scale}; the others are marked "?". Take turns. A turn is one of
[message] and what you want to say
[propose] Proposal: and then a line "Paper: Reviewer" for every paper
[accept] or [reject], to answer a proposal; accepting ends the game.
"""
_ENDS_SOON = "Soon after the last score that can be told, the game ends without a reward.\n"
_SHORT = "Assign {size} papers.\n"
ROUGH_MARK = "±5"
"""Behind the middle of the ten scores that a cell can have by what a player knows roughly."""
_SIZE = re.compile(r"[Aa]ssign (\d) papers")
_BOARD = "You see:\n"
_CELL = re.compile(rf"^({'|'.join(REVIEWERS)}) - ({'|'.join(SHORT_PAPERS)}): (\d+)$", re.MULTILINE)
_ROUGH_CELL = re.compile(_CELL.pattern.replace("$", rf"{re.escape(ROUGH_MARK)}$"), re.MULTILINE)
_PRIVATE_SCALE = ", multiplied by a private factor of your own"
MUST_ANSWER = "You can output one of these choices: [accept] or [reject]"


class Limits(NamedTuple):
    """What asking costs in a game, and how long the game may last."""

    max_turns: int
    """Turns of both players together, illegal ones included. Then the game ends without a reward."""
    patience: int | None = None
    """A shy partner answers about at most this many cells; None: about any number."""
    price: int = 0
    """Percent of the best sum that each cell asked for costs the one who asks."""
    turns_told: bool = True
    """Whether the players are told how many turns are left."""

    @property
    def of_asking(self) -> bool:
        """Whether asking costs anything."""
        return self.patience is not None or self.price > 0


class Turn(NamedTuple):
    act: Act
    content: str


class InvalidTurn(ValueError):
    """A turn that the rules forbid; the speaker is told the message."""


def prompt(
    numbers: np.ndarray,
    private_scale: bool,
    limits: Limits,
    partner: bool = False,
    short: bool = False,
    rough: np.ndarray | None = None,
) -> str:
    """What a player reads first.

    Args:
        numbers: (N, N) int: what it sees of the board, -1 where it sees nothing.
        rough: (N, N) int: what it knows roughly of the rest, see `Board.rough`; -1 where it knows nothing.
        partner: whether it is the second player, whose patience it is.
        short: leave the rules out, for a model that has learnt them by imitation.
    """
    size = len(numbers)
    scale = _PRIVATE_SCALE if private_scale else ""
    if rough is not None:
        scale += f", or knows them roughly ({ROUGH_MARK})"
    ends_soon = limits.patience is not None and not limits.turns_told
    rules = (_SHORT if short else _INSTRUCTIONS + _ENDS_SOON * ends_soon).format(size=size, scale=scale)
    shown = np.where(numbers < 0, "?", numbers.astype(str))
    if rough is not None:
        shown = np.where(rough < 0, shown, np.char.add(rough.astype(str), ROUGH_MARK))
    cells = (f"{REVIEWERS[r]} - {SHORT_PAPERS[p]}: {text}" for (r, p), text in np.ndenumerate(shown))
    return rules + _BOARD + "\n".join(cells) + "\n" + left(limits, partner=partner)


def left(limits: Limits, turns: int = 0, asked: int = 0, partner: bool = False) -> str:
    """What a player still has: turns, and what asking costs it or how many scores its partner still tells.

    Args:
        turns: that both players have taken.
        asked: cells that were asked for.
        partner: whether it is the second player, whose patience it is.
    """
    told = [f"Turns left: {(limits.max_turns - turns + 1) // 2}"] if limits.turns_told else []
    if limits.price:
        told.append(f"Price of a score in percent: {limits.price}")
    if limits.patience is not None:
        told.append(f"Scores {'you tell' if partner else 'left'}: {max(0, limits.patience - asked)}")
    return "\n".join(told)


def read_prompt(text: str) -> np.ndarray | None:
    """`numbers` from a text that begins with `prompt(numbers, ...)`; None from any other text."""
    return _read(text, _CELL)


def read_rough(text: str) -> np.ndarray | None:
    """`rough` from such a text, -1 where nothing is known roughly."""
    return _read(text, _ROUGH_CELL)


def _read(text: str, cell: re.Pattern[str]) -> np.ndarray | None:
    size, opens, board = _SIZE.search(text), *text.partition(_BOARD)[1:]
    if not size or not opens:
        return None
    numbers = np.full((int(size[1]), int(size[1])), -1)
    for reviewer, paper, number in cell.findall(board):
        numbers[REVIEWERS.index(reviewer), SHORT_PAPERS.index(paper)] = int(number)
    return numbers


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
