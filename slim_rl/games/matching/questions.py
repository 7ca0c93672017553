"""What a message asks for, as a shy partner reads it: it answers only what it is asked.

A message is cut into clauses. A clause that asks for scores gives the pairs of the names next to each other in it. A
clause that suggests an assignment ("should we put Ava on BLEU?") asks for a decision instead. An ambiguous clause asks
for nothing: a shy partner does not guess.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, product
from typing import NamedTuple

from slim_rl.games.matching.names import Mention, find_mentions

Pair = tuple[int, int]
"""A reviewer and a paper, by index."""


def _vocabulary(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _words(pattern: str) -> re.Pattern[str]:
    """`pattern`, written over several lines, between word boundaries and in any case."""
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE | re.VERBOSE)


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s+/\s+|\s*(?:\n|<br\s*/?>)\s*(?:\d+[.)]\s)?|;\s*")

# What begins a question in the middle of a sentence.
_OPENS = _words(r"""
    (?:what|how) (?:['\u2019]?s)? [ ]about
    | (?:what|how|who|where) [ ] (?:is|are|was|does|do|did|would|can|could)
    | (?:what|how|who|where) ['\u2019]s | hows | whats
    | (?:what|which) [ ] (?:\w+[ ])? (?:score|value|rating|number|info|information|data)s?
    | (?:what|which) [ ] (?:paper|reviewer|people)s?
    | (?:do|did|would|could|can|will|have) [ ] (?:you|u|ya)
    | (?:can|could|may) [ ]i[ ] (?:get|have|ask|know|see|hear)
    | (?:please[ ])? (?:tell|give|send|show|remind) [ ]me | let[ ]me[ ]know
    | (?:i|we) (?:['\u2019]d|[ ]would)? (?:[ ]also|[ ]still)? [ ] (?:need|want|like|appreciate)
        (?= [^,]{0,60} \b (?:know|hear|your|(?:score|value|rating|number|info|information)s?) \b)
    | (?:i|we) (?:['\u2019]m|[ ]am|[ ]was|['\u2019]re|[ ]are)?
        [ ] (?:wonder|wondering|curious|asking|looking[ ]for)
""")
# A clause that begins with this is a question, with or without a question mark.
_BEGINS = re.compile(
    r"""\W* (?: (?:and|but|so(?![ ](?:is|are|does|did)\b)|also|or|then|now|well) \b \W*
              | (?:ok|okay|hi|hello|hey|please|thanks|great|cool) \b \W* )*
    (?: what (?![ ]i\b|[ ]an?\b) | how | who | whose | where | which[ ](?:reviewer|paper|one)
    | is | are | does | did | any | anything
    | tell | give[ ](?!\w+[ ]to\b) | share | provide | report | list | need[ ]your
    | request(?:ing)? | (?:ask|asking|looking)[ ](?:about|for)
    ) \b""",
    re.IGNORECASE | re.VERBOSE,
)
# The topic of a question, before the question: "For BLEU, what do you have on Ava?"
_TOPIC = re.compile(
    r"\W*(?:and |also |so )*(?:for|as for|about|on|regarding|concerning|between|with regards? to)\b"
    r"(?! (?:me|my|now|us)\b)",
    re.IGNORECASE,
)

_SCORE = _words(r"""
    (?:score|value|rating|number|point|info|information|data|stat|expertise)s?
    | how[ ](?:good|well|strong|high)
""")
# Words of assigning and agreeing.
_SUGGESTS = _words(r"""
    put(?:ting|s)? | plac(?:e|ed|ing) | assign(?:ed|ing|s)? | mov(?:e|ed|ing) | leav(?:e|es|ing) | left[ ]with
    | (?:lock|keep|propos|reject|select|settl|slot|stay|stick|swap|switch|agree|accept)\w*
    | bring | choose | fill | picked | pick | toss
    | instead | maybe | perhaps | possibly | let['\u2019]?s | should | shall
    | go(?:es|ing)? [ ] (?:with|for|to|on) | give[ ]\w+[ ]to | have[ ]\w+[ ](?:do|be|review)
    | (?:can|could|may|might|must|are|if) [ ]we | (?:can|could|may) [ ]i[ ] (?:tell|give|send|share)
    | (?:can|could) [ ] (?:he|she|they) [ ] (?:go|be|do)
    | (?:ok|okay|happy|fine|cool|you[ ]good) [ ]with
    | (?:it|that|this) [ ] (?:be[ ])? (?:ok|okay|fine|alright|possible)
    | would[ ]you[ ](?:like|prefer|want) | do[ ]you[ ](?:want|prefer|need)
    | (?<!how[ ]) (?:does|do|would|will|could|might) \b [^?]{0,60} \b works?
""")
_SEEKS_APPROVAL = re.compile(
    r"\b(?:ok|okay|alright|fine|agreed|deal|good idea|right|correct|works?|sounds? good)\W*$", re.IGNORECASE
)
# "I think Ava would be good for SWAG?" is a statement in spite of its question mark.
_STATES = re.compile(
    r"\W*(?:(?:and|but|so|also|ok|okay|well|yes|yeah|no|then)\b\W*)*(?:i|my|here)\b"
    r"|.*\bi (?:have|got|guess|think|believe)\b",
    re.IGNORECASE,
)
# "Who is good at BLEU besides Ava?" does not ask about Ava.
_EXCLUDES = re.compile(
    r"\b(?:besides|except(?: for)?|(?:other|rather) than|apart from|aside from|outside(?: of)?|instead of|not"
    r"|(?:any|some|every|no)\s?(?:one|body)\b.{0,60}\bthan)\W*$",
    re.IGNORECASE,
)

# "I have 57 for Ava on BLEU, what about you?" A clause of only these words asks about the names before it.
_ECHO_WORDS = _vocabulary(
    "a about and any anything board but do does end for got has have his her how i is it look looks number"
    " of on one or s same score see show side so that the them there value what whats you your yours"
)
# "And for GloVe?" A clause of only names and these words continues the question before it.
_FOLLOW_UP_WORDS = _vocabulary(
    "a about also and any as at do for have her his how in info is on or paper s same score scores the then"
    " too well what with you"
)


def asks_something(text: str) -> bool:
    """Whether the message asks for anything at all, a score or not."""
    return any(_asks(clause) for clause in _clauses(text))


def asked_pairs(text: str, size: int) -> list[Pair]:
    """The (reviewer, paper) pairs whose scores the message asks for, in order, without duplicates."""
    return list(dict.fromkeys(pair for clause in read_clauses(text, size) for pair in clause.pairs))


class Clause(NamedTuple):
    """A clause of a message."""

    text: str
    asks: bool
    """Whether it asks for anything at all."""
    pairs: tuple[Pair, ...]
    """The pairs whose scores it asks for."""


@lru_cache(maxsize=4096)
def read_clauses(text: str, size: int) -> tuple[Clause, ...]:
    """The clauses of a message on a board of `size` reviewers, in order."""
    read = []
    subject: list[Mention] = []  # the names in the previous clause
    subject_asked = False  # whether it asked about them
    listing = False  # whether this is a line below "Please tell me your scores for:"
    for clause in _clauses(text):
        asks, mentions = _asks(clause), _included(clause, find_mentions(clause, size))
        pairs: tuple[Pair, ...] = ()
        if _suggests(clause):
            subject, listing = [], False
        else:
            listing = listing and bool(mentions)
            for_scores = (listing or asks) and not _states(clause)
            if for_scores:
                mentions = _completed(clause, mentions, subject, subject_asked)
                pairs = tuple(named_pairs(mentions, clause))
            listing = for_scores and (listing or clause.endswith(":"))
            subject, subject_asked = mentions, for_scores
        read.append(Clause(clause, asks, pairs))
    return tuple(read)


@lru_cache(maxsize=4096)
def _clauses(text: str) -> tuple[str, ...]:
    """The clauses of a message: its sentences, cut where a question begins inside one."""
    text = re.sub(r"[^\S\n]+", " ", text)
    return tuple(clause for sentence in _SENTENCE_END.split(text) for clause in _cut(sentence) if clause)


def _cut(sentence: str) -> Iterator[str]:
    start = 0
    for opening in _OPENS.finditer(sentence):
        head = sentence[start : opening.start()].rstrip()
        # Without a question mark, "I know what is best" is not a question.
        cuts = "?" in sentence or re.search(r"(?:[-,:\u2013\u2014]|\b(?:and|but|so))$", head)
        if cuts and re.search(r"\w", head) and not _TOPIC.match(head):
            yield head
            start = opening.start()
    yield sentence[start:].strip()


def _asks(clause: str) -> bool:
    if "?" in clause or _BEGINS.match(clause) or re.search(r"\bplease\W*$", clause, re.IGNORECASE):
        return True
    opening = _OPENS.search(clause)
    return opening is not None and (not re.search(r"\w", clause[: opening.start()]) or bool(_TOPIC.match(clause)))


def _suggests(clause: str) -> bool:
    """Whether a clause suggests an assignment rather than asking for scores."""
    if _SEEKS_APPROVAL.search(clause):
        return True
    suggestion, score = _SUGGESTS.search(clause), _SCORE.search(clause)
    # "What score would Ava get if we put her on BLEU?" still asks for a score.
    return suggestion is not None and (score is None or suggestion.start() < score.start())


def _states(clause: str) -> bool:
    return bool(_STATES.match(clause)) and not _OPENS.search(clause)


def _runs(mentions: list[Mention]) -> list[list[Mention]]:
    """Consecutive mentions of the same kind, grouped."""
    return [list(run) for _, run in groupby(mentions, key=lambda mention: mention.kind)]


def _included(clause: str, mentions: list[Mention]) -> list[Mention]:
    """The mentions without those that the clause excludes ("besides Ava")."""
    runs = _runs(mentions)
    return [mention for run in runs if not _EXCLUDES.search(clause[: run[0].start]) for mention in run]


def _completed(clause: str, mentions: list[Mention], subject: list[Mention], subject_asked: bool) -> list[Mention]:
    """The mentions of a clause that asks, with the names that an echo or a follow-up takes from the clause before."""
    rest, end = [], 0
    for mention in mentions:
        rest.append(clause[end : mention.start])
        end = mention.end
    words = set(re.findall(r"[a-z]+", " ".join([*rest, clause[end:]]).lower()))
    if not mentions:
        # After a list of pairs, "and you?" asks for another list.
        echoes = len(subject) == 2 and words & {"you", "your", "yours"} and words <= _ECHO_WORDS
        return subject if echoes else []
    kinds = {mention.kind for mention in mentions}
    if len(kinds) == 1 and subject_asked and words <= _FOLLOW_UP_WORDS:
        others = [run for run in _runs(subject) if run[0].kind not in kinds]
        return [*others[-1], *mentions] if others else mentions
    return mentions


def named_pairs(mentions: list[Mention], clause: str) -> Iterator[Pair]:
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
