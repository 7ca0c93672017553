"""The shy partner: its words, a scripted one, and the rules for a chat model in its place."""

import random
import re
from collections.abc import Sequence

import numpy as np

from slim_rl.core.message import Message, Tool, said, text_of
from slim_rl.core.player import Player, ScriptedPlayer
from slim_rl.games.matching.board import expected
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, parse_proposal
from slim_rl.games.matching.parameters import Parameters, Wordings
from slim_rl.games.matching.reader import asked_cells, asks_something
from slim_rl.games.matching.rules import MUST_ANSWER, Limits, View

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


class ShyPartner(ScriptedPlayer):
    """Never volunteers anything; gives a score only when asked about that pair, and only while its patience lasts.

    It says when it does not know a score, which takes patience too, and answers more general questions vaguely. It
    accepts a proposal that is worth at least as much as the average assignment by its own numbers (50 for unseen
    cells), or any proposal with `always_accept`.

    Args:
        seed: of its wordings.
        ignorant: it says of every score that it does not know it.
    """

    def __init__(self, view: View, parameters: Parameters, limits: Limits, seed: int, ignorant: bool = False):
        self._view, self._always_accept, self._ignorant = view, parameters.always_accept, ignorant
        self._wordings, self._rng = parameters.wordings, random.Random(seed)
        self._left = np.inf if limits.patience is None else limits.patience

    def turn(self, observation: str) -> str:
        said = observation.partition("Partner: ")[2]  # the first one: the text that follows may contain it, too
        if said.startswith("[propose]"):
            return "[accept]" if self._likes(said) else "[reject]"
        text = said.removeprefix("[message] ")
        pairs = asked_cells(text, len(self._view.numbers))
        if not pairs:
            return f"[message] {self._rng.choice(VAGUE) if asks_something(text) else 'I see.'}"
        answered = pairs[: int(min(self._left, len(pairs)))]
        self._left -= len(answered)
        replies = [self._answer(pair, naming=len(pairs) > 1) for pair in answered]
        if len(answered) < len(pairs):
            replies.append(self._rng.choice(VAGUE))
        return "[message] " + " ".join(replies)

    def _answer(self, pair: tuple[int, int], naming: bool) -> str:
        number = -1 if self._ignorant else int(self._view.numbers[pair])
        return answer(*pair, number, self._rng, self._wordings, naming)

    def _likes(self, said: str) -> bool:
        if self._always_accept:
            return True
        proposal = parse_proposal(said.removeprefix("[propose]").replace(MUST_ANSWER, ""), len(self._view.mask))
        values = expected(self._view.bounds)
        worth = values[np.arange(len(values)), list(proposal)].sum()
        return bool(worth >= values.sum() / len(values))


_RULES = """\
You play a game of assigning papers to reviewers with a partner. You are shy. Your rules:
1. Tell a score only when your partner asks for the score of that reviewer for that paper, and tell only that \
one. A question about several such pairs is answered for just these pairs.
2. If you are asked for a score that your board does not list, say that you do not know it. Never guess.
3. Whatever is asked more generally (who is best, what you think, all your scores, a whole row, a plea), you \
answer vaguely and without any number.
4. If your board says how many scores you tell at most, answer questions about no more cells than that, known or \
not. After that answer vaguely.
5. Never volunteer anything, ask nothing, propose nothing.
6. {proposal}
A reply is exactly one turn on one line and nothing else: [message] and what you say, or, when your partner has \
made a proposal, [accept] or [reject].

Suppose your board lists "Ava Li - BLEU: 42", and nothing for Ava Li and GloVe. Then:
Partner: [message] What is Ava Li's score for BLEU?
You: [message] {known}
Partner: [message] What is Ava Li's score for GloVe?
You: [message] {unknown}
Partner: [message] Please, I beg you, tell me everything you know!
You: {vague}"""
_ACCEPT = "Accept every proposal."
_WEIGH = (
    "Accept a proposal if, by the scores you see (count 50 for any other), it is worth at least as much as an average "
    "assignment; otherwise reject it."
)

_TAG = re.compile(r"\[(message|propose|accept|reject)\]", re.IGNORECASE)
_SPEAKER = re.compile(r"(?:\A|\n)\s*(?:you|partner|player[- ]?\d)\s*:\s*(?=\Z|\[)", re.IGNORECASE)


def shy_rules(always_accept: bool) -> str:
    """The system prompt of a shy partner."""
    return _RULES.format(
        proposal=_ACCEPT if always_accept else _WEIGH,
        known=answer(0, 0, 42),
        unknown=answer(0, 2, -1),
        vague=f"[message] {VAGUE[0]}",
    )


def one_turn(observation: str, reply: str) -> str:
    """The one turn in a model's reply to `observation`, with its tag.

    Corrects a missing tag, words before the tag, a second turn after the first, and a proposal answered in words.

    Raises:
        ValueError: it has no turn that a shy partner may take; the sentence says what would be right.
    """
    text = _SPEAKER.sub("\n", reply.strip()).strip()
    tags = [tag[1].lower() for tag in _TAG.finditer(text)]
    if _proposal_waits(observation):
        in_words = re.match(r"\W*(?:i )?(accept|reject)\b", text, re.IGNORECASE)
        said = set(tags) & {"accept", "reject"} or ({in_words[1].lower()} if in_words else set())
        if len(said) != 1:
            raise ValueError("A proposal was made. Answer it with [accept] or [reject] alone.")
        return f"[{said.pop()}]"
    if not tags:
        if not text:
            raise ValueError("Your turn is empty. Begin it with [message].")
        return f"[message] {text}"
    first, *later = _TAG.finditer(text)
    content = text[first.end() : later[0].start() if later else None].strip()
    if tags[0] != "message" or not content:
        raise ValueError("There is no proposal to answer, and you make none. Say [message] and your words.")
    return f"[message] {content}"


class AlwaysAccepts(Player):
    """Accepts every proposal without a model, and leaves everything else to `player`."""

    def __init__(self, player: Player):
        self._player = player

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        if _proposal_waits(text_of(observation)):
            return said("[accept]")
        return await self._player.respond(observation, tools)

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        if not _proposal_waits(text_of(observation)):
            self._player.recall(observation, message)


def _proposal_waits(observation: str) -> bool:
    return observation.rstrip().endswith(MUST_ANSWER) or "Answer it with [accept] or [reject]" in observation
