"""What the questions of a dialogue were good for, read as the partner reads them."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from slim_rl.games.matching.names import REVIEWERS, find_mentions
from slim_rl.games.matching.questions import Pair, asked_cells, named_pairs, read_clauses

_TURN = re.compile(r"\s*\[(\w+)\]\s*")
_MARK = re.compile(r"(?<=\?)(?!\?)")
_REFUSES = re.compile(
    r"""\b (?: (?:do|does|did|can|could) (?:n['\u2019]?t|[ ]?not) [ ] (?:know|have|see|say|tell)
    | no[ ](?:info|information|idea|data|score|clue) | not[ ]sure | unsure | hard[ ]to[ ]say
    | (?:is|are|am|['\u2019]s|['\u2019]re) [ ] (?:blank|unknown) | nothing[ ](?:on|for|about) | never[ ]mind ) \b""",
    re.IGNORECASE | re.VERBOSE,
)

Seen = Mapping[str, Collection[Pair]]
"""By seat: the (reviewer, paper) pairs whose score it sees from the start."""


class Question(NamedTuple):
    text: str
    """What asks."""
    pairs: tuple[Pair, ...] = ()
    """The (reviewer, paper) pairs whose scores it asks for."""


class Asked(NamedTuple):
    """A question in its episode. Only one that asks for pairs can be useful, repeated, known or unanswerable."""

    turn: int
    """Which turn it stands in, from 0."""
    question: Question
    useful: bool
    """About a score that the asker neither sees nor has asked for."""
    repeated: bool
    """About nothing but what the asker has asked for."""
    known: bool
    """About nothing but what the asker sees."""
    unanswerable: bool
    """About nothing that the other player sees."""
    with_number: bool
    """The other player's next turn answers it with a number."""


def find_questions(message: str, size: int) -> list[Question]:
    """The questions in a message on a board of `size` reviewers, in order.

    A question mark closes one; below "Please tell me your scores for:" the lines of a list are one with it.
    """
    found: list[Question] = []
    for text, asks, pairs in read_clauses(message, size):
        parts = [part for part in _MARK.split(text) if "?" in part and re.search(r"\w", part)]
        if asks and len(parts) > 1:
            found += [Question(part, tuple(asked_cells(part, size))) for part in parts]
        elif asks:
            found.append(Question(text, pairs))
        elif pairs and found:
            found[-1] = Question(found[-1].text, found[-1].pairs + pairs)
    return found


def classify(turns: Sequence[tuple[str, str]], asker: str, seen: Seen, size: int) -> list[Asked]:
    """The questions of one seat in an episode, in order, each with what became of it.

    Args:
        turns: (seat, text) of all seats in order. A text may begin with a tag like "[message]"; with any other tag it
            asks nothing.
        seen: a seat that is missing sees nothing.
        size: reviewers on the board.
    """
    own, others = seen.get(asker, ()), [pairs for seat, pairs in seen.items() if seat != asker]
    asked_before: set[Pair] = set()
    found: list[Asked] = []
    for number, (seat, text) in enumerate(turns):
        message = _message(text) if seat == asker else None
        questions = find_questions(message, size) if message else ()
        reply = next((said for speaker, said in turns[number + 1 :] if speaker != asker), "") if questions else ""
        for question in questions:
            pairs = question.pairs
            found.append(
                Asked(
                    number,
                    question,
                    useful=any(pair not in own and pair not in asked_before for pair in pairs),
                    repeated=bool(pairs) and asked_before.issuperset(pairs),
                    known=bool(pairs) and all(pair in own for pair in pairs),
                    unanswerable=bool(pairs and others)
                    and not any(pair in other for other in others for pair in pairs),
                    with_number=_answered_with_number(question, reply),
                )
            )
            asked_before.update(pairs)
    return found


def _message(turn: str) -> str | None:
    """What a turn says; None if its tag says that it is no message."""
    tag = _TURN.match(turn)
    if tag is None:
        return turn
    return turn[tag.end() :] if tag[1].lower() == "message" else None


def _answered_with_number(question: Question, reply: str) -> bool:
    told = _told(reply)
    about = [sentence for sentence in told if not sentence[0].isdisjoint(question.pairs)] or told
    return any(number for _, number in about)


@lru_cache(maxsize=4096)
def _told(reply: str) -> tuple[tuple[frozenset[Pair], bool], ...]:
    """Of each sentence of a reply the pairs that it names, and whether it tells a number."""
    return tuple(
        (
            frozenset(named_pairs(find_mentions(sentence, len(REVIEWERS)), sentence)),
            re.search(r"\d", sentence) is not None and not _REFUSES.search(sentence),
        )
        for sentence in re.split(r"[.!?\n]+", _message(reply) or "")
    )
