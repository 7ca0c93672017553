"""What a message asks for, as a shy partner reads it: it answers only what it is asked.

What the writer does not say to the partner is left out first: thoughts, quotations, tables. The rest is cut into
clauses. A clause that asks for scores gives the pairs of the names next to each other in it, and of names that it
takes from the clause before. A clause that suggests an assignment ("should we put Ava on BLEU?") asks for a decision
instead. An ambiguous clause asks for nothing: a shy partner does not guess.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, product
from typing import Literal, NamedTuple

from slim_rl.games.matching import phrases
from slim_rl.games.matching.names import REVIEWERS, Mention, find_mentions

Pair = tuple[int, int]
"""A reviewer and a paper, by index."""


def asks_something(text: str) -> bool:
    """Whether the message asks for anything at all, a score or not."""
    return _read(text, len(REVIEWERS)).asks


def asked_cells(text: str, size: int) -> list[Pair]:
    """The cells (reviewer, paper) whose scores the message asks for, in order, without duplicates.

    Args:
        size: reviewers on the board; names that are not in play are passed over.
    """
    return list(_read(text, size).cells)


class _Reading(NamedTuple):
    asks: bool
    cells: tuple[Pair, ...]


def _runs(mentions: Sequence[Mention]) -> list[list[Mention]]:
    """Consecutive mentions of the same kind, grouped."""
    return [list(run) for _, run in groupby(mentions, key=lambda mention: mention.kind)]


def _included(clause: str, mentions: list[Mention]) -> list[Mention]:
    """The mentions without those that the clause excludes ("besides Ava")."""
    kept = []
    for run in _runs(mentions):
        start = run[0].start
        if not phrases.EXCLUDES.search(clause[max(0, start - 80) : start]):
            kept += run
    return kept


def _other_words(clause: str, mentions: Sequence[Mention]) -> set[str]:
    """The words and numbers of a clause outside of its names, in lower case."""
    ends = [0, *(mention.end for mention in mentions)]
    starts = [*(mention.start for mention in mentions), len(clause)]
    outside = " ".join(clause[end:start] for end, start in zip(ends, starts, strict=True))
    return set(re.findall(r"[^\W\d_]+|\d+", outside.lower()))


class _Clause:
    """A clause of a message."""

    said: Literal["asked", "stated", "suggested"] = "stated"

    def __init__(self, text: str, size: int, first: bool):
        self.text = text
        self.mentions: Sequence[Mention] = _included(text, find_mentions(text, size))
        """The names in it; once it is read, also those that it takes from the clause before."""
        self.kinds = {mention.kind for mention in self.mentions}
        self.words = _other_words(text, self.mentions)
        self.first = first
        """Whether the clause before it names nobody."""

    @property
    def only_a_name(self) -> bool:
        """It is no more than "BLEU:" or "As for Ava,"."""
        return len(self.kinds) == 1 and self.words <= phrases.FOLLOW_UP_WORDS

    @property
    def only_a_score(self) -> bool:
        """It is no more than "Your score for Ava on BLEU"."""
        scores = self.words <= phrases.BARE_WORDS and phrases.ASKS_BARE.search(self.text)
        return len(self.kinds) == 2 and bool(scores)

    @property
    def tells_numbers(self) -> bool:
        return any(word == "unknown" or word.isdecimal() for word in self.words)


_NOTHING = _Clause("", size=0, first=True)


@lru_cache(maxsize=4096)
def _read(text: str, size: int) -> _Reading:
    asks_anything, cells = False, list[Pair]()
    before, listing = _NOTHING, False
    for part in _clauses(text):
        clause = _Clause(part, size, first=not before.mentions)
        asks = _asks(part)
        follows = clause.only_a_name and bool(before.mentions)
        follows = follows and (before.said == "asked" or (asks and before.only_a_name))
        asks = asks or follows or clause.only_a_score or (_wants(part) and bool(clause.kinds or part.endswith(":")))
        # The lines below "Please tell me your scores for:"
        listing = listing and bool(clause.kinds) and clause.words <= phrases.LISTED_WORDS
        if _suggests(part) or (asks and not listing and _assigns(clause)):
            clause.said, listing = "suggested", False
        elif listing or (asks and not _states(part)):
            clause.said, clause.mentions = "asked", _completed(clause, before, follows)
            cells += named_pairs(clause.mentions, part)
            announces = part.endswith(":") or (not clause.mentions and phrases.ANNOUNCES.search(part))
            listing = listing or bool(announces and _for_scores(part))
        asks_anything, before = asks_anything or asks, clause
    return _Reading(asks_anything, tuple(dict.fromkeys(cells)))


def _clauses(text: str) -> Iterator[str]:
    """The clauses of a message: its sentences, cut where a question begins inside one."""
    text = re.sub(r"[^\S\n]+", " ", _addressed(text))
    return (clause for sentence in phrases.SENTENCE_END.split(text) for clause in _cut(sentence) if clause)


def _addressed(text: str) -> str:
    """What a message says to the partner, in plain characters; a "?" that stands for a number becomes "unknown"."""
    text = phrases.NEW_LINE.sub("\n", phrases.THOUGHT.sub("", text)).strip()
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(phrases.PUNCTUATION)
        text = phrases.SCRIPT_CHANGE.sub(" ", text).strip()
    if text[:1] == text[-1:] == '"' and text.count('"') == 2:
        text = text.strip('"')
    text = phrases.QUOTED.sub("", phrases.TABLE_ROW_OR_QUOTE.sub("", text))
    text = phrases.QUOTATION.sub(_without_sentences, text)
    text = phrases.BLANK.sub(r"\g<verb> unknown", phrases.EMPHASIS.sub("", text))
    return phrases.SPACED_MARK.sub("unknown", text) if " ?" in text and phrases.TOLD_CELL.search(text) else text


def _without_sentences(quotation: re.Match[str]) -> str:
    """A quoted name; nothing in the place of a quoted sentence."""
    return " " if "?" in quotation[0] or len(quotation[0].split()) > 3 else quotation[0]


def _cut(sentence: str) -> Iterator[str]:
    start = 0
    for opening in sorted(
        (*phrases.OPENS.finditer(sentence), *phrases.REQUESTS.finditer(sentence)), key=re.Match.start
    ):
        head = sentence[start : opening.start()].rstrip()
        # Without a question mark, "I know what is best" is not a question.
        cuts = "?" in sentence or re.search(r"(?:[-,:]|\b(?:and|but|so))$", head[-4:])
        if cuts and re.search(r"\w", head) and not phrases.TOPIC.match(head):
            yield head
            start = opening.start()
    yield sentence[start:].strip()


def _asks(clause: str) -> bool:
    opening = phrases.OPENS.search(clause)
    starts = opening and (not re.search(r"\w", clause[: opening.start()]) or phrases.TOPIC.match(clause))
    please = re.search(r"\bplease\W*$", clause, re.IGNORECASE)
    if not ("?" in clause or starts or please or phrases.BEGINS.match(clause) or phrases.REQUESTS.search(clause)):
        return False
    recalled = phrases.RECALLS.search(clause)
    return not recalled or bool(opening and opening.start() < recalled.start())


def _wants(clause: str) -> bool:
    """Whether a clause asks for a score in the form of a statement: "It would help to know your score for..."."""
    return bool(phrases.SCORE.search(clause) and phrases.WANTS.search(clause)) and not (
        phrases.RECALLS.search(clause) or phrases.OFFERS.search(clause)
    )


def _suggests(clause: str) -> bool:
    """Whether a clause suggests an assignment rather than asking for scores."""
    if phrases.SEEKS_APPROVAL.search(clause):
        return True
    suggestion, score = phrases.SUGGESTS.search(clause), phrases.SCORE.search(clause)
    # "What score would Ava get if we put her on BLEU?" still asks for a score.
    return suggestion is not None and (score is None or suggestion.start() < score.start())


def _for_scores(clause: str) -> bool:
    """Whether a clause that asks speaks of scores, or of telling and not of an opinion or a decision."""
    judged = phrases.OPINION.search(clause) or phrases.DECIDES.search(clause)
    return bool(phrases.SCORE.search(clause) or (phrases.TELLS.search(clause) and not judged))


def _assigns(clause: _Clause) -> bool:
    """Whether a clause lists the pairs of an assignment: "Ava on BLEU, Daniel on GloVe, Sofia on Electra?"."""
    # No assignment gives a name twice.
    twice = clause.words <= phrases.LISTED_WORDS and len({name[:2] for name in clause.mentions}) < len(clause.mentions)
    if len(clause.mentions) < 4 or twice or _for_scores(clause.text):
        return False
    return len(_runs(clause.mentions)) > (3 if phrases.OPINION.search(clause.text) else 5)


def _states(clause: str) -> bool:
    return bool(phrases.STATES.match(clause)) and not (
        phrases.OPENS.search(clause) or phrases.REQUESTS.search(clause) or _wants(clause)
    )


def _completed(clause: _Clause, before: _Clause, follows: bool) -> Sequence[Mention]:
    """The mentions of a clause that asks, with the names that it takes from the clause before.

    An echo ("and you?") takes the pair, a follow-up ("and for GloVe?") or a pronoun ("how is she on BLEU?") a name.
    """
    words = clause.words
    if not clause.mentions:
        one = len(before.mentions) == 2 and words & (phrases.POINTS if before.first else phrases.POINTS_TO_ONE)
        # After a list of pairs, "and you?" asks for another list, "please share them" for these.
        names_several = phrases.POINTS_TO_SEVERAL | (set() if before.tells_numbers else phrases.MAY_POINT_TO_SEVERAL)
        points = one or (before.first and words & names_several)
        echoes = points and before.said != "suggested" and words <= phrases.ECHO_WORDS
        return before.mentions if echoes else ()
    pronoun = phrases.PLACE if "reviewer" in clause.kinds else phrases.PERSON
    if len(clause.kinds) == 1 and (follows or pronoun.search(clause.text)):
        others = [run for run in _runs(before.mentions) if run[0].kind not in clause.kinds]
        return [*others[-1], *clause.mentions] if others else clause.mentions
    return clause.mentions


def named_pairs(mentions: Sequence[Mention], clause: str) -> Iterator[Pair]:
    """Pairs from each run of names and the next run; an odd last run goes with the run before it."""
    runs = _runs(mentions)
    couples = [(runs[i], runs[i + 1]) for i in range(0, len(runs) - 1, 2)]
    if len(runs) > 1 and len(runs) % 2:
        couples.append((runs[-2], runs[-1]))
    for couple in couples:
        reviewers, papers = couple if couple[0][0].kind == "reviewer" else reversed(couple)
        matched = "respectively" in clause.lower() and len(reviewers) == len(papers)
        for reviewer, paper in zip(reviewers, papers, strict=True) if matched else product(reviewers, papers):
            yield reviewer.index, paper.index


@lru_cache(maxsize=4096)
def told_numbers(text: str, size: int) -> tuple[tuple[Pair, str], ...]:
    """Each pair that a sentence names with a number, and that number; asked for or not, true or not."""
    told: list[tuple[Pair, str]] = []
    for sentence in re.split(r"[.!?\n]+", text):
        numbers = re.findall(r"\d+", sentence)
        pairs = list(named_pairs(find_mentions(sentence, size), sentence)) if numbers else []
        told += zip(pairs, numbers, strict=False)
    return tuple(told)
