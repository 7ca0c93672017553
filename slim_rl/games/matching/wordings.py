"""How scripted players ask and answer: several wordings of each, some of them kept for evaluation alone."""

import random
from typing import Literal

from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS

QUESTIONS = (
    "What is {reviewer}'s score for {paper}?",
    "{reviewer} on {paper}?",
    "How good is {reviewer} on {paper}?",
    "And {paper} for {reviewer}?",
    "Please tell me {reviewer}'s score on {paper}.",
    "What does {reviewer} get for {paper}?",
)
EXACT_QUESTIONS = (
    "What exactly is {reviewer}'s score for {paper}?",
    "Exactly how good is {reviewer} on {paper}?",
    "Tell me exactly what {reviewer} gets for {paper}.",
)
"""About a score that the speaker knows roughly."""
ANSWERS = (
    "{reviewer}'s {paper} is {number}.",
    "{reviewer} - {paper}: {number}.",
    "{reviewer} on {paper}: {number}.",
    "{reviewer} for {paper} gets {number}.",
)
UNKNOWN = ("I do not know {reviewer}'s score for {paper}.", "I do not know.", "I do not see that score.")
VAGUE = ("Hard to say in general.", "I would rather not say.")

# The words of these occur above, the sentences do not.
HELD_OUT_ANSWERS = (
    "{reviewer} for {paper}: {number}.",
    "I see {reviewer} on {paper} gets {number}.",
    "{reviewer}'s {paper}: {number}.",
    "I get {reviewer} on {paper}: {number}.",
)
REORDERED_ANSWERS = (
    "{number} is {reviewer}'s score for {paper}.",
    "{paper} for {reviewer} is {number}.",
    "I see {number}.",
)
"""All others name reviewer, paper and number in this order."""
HELD_OUT_UNKNOWN = ("I do not see {reviewer}'s score on {paper}.", "I do not know that score.")
Wordings = Literal["usual", "held-out", "reordered"]
_ANSWERS: dict[Wordings, tuple[str, ...]] = {
    "usual": ANSWERS, "held-out": HELD_OUT_ANSWERS, "reordered": REORDERED_ANSWERS,
}  # fmt: skip


def question(reviewer: int, paper: int, rng: random.Random | None = None, exactly: bool = False) -> str:
    """A turn that asks for one score, with `exactly` one that the speaker knows roughly; the first wording without `rng`."""
    wordings = EXACT_QUESTIONS if exactly else QUESTIONS
    wording = rng.choice(wordings) if rng else wordings[0]
    return "[message] " + wording.format(reviewer=REVIEWERS[reviewer], paper=SHORT_PAPERS[paper])


def answer(
    reviewer: int,
    paper: int,
    number: int,
    rng: random.Random | None = None,
    wordings: Wordings = "usual",
    naming: bool = False,
) -> str:
    """A shy answer to a question about one pair; the first wording without `rng`.

    Args:
        number: -1 for a score that the speaker does not see.
        naming: in a wording that names the pair.
    """
    unknown = UNKNOWN if wordings == "usual" else HELD_OUT_UNKNOWN
    some: tuple[str, ...] = _ANSWERS[wordings] if number >= 0 else unknown
    if naming:
        some = tuple(wording for wording in some if "{reviewer}" in wording)
    wording = rng.choice(some) if rng else some[0]
    return wording.format(reviewer=REVIEWERS[reviewer], paper=SHORT_PAPERS[paper], number=number)
