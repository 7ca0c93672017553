"""The shy partner's rules for a language model: its system prompt, and the turn in each of its replies."""

import re

from slim_rl.core.player import TextPlayer
from slim_rl.games.matching.language import MUST_ANSWER
from slim_rl.games.matching.wordings import VAGUE, answer

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


class AlwaysAccepts:
    """Accepts every proposal without a model, and leaves everything else to `player`."""

    def __init__(self, player: TextPlayer):
        self._player = player

    async def respond(self, observation: str) -> str:
        return "[accept]" if _proposal_waits(observation) else await self._player.respond(observation)

    def recall(self, observation: str, text: str) -> None:
        if not _proposal_waits(observation):
            self._player.recall(observation, text)


def _proposal_waits(observation: str) -> bool:
    return observation.rstrip().endswith(MUST_ANSWER) or "Answer it with [accept] or [reject]" in observation
