"""The names of reviewers and papers, and the ways in which people write them.

Names are compared with the full lists for every size of board: on a board of three, "GLUE" is a name that is not in
play, not a misspelt "BLEU".
"""

import html
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Literal, NamedTuple

from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA

Kind = Literal["reviewer", "paper"]

REVIEWERS = (
    "Ava Li", "Daniel Nguyen", "Sofia Patel", "Andrei Petrov", "Morgan Reed", "Joseph Santos", "Ethan Smith",
    "Noah Wilson",
)  # fmt: skip
PAPERS = (
    "BLEU: a Method for Automatic Evaluation of MT",
    "Electra: Pre-training Text Encoders as Discriminators",
    "GloVe: Global Vectors for Word Representation",
    "GLUE: A Multi-Task Benchmark and Analysis Platform for NLU",
    "LLaMA: Open and Efficient Foundation Language Models",
    "RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    "QuAC: Question Answering in Context",
    "SWAG: An Adversarial Dataset for Commonsense Inference",
)
SHORT_PAPERS = tuple(title.partition(":")[0] for title in PAPERS)

_SHOWN = {"reviewer": REVIEWERS, "paper": SHORT_PAPERS}
_FIRST = {name.split()[0].lower(): i for i, name in enumerate(REVIEWERS)}
LAST_NAMES = {name.split()[1].lower(): i for i, name in enumerate(REVIEWERS)}
_REVIEWER_WORDS = (
    _FIRST
    | LAST_NAMES
    | {name.replace(" ", "").lower(): i for i, name in enumerate(REVIEWERS)}
    | {"sophia": _FIRST["sofia"]}  # the more common spelling; two edits away, so not covered by typos
)
_PAPER_WORDS = {name.lower(): i for i, name in enumerate(SHORT_PAPERS)}
_NAMES: dict[Kind, dict[str, int]] = {"reviewer": _REVIEWER_WORDS, "paper": _PAPER_WORDS}
_SUBTITLES = tuple(title.partition(":")[2].strip().lower() for title in PAPERS)
_SUBTITLE_PATTERNS = tuple(
    re.compile(r"\W+" + r"\W+".join(re.findall(r"\w+", subtitle)), re.IGNORECASE) for subtitle in _SUBTITLES
)

_WORD = re.compile(r"[^\W\d_]+")
_ASIDE = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_POSSESSIVE = re.compile(r"['\u2019]s?\b")
_FILLER = {"the", "paper", "reviewer"}

# English words that are one edit away from a name of five letters or more.
_ORDINARY = frozenset({"clove", "ethane", "globe", "grove", "organ", "panel", "pastel", "petrol", "smite"})


class UnknownName(ValueError):
    """A text that is not a name in play, or is ambiguous; the message lists the choices."""


class InvalidProposal(ValueError):
    """A proposal that does not give each reviewer one paper; the message says which line is wrong and why."""


class Mention(NamedTuple):
    """A name in a text: `text[start:end]`, without a possessive 's."""

    kind: Kind
    index: int  # type: ignore[assignment]  # hides tuple.index
    start: int
    end: int


def resolve_reviewer(text: str, size: int) -> int:
    """The reviewer that `text` names: first name, last name or both, with small typos.

    Raises:
        UnknownName: it names no reviewer in play, or several.
    """
    per_word = [_closest(word, "reviewer") for word in _words(text)]
    candidates: frozenset[int] = frozenset()
    if per_word and all(per_word):
        # "Andrei Patel" matches no full name: Andrei Petrov and Sofia Patel are candidates.
        candidates = frozenset.intersection(*per_word) or frozenset.union(*per_word)
    return _only_one(candidates, text, "reviewer", size)


def resolve_paper(text: str, size: int) -> int:
    """The paper that `text` names: its short name, its title or the part of the title after the colon.

    Raises:
        UnknownName: it names no paper in play, or several.
    """
    words = _words(text)
    rest = " ".join(words[1:])
    candidates = _closest(words[0], "paper") if words else frozenset()
    if rest and candidates:
        candidates = frozenset(i for i in candidates if fuzz.partial_ratio(rest, _SUBTITLES[i]) >= 85)
    if not candidates and len(words) > 2:
        best = process.extractOne(" ".join(words), _SUBTITLES, scorer=fuzz.ratio, score_cutoff=85)
        candidates = frozenset([best[2]]) if best else candidates
    return _only_one(candidates, text, "paper", size)


def find_mentions(text: str, size: int) -> list[Mention]:
    """All names in play that `text` mentions, in order.

    Unlike `resolve_*` it reads free text, so it allows fewer typos: one edit, in words of five letters or more.
    """
    mentions: list[Mention] = []
    matches = list(_WORD.finditer(text))
    position = 0  # no mention starts before it, so the words of a title are read once
    for number, here in enumerate(matches, start=1):
        word = here[0].lower()
        mention = _mentioned(word)
        if mention is None or here.start() < position:
            continue
        kind, index = mention
        following = matches[number] if number < len(matches) else None
        position = here.end()
        if kind == "paper":
            title = _SUBTITLE_PATTERNS[index].match(text, position)
            position = title.end() if title else position
        elif following and text[position : following.start()] == " " and LAST_NAMES.get(word) != index:
            # A first name. A last name directly after it belongs to it, or makes it ambiguous.
            last = _mentioned(following.group().lower())
            if last and last[0] == "reviewer" and _is_last_name(following.group().lower(), last[1]):
                position = following.end()
                if last[1] != index:
                    continue
        if index < size:
            mentions.append(Mention(kind, index, here.start(), position))
    return mentions


def parse_proposal(text: str, size: int) -> tuple[int, ...]:
    """The assignment in a proposal: `assignment[reviewer]` is a paper.

    Args:
        text: the text after `[propose]`: optionally a header "Proposal:", then a line `Paper: Reviewer` for each
            paper; lines end in a newline or `<br/>`.

    Raises:
        InvalidProposal: it does not give each reviewer one paper.
    """
    reviewer_of: dict[int, int] = {}
    for number, line in enumerate(_proposal_lines(text), start=1):
        try:
            paper, reviewer = _read_line(line, size)
        except UnknownName as error:
            raise InvalidProposal(f"Line {number} of the proposal: {error}") from None
        if paper in reviewer_of:
            raise _twice(number, paper, SHORT_PAPERS[:size], "reviewer")
        if reviewer in reviewer_of.values():
            raise _twice(number, reviewer, REVIEWERS[:size], "paper")
        reviewer_of[paper] = reviewer
    missing = [SHORT_PAPERS[paper] for paper in range(size) if paper not in reviewer_of]
    if missing:
        raise InvalidProposal(
            f"The proposal ends after line {len(reviewer_of)} of {size}: "
            f'a line "Paper: Reviewer" is missing for {_listing(missing)}.'
        )
    paper_of = {reviewer: paper for paper, reviewer in reviewer_of.items()}
    return tuple(paper_of[reviewer] for reviewer in range(size))


def _twice(line: int, index: int, names: Sequence[str], gets: Kind) -> InvalidProposal:
    return InvalidProposal(
        f"Line {line} of the proposal names {names[index]} a second time; "
        f"each of {_listing(names)} gets exactly one {gets}."
    )


def format_proposal(assignment: Sequence[int]) -> str:
    """The proposal, in the order of the papers, that `parse_proposal` reads back as `assignment`."""
    by_paper = sorted((paper, reviewer) for reviewer, paper in enumerate(assignment))
    return "\n".join(["Proposal:", *(f"{SHORT_PAPERS[p]}: {REVIEWERS[r]}" for p, r in by_paper)])


def _words(text: str) -> list[str]:
    """The words of a name, in lower case, without possessives, asides in brackets, digits and signs."""
    bare = _POSSESSIVE.sub("", _ASIDE.sub(" ", text)).replace("_", " ").lower()
    return [word for word in _WORD.findall(bare) if word not in _FILLER]


@lru_cache(maxsize=8192)
def _closest(word: str, kind: Kind) -> frozenset[int]:
    """The names that `word` may mean: an exact match, otherwise all names at the smallest edit distance."""
    names = _NAMES[kind]
    if word in names:
        return frozenset([names[word]])
    if len(word) < 4:  # too many names are one edit away from a short word
        return frozenset()
    near = process.extract(word, names.keys(), scorer=OSA.distance, score_cutoff=1 if len(word) < 6 else 2, limit=None)
    least = min((distance for _, distance, _ in near), default=0)
    return frozenset(names[name] for name, distance, _ in near if distance == least)


@lru_cache(maxsize=65536)
def _mentioned(word: str) -> tuple[Kind, int] | None:
    """The name that a lower-case word of a free text means, if any."""
    for kind, names in _NAMES.items():
        if word in names:
            return kind, names[word]
        if word.endswith("s") and word[:-1] in names:  # "Andreis score"
            return kind, names[word[:-1]]
    if len(word) < 5 or word in _ORDINARY:
        return None
    near = {
        (kind, index): len(name)
        for kind, names in _NAMES.items()
        for name, index in names.items()
        if OSA.distance(word, name, score_cutoff=1) <= 1
    }
    # "gluve" is as close to GLUE as to GloVe; "creed" is close to Reed, but so are many words to a short name.
    return next(iter(near)) if len(near) == 1 and min(near.values()) >= 5 else None


def _is_last_name(word: str, reviewer: int) -> bool:
    """Whether a word that means `reviewer` is the last name rather than the first."""
    first, last = REVIEWERS[reviewer].lower().split()
    return OSA.distance(word, last) < OSA.distance(word, first)


def _only_one(candidates: frozenset[int], text: str, kind: Kind, size: int) -> int:
    full_names = _SHOWN[kind]
    choices = f"choose one of {_listing(full_names[:size], 'or')}."
    quoted = f'"{_shortened(text)}"'
    if len(candidates) > 1:
        meant = _listing((full_names[i] for i in sorted(candidates)), "or")
        raise UnknownName(f"{quoted} could be the {kind} {meant}; {choices}")
    if candidates and min(candidates) < size:
        return min(candidates)
    raise UnknownName(f"{quoted} is not a {kind} in this game; {choices}")


def _shortened(text: str) -> str:
    return textwrap.shorten(text, 80, placeholder="...")


def _listing(names: Iterable[str], conjunction: str = "and") -> str:
    *head, last = names
    return f"{', '.join(head)} {conjunction} {last}" if head else last


def _proposal_lines(text: str) -> list[str]:
    """The lines of a proposal that have words, without its header."""
    unescaped = html.unescape(re.sub(r"<br\s*/?>", "\n", text, flags=re.IGNORECASE))
    headless = re.sub(r"^\W*proposal\b\W*", "", unescaped, flags=re.IGNORECASE)
    return [line.strip() for line in headless.splitlines() if re.search(r"\w", line)]


def _read_line(line: str, size: int) -> tuple[int, int]:
    """The paper and the reviewer of a line of a proposal, in either order. Raises UnknownName."""
    separators = list(re.finditer(r":|->|=|\u2192|\s[-\u2013\u2014]+\s", line))
    if not separators:
        raise UnknownName(f'"{_shortened(line)}" does not read "Paper: Reviewer".')
    # From the right, because a paper's title contains a colon, too; a name contains only a few separators.
    sides = [(line[: sign.start()], line[sign.end() :]) for sign in separators[:-5:-1]]
    for paper, reviewer in sides + [side[::-1] for side in sides]:
        with suppress(UnknownName):
            return resolve_paper(paper, size), resolve_reviewer(reviewer, size)
    paper, reviewer = sides[0]
    return resolve_paper(paper, size), resolve_reviewer(reviewer, size)  # raises for the side that is wrong
