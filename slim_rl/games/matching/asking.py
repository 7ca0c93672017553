"""What a player asks in its messages, for whoever reads a dialogue: which questions, and about which cells.

Two things are read apart. Whether a clause is a question at all is told by `slim_rl.games.matching.clauses`; it
counts whether or not anybody would answer it. Which cells (reviewer, paper) it asks for is told by the partner's own
reading, `slim_rl.games.matching.questions`: a question that a shy partner would not answer asks for no cell.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from slim_rl.games.matching.clauses import asking_clauses, phrases, sentences
from slim_rl.games.matching.names import find_mentions
from slim_rl.games.matching.questions import Pair, asked_pairs, named_pairs

_KEPT = 16384  # texts whose reading is kept: a policy says the same few things very often
_TURN = re.compile(r"\s*\[(\w+)\]\s*")
_REFUSES = phrases("""
    (?:do|does|did|can|could)(?:n~t|_not|not)_(?:know|have|see|say|tell) | no_(?:info|information|idea|data|score|clue) | not_sure | unsure
    | hard_to_say | (?:is|are|am|~s|~re)_(?:blank|unknown) | nothing_(?:on|for|about) | never_mind
""")

Seen = Mapping[str, Collection[Pair]]
"""By seat: the (reviewer, paper) pairs whose score it sees from the start."""


class Question(NamedTuple):
    text: str
    """The clause that asks."""
    start: int
    """Its place in the message."""
    pairs: tuple[Pair, ...] = ()
    """The (reviewer, paper) pairs that it asks for."""


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


@lru_cache(_KEPT)
def find_questions(message: str, size: int) -> tuple[Question, ...]:
    """The questions in a message on a board of `size` reviewers, in order."""
    return tuple(
        Question(message[start:end], start, _pairs(message, start, end, size))
        for start, end in asking_clauses(message)
    )


def _pairs(message: str, start: int, end: int, size: int) -> tuple[Pair, ...]:
    """What the clause `message[start:end]` asks for, by itself or else as what goes on before it ("And for GloVe?")."""
    if own := asked_pairs(message[start:end], size):
        return tuple(own)
    before = asked_pairs(message[:start], size)
    return tuple(pair for pair in asked_pairs(message[:end], size) if pair not in before)


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
        reply = (
            next((said for speaker, said in turns[number + 1 :] if speaker != asker), "") if questions else ""
        )
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


@lru_cache(_KEPT)
def _told(reply: str) -> tuple[tuple[frozenset[Pair], bool], ...]:
    """Of each sentence of a reply the pairs that it names, and whether it tells a number."""
    message = _message(reply) or ""
    return tuple(
        (
            frozenset(named_pairs(find_mentions(sentence, 8, loosely=True), sentence)),
            re.search(r"\d", sentence) is not None and not _REFUSES.search(sentence.lower()),
        )
        for sentence in (message[begin:end] for begin, end, _, _ in sentences(message))
    )
