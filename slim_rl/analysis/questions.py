"""What a message asks, and what each question was good for.

`find_questions` reads a message and, if they are given, the turns before it: it finds the clauses that seek an
answer from the partner (`slim_rl.analysis.clauses`) and sorts each by what it asks about
(`slim_rl.analysis.kinds`). What counts as a question is written down in
`tests/analysis/questions/GUIDELINE.md`; `python -m benchmarks.questions` scores this module against people's
messages that were labelled by it. `classify` adds what only the episode knows: what the asker saw, what it had
asked before, and what the partner replied.

The partner at the table reads messages by stricter rules (`slim_rl.games.matching.questions`), because it
answers only what is clearly asked. Here a question counts whether or not anybody would answer it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from slim_rl.analysis.clauses import FindNames, asking_clauses, phrases, sentences
from slim_rl.analysis.kinds import Context, Kind, context, features, kind_of, named_last, tag, untagged
from slim_rl.games.matching.names import Mention, find_mentions
from slim_rl.games.matching.questions import Pair, named_pairs

NAMES: FindNames = partial(find_mentions, size=8, loosely=True)
"""Finds the names of the matching game; a game with other names brings a finder of its own."""


class Question(NamedTuple):
    kind: Kind
    text: str
    """The clause that asks."""
    start: int
    """Where in the message it stands."""
    pairs: tuple[Pair, ...] = ()
    """The (reviewer, paper) pairs that it names, if it is specific."""


def find_questions(
    text: str, find_names: FindNames = NAMES, turns: Sequence[str] | None = None
) -> list[Question]:
    """The questions in a message, in order.

    Args:
        find_names: finds reviewers and papers in a text.
        turns: those before it, the last one first, each with its tag like "[propose]" unless it is a message;
            without them the message is judged alone.
    """
    clauses = [*asking_clauses(text, find_names)]
    if not clauses:
        return []
    return _questions(text, clauses, None if turns is None else context(turns, find_names), find_names)


def _questions(
    text: str, clauses: Sequence[tuple[int, int]], known: Context | None, find_names: FindNames
) -> list[Question]:
    names = find_names(text[: clauses[-1][1]])
    found: list[Question] = []
    for start, end in clauses:
        previous = found[-1].kind if found else None
        kind = kind_of(features(text, start, end, names, known, previous))
        pairs = _pairs(text, start, end, names) if kind == "specific" else ()
        found.append(Question(kind, text[start:end], start, pairs))
    return found


def _pairs(text: str, start: int, end: int, names: Sequence[Mention]) -> tuple[Pair, ...]:
    """The pairs that a clause names; what it leaves out, the sentence before it says.

    "I have 80 for Ava on BLEU, what about you?", "Ava looks good. How is she on BLEU?"
    """
    own = [name for name in names if start <= name.start < end]
    said = {name.kind for name in own}
    if len(said) < 2 and (before := [*sentences(text[:start])]):
        own = [n for n in names if before[-1][0] <= n.start < start and n.kind not in said] + own
    return tuple(named_pairs(own, text[start:end]))


Seen = Mapping[str, Collection[Pair]]
"""By seat: the (reviewer, paper) pairs whose score it sees from the start."""


class Asked(NamedTuple):
    """A question in its episode. Only one about pairs can be useful, known or unanswerable."""

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
    """About nothing that the other sees."""
    answered: bool
    """The other's next turn says something to it."""
    with_number: bool
    """The answer holds a number."""


def classify(
    turns: Sequence[tuple[str, str]], asker: str, seen: Seen, find_names: FindNames = NAMES
) -> list[Asked]:
    """The questions of one seat in an episode, in order, each with what became of it.

    Args:
        turns: (seat, text) of all seats in order; a text may begin with a tag like "[message]", and with any
            other tag than that it asks nothing.
        seen: a seat that is missing sees nothing.
    """
    own, others = seen.get(asker, ()), [pairs for seat, pairs in seen.items() if seat != asker]
    asked_before: set[Pair] = set()
    found: list[Asked] = []
    for number, (seat, text) in enumerate(turns):
        if seat != asker or not _clauses(text, find_names):
            continue
        earlier = [said for _, said in turns[max(0, number - 3) : number]][::-1]
        questions = _questions_of(text, context(earlier, find_names), find_names)
        reply = next((said for speaker, said in turns[number + 1 :] if speaker != asker), None)
        for question in questions:
            pairs = question.pairs
            found.append(
                Asked(
                    number,
                    question,
                    any(pair not in own and pair not in asked_before for pair in pairs),
                    bool(pairs) and asked_before.issuperset(pairs),
                    bool(pairs) and all(pair in own for pair in pairs),
                    bool(pairs)
                    and bool(others)
                    and not any(pair in other for other in others for pair in pairs),
                    *_answer(question, reply, find_names),
                )
            )
            asked_before.update(pairs)
    return found


@lru_cache(maxsize=65536)
def _clauses(turn: str, find_names: FindNames) -> tuple[tuple[int, int], ...]:
    """Where a turn asks, without its tag; only in a message."""
    return tuple(asking_clauses(untagged(turn), find_names)) if tag(turn) == "message" else ()


@lru_cache(maxsize=65536)
def _questions_of(turn: str, known: Context, find_names: FindNames) -> tuple[Question, ...]:
    return tuple(_questions(untagged(turn), _clauses(turn, find_names), known, find_names))


_REFUSES = phrases("""
    (?:do|does|did|can|could)(?:n~t|_not|not)_(?:know|have|see|say|tell) | no_(?:info|information|idea|data|score|clue) | not_sure | unsure
    | hard_to_say | (?:is|are|am|~s|~re)_(?:blank|unknown) | nothing_(?:on|for|about) | never_mind
""")


def forget() -> None:
    """Empty the caches of all that was read."""
    for cached in (_clauses, _questions_of, _said, named_last):
        cached.cache_clear()


def _answer(question: Question, reply: str | None, find_names: FindNames) -> tuple[bool, bool]:
    """Whether `reply` answers the question, and whether with a number."""
    if reply is None:
        return False, False
    if tag(reply) != "message":
        return question.kind == "proposal", False
    told = _said(reply, find_names)
    about = [s for s in told if not s[0].isdisjoint(question.pairs)] or told
    informs = [number for _, refuses, number in about if not refuses]
    return bool(informs), any(informs)


@lru_cache(maxsize=65536)
def _said(text: str, find_names: FindNames) -> tuple[tuple[frozenset[Pair], bool, bool], ...]:
    """Of each sentence the pairs that it names, whether it refuses to inform, and whether it has a number."""
    text = untagged(text)
    return tuple(
        (
            frozenset(named_pairs(find_names(sentence), sentence)),
            _REFUSES.search(sentence.lower()) is not None,
            re.search(r"\d", sentence) is not None,
        )
        for sentence in (text[begin:end] for begin, end, _, _ in sentences(text))
    )
