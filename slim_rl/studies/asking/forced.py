"""The policy in the agent's seat, with the choice whether to ask taken from it.

Who asks more may be on other boards and of another mind, so episodes that happened to have more questions
do not tell what a question is worth. Here somebody else decides, on the same boards for every model:

* `forbidden`: the model plays as it likes, but a turn that asks something is taken back and sampled again
  as a proposal.
* `forced-K`: K questions are asked for it, about cells that it does not see, in an order that follows from
  the board alone (fewer if it sees too much); then it has to propose.

A proposal is brought about by its first tokens: those that the proposals of all assignments share are
given, and the rest is sampled. They come from the encoding of whole turns, so a model reads them cut as it
read them in training, whatever its tokenizer; a model that thinks before it speaks does not think before a
proposal that is begun for it. Nothing given is ever trained on: its loss mask is 0.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile

import numpy as np

from slim_rl.engines.engine import Engine, Sampling
from slim_rl.games.matching.language import MUST_ANSWER, InvalidTurn, parse_turn, question
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.questions import asks_something
from slim_rl.games.matching.rules import MatchingGame
from slim_rl.players.chat_format import ChatFormat
from slim_rl.players.policy import PolicyPlayer
from slim_rl.rollout.table import Job, PlayerMaker

FORCED = range(7)
"""How many questions are forced, one arm for each."""
ARMS = ("forbidden", *(f"forced-{k}" for k in FORCED))


class ForcedPlayer(PolicyPlayer):
    """Asks the given questions, then has to propose."""

    def __init__(self, *policy, questions: Sequence[str], proposal: Sequence[int]):
        super().__init__(*policy)
        self._questions, self._proposal = list(questions), proposal

    async def respond(self, observation: str, beginning: Sequence[int] = ()) -> str:
        if MUST_ANSWER in observation:
            return await super().respond(observation, beginning)
        if self._questions:
            return self.say(observation, self._questions.pop(0))
        return await super().respond(observation, self._proposal)


class ForbiddenPlayer(PolicyPlayer):
    """May do anything but ask."""

    def __init__(self, *policy, proposal: Sequence[int]):
        super().__init__(*policy)
        self._proposal = proposal

    async def respond(self, observation: str, beginning: Sequence[int] = ()) -> str:
        before = len(self.trace.token_ids)
        text = await super().respond(observation, beginning)
        if not _asks(text):
            return text
        self.take_back(before)
        return await super().respond(observation, self._proposal)


def intervention_maker(
    arm: str, engine: Engine, chat_format: ChatFormat, turn_tokens: int, temperature: float
) -> PlayerMaker:
    """What `policy_seat` makes, under one of ARMS."""

    def make(game: MatchingGame, seat: str, job: Job, seed: int) -> PolicyPlayer:
        session = f"{job.episode_id}/{seat}"
        sampling = Sampling(turn_tokens, temperature, seed=seed, session=session)
        policy, proposal = (engine, chat_format, sampling), proposal_beginning(chat_format, game.board.size)
        if arm == "forbidden":
            return ForbiddenPlayer(*policy, proposal=proposal)
        count = int(arm.removeprefix("forced-"))
        return ForcedPlayer(*policy, questions=questions_about_unknown(game, seat)[:count], proposal=proposal)

    return make


def questions_about_unknown(game: MatchingGame, seat: str) -> list[str]:
    """A question about every cell that `seat` does not see, in an order drawn for the board."""
    seed = int.from_bytes(hashlib.sha256(game.game_id.encode()).digest()[:8], "little")
    cells = np.argwhere(~game.view(seat).mask)
    return [question(reviewer, paper) for reviewer, paper in np.random.default_rng(seed).permutation(cells)]


@lru_cache(maxsize=8)
def proposal_beginning(chat_format: ChatFormat, size: int) -> tuple[int, ...]:
    """The tokens that all proposals begin with."""
    assignments = [tuple(np.roll(range(size), shift)) for shift in range(size)]
    turns = [chat_format.turn("[propose] " + format_proposal(assignment)) for assignment in assignments]
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*turns, strict=False))
    return tuple(first for first, *_ in shared)


def _asks(text: str) -> bool:
    try:
        turn = parse_turn(text)
    except InvalidTurn:
        return False
    return turn.act == "message" and asks_something(turn.content)
