"""Which of six kinds a question is of: a small classifier over words and classes of words.

The sum of an embedding for each n-gram, one hidden layer, softmax: fastText (Joulin et al. 2017, "Bag of Tricks
for Efficient Text Classification", arXiv 1607.01759) with a ReLU, and with features of what was said before.
The kinds are defined in `tests/analysis/questions/GUIDELINE.md`; `python -m benchmarks.fit_kinds` fits the
weights in `kinds.npz` to questions that are labelled by it and to what a larger model says of variations of them.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from slim_rl.analysis.clauses import FindNames, sentences
from slim_rl.games.matching.names import Mention

Kind = Literal["specific", "reviewer", "paper", "general", "proposal", "social"]
KINDS: tuple[Kind, ...] = ("specific", "reviewer", "paper", "general", "proposal", "social")

Feature = str | tuple[str, ...]
"""A word, or several of them in a row."""

WEIGHTS = Path(__file__).with_name("kinds.npz")

# Words that ask alike; what a word is in the first class that has it. They let the model read a wording that
# nobody used in what it was fitted to.
_CLASSES = {
    "PUT": """put puts putting place placed places placing assign assigned assigning assigns assignment move moved
        moving lock locked locking leave leaving keep keeping slot slotted slotting give giving given gave take takes
        taking took switch switching swap swapping swapped replace replacing shift bump drop stick use using go goes
        going try trying stay settle pair paired pairing set bring pick picking picked choose choosing select
        selecting toss commit trade exchange flip rotate reassign shuffle land cover covers handle handles send""",
    "SCORE": """score scores scored scoring value values rating ratings rate rated rank ranks ranked ranking number
        numbers points point grade grades shade shades shaded color colour colors colours colored coloured green
        greens greenish red reds dark darker darkest light lighter lightest bright brighter brightest pale medium
        high higher highest low lower lowest percent percentage blank unknown empty square squares cell cells box
        boxes figure figures info information data deep""",
    "GOOD": """good better best great strong stronger strongest decent solid bad worse worst weak weaker weakest
        perfect ideal fit fits match matches suited suitable qualified capable experienced expert expertise knowledge
        knowledgeable familiar skilled skill skills top terrible awful poor ok okay well amazing excellent experience
        useful competent background strength strengths specialty""",
    "KNOW": """know knows have has had got see sees seeing show shows showing shown look looks looking say says get
        getting hold holding""",
    "THINK": """think thinks thinking thought thoughts feel feels feeling opinion opinions view views reckon believe
        guess idea ideas suggestion suggestions suggest recommend recommendation recommendations input advice prefer
        preference preferences rather""",
    "AGREE": """fine alright work works agree agreed agreeable happy comfortable cool acceptable fair reasonable mind
        objection objections problem problems issue issues against sense sound sounds down willing open approve
        satisfied""",
    "PROPOSE": """proposal proposals propose proposed proposing submit submitted submitting accept accepted accepting
        reject rejected rejecting deal final finalize finalise finalized offer offered sending resend resubmit lineup
        arrangement arrangements list plan revise revised tweak change changes changed counter counteroffer confirm
        confirmed assignments""",
    "GAME": """play played playing game games task tasks hit before hi hello hey name time bonus mturk turk turker
        bot human real instructions rules tutorial ready start begin started round doing today first new ever study
        survey""",
    "TELL": """tell share report describe explain let lmk remind provide need want wondering curious wonder
        hear""",
    "AUX": """is are was were do does did can could would will should shall may might isnt arent dont doesnt didnt
        cant couldnt wouldnt wont shouldnt havent hasnt""",
    "THEM": """him his her hers he she hes shes they them their guy guys person reviewer reviewers people man
        woman""",
    "IT": "it that this those these one ones there here thats paper papers topic",
    "WHO": "who whom whos anyone anybody someone somebody",
    "WHAT": "what whats which wheres where how hows when why any anything",
    "ME": "i me my mine ill id im ive",
    "WE": "we us our lets weve",
    "YOU": "you u your yours ya ur youre youd youve",
    "ELSE": "else other another different instead alternative left remaining rest available free",
    "MAYBE": "maybe perhaps possibly if",
    "FOR": "for on in at with to of",
    "THAN": "than compared versus vs over or between",
}
_CLASS = {word: name for name, words in reversed(_CLASSES.items()) for word in words.split()}
_REVIEWER, _PAPER, _NUMBER, _MARK = "<reviewer>", "<paper>", "<number>", "?"
_CLASS |= {token: token for token in (_REVIEWER, _PAPER, _NUMBER, _MARK)}
_PERSONS = frozenset(re.findall(r"\w+", "him his her hers he she hes shes they them their"))
_THINGS = frozenset(re.findall(r"\w+", "that this it there those these one ones here"))

# "What about you?" asks what the sentence before it was about.
_ECHO = frozenset(
    re.findall(
        r"\S+",
        """< > ? what whats how hows about and or you u yours yourself your side end board do does can are is it that
        same for on with to the have see show get got there""",
    )
)

_TOKEN = re.compile(r"<reviewer>|<paper>|[a-z]+|\d+|\?")
_TURN = re.compile(r"\s*\[(\w+)\]\s*")


def tag(turn: str) -> str:
    """ "message", or what else a turn is by the tag that it begins with."""
    found = _TURN.match(turn)
    return found[1].lower() if found else "message"


def untagged(turn: str) -> str:
    found = _TURN.match(turn)
    return turn[found.end() :] if found else turn


class Context(NamedTuple):
    """What the turns before a message tell of its questions."""

    topic: str
    """Whether the last of them that names something names reviewers (R), papers (P) or both (RP)."""
    after: str
    """The tag of the turn before."""
    early: bool
    """Whether at most one turn stands before it."""


def context(turns: Sequence[str], find_names: FindNames) -> Context:
    """The context of a message after `turns`, the last one first; those further back than three do not count."""
    named = next(filter(None, (named_last(turn, find_names) for turn in turns[:3])), "")
    return Context(named, tag(turns[0]) if turns else "start", len(turns) < 2)


@lru_cache(maxsize=65536)
def named_last(turn: str, find_names: FindNames) -> str:
    """What the last sentence of a turn that names something names; a proposal and what answers it: both."""
    if tag(turn) != "message":
        return "RP"
    text = untagged(turn)
    return _names_in(text, find_names(text))[0]


def _names_in(text: str, names: Sequence[Mention]) -> tuple[str, str, str]:
    """What the last sentence with a name in it names, what the last sentence does, and how often up to twice."""
    last, named, several = "none", "", "none"
    for begin, _, end, _ in sentences(text):
        kinds = [name.kind for name in names if begin <= name.start < end]
        reviewers, papers = kinds.count("reviewer"), kinds.count("paper")
        last = "R" * (reviewers > 0) + "P" * (papers > 0)
        several = "R" * min(reviewers, 2) + "P" * min(papers, 2)
        named = last or named
    return named, last, several


def features(
    text: str,
    start: int,
    end: int,
    names: Sequence[Mention],
    known: Context | None,
    previous: Kind | None,
) -> list[Feature]:
    """What the model reads of the clause `text[start:end]`: its words, and what they may point to.

    Args:
        names: those in `text`.
        known: None if the message is read alone.
        previous: the kind of the question before it in the same message.
    """
    words = ["<", *_tokens(text, start, end, names), ">"]
    echo = _ECHO.issuperset(words)
    if echo and (before := [*sentences(text[:start])]):
        words[1:1] = _tokens(text, before[-1][0], start, names)
    classes = ["<", *filter(None, map(_CLASS.get, words)), ">"]
    found: list[Feature] = [*words, *pairwise(words), *classes, *pairwise(classes)]

    named = "R" * (_REVIEWER in words) + "P" * (_PAPER in words)
    pronouns = "h" * (not _PERSONS.isdisjoint(words)) + "i" * (not _THINGS.isdisjoint(words))
    topic, last, several = _names_in(text[:start], names) if start else ("", "none", "none")
    where = "here" if topic else "before"
    if known:
        topic = topic or known.topic
        found += ("=after", known.after), ("=after", named, known.after, last), ("=early", str(known.early))
    found += ("=names", named), ("=said", named, last)
    if topic or known:
        found += (
            ("=topic", topic, where),
            ("=topic", named, topic, where),
            ("=points", named, pronouns, topic),
        )
    if previous:
        length = str(min(len(words), 6))
        found += (
            ("=previous", previous),
            ("=previous", named, previous),
            ("=previous", length, named, previous),
        )
    if echo:
        found += ("=echo", several), ("=echo", topic, "topic")
    return found


def _tokens(text: str, start: int, end: int, names: Sequence[Mention]) -> list[str]:
    """The words of `text[start:end]` in lower case; names as what they name, several in a row as one."""
    clause = text[start:end]
    for name in reversed(names):
        if start <= name.start < end:
            clause = f"{clause[: name.start - start]} <{name.kind}> {clause[name.end - start :]}"
    found: list[str] = []
    for token in _TOKEN.findall(clause.lower().replace("'", "").replace("\u2019", "")):
        if token != _REVIEWER and token != _PAPER:
            found.append(_NUMBER if token.isdigit() else token)
        elif found[-2:] in ([token, "and"], [token, "or"]):
            found.pop()
        elif found[-1:] != [token]:
            found.append(token)
    return found


class Model:
    """The weights of a fit. There are no biases: the marks of a clause's beginning and end are in every sum.

    Args:
        known: the features that have an embedding.
        embeddings: (features, dimensions), float32.
        output: (kinds, dimensions), float32.
    """

    def __init__(self, known: Sequence[Feature], embeddings: np.ndarray, output: np.ndarray) -> None:
        self._row = {feature: row for row, feature in enumerate(known, start=1)}
        self._embeddings = np.pad(embeddings, ((1, 0), (0, 0)))  # so that no row is falsy
        self._output = output

    @property
    def known(self) -> list[Feature]:
        """The features that have an embedding."""
        return [*self._row]

    def kind(self, found: Iterable[Feature]) -> Kind:
        """The likeliest kind of a question with these features; those that the fit did not know tell nothing."""
        rows = [*filter(None, map(self._row.get, found))]
        # Quicker, for so few rows, than embeddings[rows].sum(0) and @.
        total = np.ones(len(rows), np.float32).dot(self._embeddings.take(rows, axis=0))
        return KINDS[int(self._output.dot(np.maximum(total, 0)).argmax())]

    def save(self, path: Path) -> None:
        known = "\n".join(map(_written, self._row)).encode()
        np.savez_compressed(
            path,
            known=np.frombuffer(known, np.uint8),
            embeddings=self._embeddings[1:].astype(np.float16),
            output=self._output,
        )

    @classmethod
    def load(cls, path: Path) -> "Model":
        with np.load(path) as file:
            known = [*map(_read, file["known"].tobytes().decode().split("\n"))]
            return cls(known, file["embeddings"].astype(np.float32), file["output"])


def _written(feature: Feature) -> str:
    return feature if isinstance(feature, str) else " ".join(feature)


def _read(feature: str) -> Feature:
    # A word that stands in many features is held once.
    return tuple(map(sys.intern, feature.split(" "))) if " " in feature else feature


@lru_cache(maxsize=1)
def _fitted() -> Model:
    return Model.load(WEIGHTS)


def kind_of(found: Iterable[Feature]) -> Kind:
    """The kind of the question that has these features."""
    return _fitted().kind(found)
