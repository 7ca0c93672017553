"""Questions in their messages, to fit the classifier of `slim_rl.analysis.kinds` to: labelled ones, and made ones."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from benchmarks.questions import LABELS, read_labelled
from slim_rl.analysis.clauses import asking_clauses
from slim_rl.analysis.kinds import KINDS, Feature, Kind, context, features
from slim_rl.analysis.questions import NAMES
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS

DEVELOPMENT = tuple(sorted(LABELS.glob("development*.jsonl")))
WRITTEN = LABELS / "written"
DRAWN, PRONOUNS = 10, 0.15
"""How many questions are drawn from each pattern, and the chance of a pronoun where it names one reviewer."""
_WORD = re.compile(r"[A-Za-z']+")
_LONGEST = 200
"""Characters of a clause that is made of others."""


class Asked(NamedTuple):
    """The clause `text[start:end]`, which asks, with what was said before it."""

    turns: Sequence[str]
    """Those before the message, the last one first."""
    text: str
    start: int
    end: int
    previous: Kind | None = None
    """The kind of the question before it in the same message."""

    @property
    def clause(self) -> str:
        return self.text[self.start : self.end]


Labelled = tuple[Asked, int]
"""A question and the place of its kind in KINDS."""


def read(question: Asked, alone: bool = False) -> list[Feature]:
    """What the small classifier reads of a question, perhaps without the turns before."""
    known = None if alone else context(question.turns, NAMES)
    names = NAMES(question.text)
    return features(question.text, question.start, question.end, names, known, question.previous)


def labelled(messages: Iterable[dict]) -> Iterator[Labelled]:
    """Each question of labelled messages."""
    for message in messages:
        text = message["text"]
        clauses = list(asking_clauses(text, NAMES))
        after, previous = 0, None
        for question in message["questions"]:
            start = text.index(question["text"], after)
            end = after = start + len(question["text"])
            found = max(clauses, key=lambda c: min(c[1], end) - max(c[0], start), default=(0, 0))
            if min(found[1], end) > max(found[0], start):
                start, end = found
            yield Asked(message["turns"][:3], text, start, end, previous), KINDS.index(question["kind"])
            previous = question["kind"]


def people() -> list[Labelled]:
    """The questions of the development games."""
    return [question for path in DEVELOPMENT for question in labelled(read_labelled(path))]


def written() -> list[Labelled]:
    """What was written in dialogues and for places of the development games, and what patterns say."""
    questions = [q for path in sorted(WRITTEN.glob("*.jsonl")) for q in labelled(read_labelled(path))]
    random = Random(0)
    for line in (WRITTEN / "patterns.txt").read_text(encoding="utf-8").splitlines():
        kind, pattern = line.split(": ", 1)
        for _ in range(DRAWN):
            # What decides stands in it, or is a pronoun: any turns will do.
            text, (before, _) = drawn(pattern, random), random.choice(questions)
            questions.append((Asked(before.turns, text, 0, len(text)), KINDS.index(kind)))
    return questions


def drawn(pattern: str, random: Random) -> str:
    """A question of a pattern, in which (a|b) is a choice, {S} and {R} a reviewer as subject and as object, {P} a paper."""
    while choice := re.search(r"\(([^()]*)\)", pattern):
        pattern = pattern[: choice.start()] + random.choice(choice[1].split("|")) + pattern[choice.end() :]
    if len(re.findall("{[SR]}", pattern)) == 1 and random.random() < PRONOUNS:
        pattern = pattern.replace("{S}'s", random.choice(("his", "her")))
        pattern = pattern.replace("{S}", random.choice(("he", "she"))).replace(
            "{R}", random.choice(("him", "her"))
        )
    for reviewer in random.sample(REVIEWERS, len(REVIEWERS)):
        name = reviewer if random.random() < 0.2 else reviewer.split()[0]
        pattern = re.sub("{[SR]}", name, pattern, count=1)
    for paper in random.sample(SHORT_PAPERS, len(SHORT_PAPERS)):
        pattern = pattern.replace("{P}", paper, 1)
    text = " ".join(pattern.split())
    return text if text.endswith("?") or random.random() < 0.4 else f"{text}?"


def varied(
    questions: Sequence[Asked], similar: Callable[[str], Sequence[str]], count: int
) -> Iterator[Asked]:
    """Variations of questions, for a teacher to label: a variation may mean something else, or nothing.

    Like the augmentation of Tang et al. 2019 ("Distilling Task-Specific Knowledge from BERT into Simple Neural
    Networks", arXiv 1903.12136) and of TinyBERT (Jiao et al. 2020, arXiv 1909.10351), with clauses that go on as
    another one that has the same word, and with what was said before another one.

    Args:
        similar: words that may stand for a word.
    """
    random = Random(0)
    clauses_with: dict[str, list[tuple[str, int]]] = {}
    for question in questions:
        for word in _WORD.finditer(question.clause):
            clauses_with.setdefault(word[0].lower(), []).append((question.clause, word.end()))

    def spliced(clause: str) -> str:
        word = random.choice(list(_WORD.finditer(clause)))
        other, end = random.choice(clauses_with.get(word[0].lower(), [(clause, word.end())]))
        return clause[: word.end()] + other[end:]

    def reworded(clause: str) -> str:
        names = NAMES(clause)
        for word in reversed(list(_WORD.finditer(clause))):
            named = any(name.start < word.end() and word.start() < name.end for name in names)
            if not named and random.random() < 0.25 and (others := similar(word[0].lower())):
                clause = clause[: word.start()] + random.choice(others) + clause[word.end() :]
        return clause

    def shortened(clause: str) -> str:
        word = random.choice(list(_WORD.finditer(clause)))
        return clause[: word.start()] + clause[word.end() :]

    while count:
        question = random.choice(questions)
        clause, before = question.clause, question.text[: question.start]
        turns, previous = question.turns, question.previous
        for change in random.choices(
            (spliced, reworded, shortened), (5, 5, 1), k=random.choice((0, 1, 1, 1, 2))
        ):
            clause = change(clause) if _WORD.search(clause) else clause
        if random.random() < 0.35:
            turns = random.choice(questions).turns
        if random.random() < 0.35:
            other = random.choice(questions)
            before, previous = random.choice((("", None), (other.text[: other.start], other.previous)))
        if clause.strip() and len(clause) <= _LONGEST:
            text = before + clause
            yield Asked(turns, text, len(before), len(text), previous)
            count -= 1
