"""What the questions of a dialogue were good for, read as the partner reads them."""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from slim_rl.games.matching.names import REVIEWERS, find_mentions
from slim_rl.games.matching.questions import Pair, asked_cells, named_pairs

_TURN = re.compile(r"\s*\[(\w+)\]\s*")
_REFUSES = re.compile(
    r"""\b (?: (?:do|does|did|can|could) (?:n['\u2019]?t|[ ]?not) [ ] (?:know|have|see|say|tell)
    | no[ ](?:info|information|idea|data|score|clue) | not[ ]sure | unsure | hard[ ]to[ ]say
    | (?:is|are|am|['\u2019]s|['\u2019]re) [ ] (?:blank|unknown) | nothing[ ](?:on|for|about) | never[ ]mind ) \b""",
    re.IGNORECASE | re.VERBOSE,
)


class Asked(NamedTuple):
    """A cell that a message asks for."""

    cell: Pair
    known: bool
    """The asker sees it."""
    repeated: bool
    """The asker asked for it before."""
    with_number: bool
    """The other player's next turn answers with a number."""


def classify(turns: Sequence[tuple[str, str]], asker: str, seen: Collection[Pair], size: int) -> list[Asked]:
    """The cells that one seat asked for in an episode, in order.

    Args:
        turns: (seat, text) of all seats in order. A text may begin with a tag like "[message]"; with any other tag it
            asks for nothing.
        seen: the (reviewer, paper) pairs whose score the asker sees from the start.
        size: reviewers on the board.
    """
    found: list[Asked] = []
    for number, (seat, text) in enumerate(turns):
        cells = asked_cells(_message(text), size) if seat == asker else []
        told = _told(next((said for speaker, said in turns[number + 1 :] if speaker != asker), "")) if cells else ()
        before = {asked.cell for asked in found}
        for cell in cells:
            with_number = any(cell in named or (not named and len(cells) == 1) for named in told)
            found.append(Asked(cell, cell in seen, cell in before, with_number))
    return found


def _message(turn: str) -> str:
    """What a turn says; nothing if its tag says that it is no message."""
    tag = _TURN.match(turn)
    if tag is None:
        return turn
    return turn[tag.end() :] if tag[1].lower() == "message" else ""


@lru_cache(maxsize=4096)
def _told(reply: str) -> tuple[frozenset[Pair], ...]:
    """Of each sentence of a reply that tells a number, the cells that it names."""
    return tuple(
        frozenset(named_pairs(find_mentions(sentence, len(REVIEWERS)), sentence))
        for sentence in re.split(r"[.!?\n]+", _message(reply))
        if re.search(r"\d", sentence) and not _REFUSES.search(sentence)
    )
