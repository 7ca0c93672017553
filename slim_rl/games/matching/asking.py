"""What the questions of a dialogue were good for, read as the partner reads them."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from slim_rl.games.matching.names import REVIEWERS, find_mentions
from slim_rl.games.matching.questions import Pair, asked_cells, asks_something, named_pairs

_TURN = re.compile(r"\s*\[(\w+)\]\s*")
_REFUSES = re.compile(
    r"""\b (?: (?:do|does|did|can|could) (?:n['\u2019]?t|[ ]?not) [ ] (?:know|have|see|say|tell)
    | no[ ](?:info|information|idea|data|score|clue) | not[ ]sure | unsure | hard[ ]to[ ]say
    | (?:is|are|am|['\u2019]s|['\u2019]re) [ ] (?:blank|unknown) | nothing[ ](?:on|for|about) | never[ ]mind ) \b""",
    re.IGNORECASE | re.VERBOSE,
)

Seen = Mapping[str, Collection[Pair]]
"""By seat: the (reviewer, paper) pairs whose score it sees from the start."""


class Asked(NamedTuple):
    """A question: a cell that a message asks for. Only such a question can be useful, known, ... or answered."""

    turn: int
    """Which turn asks, from 0."""
    cell: Pair | None
    """None for a message that asks for something else."""
    known: bool
    """The asker sees it."""
    repeated: bool
    """The asker asked for it before."""
    unanswerable: bool
    """The other player does not see it."""
    with_number: bool
    """The other player's next turn answers with a number."""

    @property
    def useful(self) -> bool:
        """The asker neither sees it nor asked for it before."""
        return self.cell is not None and not (self.known or self.repeated)


def classify(turns: Sequence[tuple[str, str]], asker: str, seen: Seen, size: int) -> list[Asked]:
    """The questions of one seat in an episode, in order. A message that asks for cells is a question for each of them.

    Args:
        turns: (seat, text) of all seats in order. A text may begin with a tag like "[message]"; with any other tag it
            asks for nothing.
        seen: a seat that is missing sees nothing.
        size: reviewers on the board.
    """
    own, others = seen.get(asker, ()), [cells for seat, cells in seen.items() if seat != asker]
    found: list[Asked] = []
    for number, (seat, text) in enumerate(turns):
        if seat != asker or not asks_something(message := _message(text)):
            continue
        cells = asked_cells(message, size)
        if not cells:
            found.append(Asked(number, None, known=False, repeated=False, unanswerable=False, with_number=False))
            continue
        told = _told(next((said for speaker, said in turns[number + 1 :] if speaker != asker), ""))
        before = {asked.cell for asked in found}
        for cell in cells:
            found.append(
                Asked(
                    number,
                    cell,
                    known=cell in own,
                    repeated=cell in before,
                    unanswerable=bool(others) and not any(cell in other for other in others),
                    with_number=any(cell in named or (not named and len(cells) == 1) for named in told),
                )
            )
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
