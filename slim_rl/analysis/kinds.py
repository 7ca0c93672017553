"""Which of six kinds a question is of: a small classifier over words and classes of words.

The sum of an embedding for each n-gram, one hidden layer, softmax: fastText (Joulin et al. 2017, "Bag of Tricks
for Efficient Text Classification", arXiv 1607.01759) with a ReLU, and with features of what was said before.
The kinds are defined in `tests/analysis/questions/GUIDELINE.md`; `python -m benchmarks.fit_kinds` fits the
weights in `kinds.npz` to questions that are labelled by it, and tells how well they carry over.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from slim_rl.analysis.clauses import FindNames, sentences

Kind = Literal["specific", "reviewer", "paper", "general", "proposal", "social"]
KINDS: tuple[Kind, ...] = ("specific", "reviewer", "paper", "general", "proposal", "social")

Feature = tuple[str, ...]

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
    "TELL": """tell show share report describe explain let lmk remind provide need want wondering curious wonder
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
    "MAYBE": "maybe perhaps possibly what if",
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

_TOKEN = re.compile(r"<reviewer>|<paper>|[a-zA-Z]+|\d+|\?")
_APOSTROPHE = re.compile("['\u2019]")
_TURN = re.compile(r"\s*\[(\w+)\]\s*")


def tag(turn: str) -> str:
    """ "message", or what else a turn is by the tag that it begins with."""
    found = _TURN.match(turn)
    return found[1].lower() if found else "message"


def untagged(turn: str) -> str:
    found = _TURN.match(turn)
    return turn[found.end() :] if found else turn


def features(
    text: str, start: int, end: int, turns: Sequence[str] | None, find_names: FindNames
) -> tuple[list[Feature], list[Feature]]:
    """What the model reads of the clause `text[start:end]`: of its words, and of what was said before it.

    Args:
        turns: those before the message, the last one first; None if they are not known.
    """
    words = ["<", *_tokens(text[start:end], find_names), ">"]
    classes = ["<", *filter(None, map(_CLASS.get, words)), ">"]
    grams = chain(
        zip(words),
        pairwise(words),
        zip(classes),
        pairwise(classes),
        zip(classes, classes[1:], classes[2:], strict=False),
    )
    return list(grams), list(_context(words, text[:start], turns, find_names))


def _context(
    words: Sequence[str], said: str, turns: Sequence[str] | None, find_names: FindNames
) -> Iterator[Feature]:
    names = _named(words)
    pronouns = ("h" * (not _PERSONS.isdisjoint(words)) + "i" * (not _THINGS.isdisjoint(words))) or "-"
    here = _topic(said, find_names)
    yield "=names", names
    yield "=said", names, here.last
    if here.names:
        topic = here.names + "_here"
    else:
        topic = next((t.names for t in (_topic(turn, find_names) for turn in turns or ()) if t.names), "")
    if topic or turns is not None:
        yield "=topic", topic
        yield "=topic", names, topic
        yield "=topic", names, pronouns, topic.removesuffix("_here")
    if _ECHO.issuperset(words):
        yield "=echo", here.last
        yield "=echo", topic
    if turns is not None:
        before = tag(turns[0]) if turns else "start"
        yield "=after", before
        yield "=after", names, before, here.last
        yield "=early", str(len(turns) < 2)


def _tokens(text: str, find_names: FindNames) -> list[str]:
    """The words of a text in lower case; names as what they name, several in a row as one."""
    for name in reversed(find_names(text)):
        text = f"{text[: name.start]} <{name.kind}> {text[name.end :]}"
    found: list[str] = []
    for token in _TOKEN.findall(_APOSTROPHE.sub("", text)):
        if token != _REVIEWER and token != _PAPER:
            found.append(_NUMBER if token.isdigit() else token.lower())
        elif found[-2:] in ([token, "and"], [token, "or"]):
            found.pop()
        elif found[-1:] != [token]:
            found.append(token)
    return found


def _named(words: Iterable[str]) -> str:
    """Whether reviewers, papers or both are named."""
    return "R" * (_REVIEWER in words) + "P" * (_PAPER in words)


class _Topic(NamedTuple):
    names: str
    """What the last sentence with a name in it names."""
    last: str
    """What the last sentence names; "none" if there is no sentence."""


@lru_cache(maxsize=65536)
def _topic(turn: str, find_names: FindNames) -> _Topic:
    """What a turn, or a part of it, was about."""
    if tag(turn) != "message":
        return _Topic("RP", "RP")
    text = untagged(turn)
    names = [_named(_tokens(text[begin:end], find_names)) for begin, _, end, _ in sentences(text)]
    return _Topic(next(filter(None, reversed(names)), ""), names[-1] if names else "none")


class Model:
    """The weights of a fit.

    Args:
        row: for each feature its row in `embeddings`.
        embeddings: (features, dimensions).
        hidden_bias: (dimensions,).
        output: (kinds, dimensions).
        output_bias: (kinds,).
    """

    def __init__(
        self,
        row: dict[Feature, int],
        embeddings: np.ndarray,
        hidden_bias: np.ndarray,
        output: np.ndarray,
        output_bias: np.ndarray,
    ) -> None:
        self._row, self._embeddings = row, embeddings
        self._hidden_bias, self._output, self._output_bias = hidden_bias, output, output_bias

    def kind(self, found: Iterable[Feature]) -> Kind:
        """The likeliest kind of a question with these features; those that the fit did not know tell nothing."""
        rows = [row for row in map(self._row.get, found) if row is not None]
        hidden = self._embeddings[rows].sum(0) / max(len(rows), 1) ** 0.5 + self._hidden_bias
        return KINDS[int((self._output @ np.maximum(hidden, 0) + self._output_bias).argmax())]

    def save(self, path: Path) -> None:
        names = "\n".join(map(" ".join, self._row)).encode()
        np.savez_compressed(
            path,
            features=np.frombuffer(names, np.uint8),
            embeddings=self._embeddings.astype(np.float16),
            hidden_bias=self._hidden_bias,
            output=self._output,
            output_bias=self._output_bias,
        )

    @classmethod
    def load(cls, path: Path) -> "Model":
        with np.load(path) as file:
            names = file["features"].tobytes().decode().split("\n")
            row = {tuple(name.split(" ")): i for i, name in enumerate(names)}
            embeddings = file["embeddings"].astype(np.float32)
            return cls(row, embeddings, file["hidden_bias"], file["output"], file["output_bias"])


@lru_cache(maxsize=1)
def _fitted() -> Model:
    return Model.load(WEIGHTS)


def kind_of(text: str, start: int, end: int, turns: Sequence[str] | None, find_names: FindNames) -> Kind:
    """The kind of the question that `text[start:end]` asks; arguments as of `features`."""
    words, context = features(text, start, end, turns, find_names)
    return _fitted().kind(words + context)
