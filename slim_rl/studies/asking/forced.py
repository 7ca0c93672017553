"""The policy in the agent's seat, without the choice whether to ask.

Episodes that happen to have more questions may be on other boards, or of a policy in another state, so they do not
tell what a question is worth. Here the choice is made for the model, on the same boards for every model:

* `forbidden`: the model plays freely, but a turn that asks something is taken back and sampled again as a proposal.
* `forced-K`: K questions are asked for it, about cells that it does not see, in an order that follows from the board
  alone (fewer if it sees too much); then it has to propose.

A proposal is brought about by its first tokens: those that the proposals of all assignments share are given, and the
rest is sampled. They come from the encoding of whole turns, so they are cut as the model read them in training,
whatever its tokenizer. A model that thinks before it speaks does not think before such a proposal. Nothing given is
ever trained on: its loss mask is 0.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from slim_rl.core.game import seed_of
from slim_rl.core.message import Message, Tool, text_of
from slim_rl.engines.engine import Sampling
from slim_rl.games.matching.language import MUST_ANSWER, InvalidTurn, parse_turn
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.questions import asks_something
from slim_rl.games.matching.rules import MatchingGame
from slim_rl.games.matching.wordings import question
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PlayerMaker, Seat
from slim_rl.studies.series import Policy

FORBIDDEN = "forbidden"
FORCED = range(7)
"""How many questions are forced, one arm for each."""
ARMS = (FORBIDDEN, *(f"forced-{k}" for k in FORCED))


class ForcedPlayer(PolicyPlayer):
    """Asks the given questions, then has to propose."""

    def __init__(self, *policy: Any, questions: Sequence[str], proposal: Sequence[int]):
        super().__init__(*policy)
        self._questions, self._proposal = list(questions), proposal

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        if MUST_ANSWER in text_of(observation):
            return await super().respond(observation, tools, beginning)
        if self._questions:
            return self.say(observation, self._questions.pop(0), tools)
        return await super().respond(observation, tools, self._proposal)


class ForbiddenPlayer(PolicyPlayer):
    """May do anything but ask."""

    def __init__(self, *policy: Any, proposal: Sequence[int]):
        super().__init__(*policy)
        self._proposal = proposal

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        before = len(self.trace.token_ids)
        message = await super().respond(observation, tools, beginning)
        if not _asks(message.text):
            return message
        self.take_back(before)
        return await super().respond(observation, tools, self._proposal)


def forced_maker(arm: str, policy: Policy, size: int) -> PlayerMaker:
    """Players under one of ARMS, on boards of `size` reviewers."""
    renderer = policy.rules.renderer
    proposal = proposal_beginning(renderer, size)

    def make(seat: Seat) -> PolicyPlayer:
        assert isinstance(seat.game, MatchingGame)
        session = f"{seat.request.episode_id}/{seat.name}"
        sampling = Sampling(policy.rules.max_turn_tokens, policy.rules.temperature, seed=seat.seed, session=session)
        player = (policy.engine, renderer, sampling)
        if arm == FORBIDDEN:
            return ForbiddenPlayer(*player, proposal=proposal)
        questions = questions_about_unknown(seat.game, seat.name)[: int(arm.removeprefix("forced-"))]
        return ForcedPlayer(*player, questions=questions, proposal=proposal)

    return make


def questions_about_unknown(game: MatchingGame, seat: str) -> list[str]:
    """A question about every cell that `seat` does not see, in an order drawn for the board."""
    cells = np.argwhere(~game.view(seat).mask)
    rng = np.random.default_rng(seed_of(game.game_id))
    return [question(reviewer, paper) for reviewer, paper in rng.permutation(cells)]


def proposal_beginning(renderer: Renderer, size: int) -> tuple[int, ...]:
    """The tokens that all proposals begin with."""
    assignments = [tuple(np.roll(range(size), shift)) for shift in range(size)]
    turns = [renderer.turn("[propose] " + format_proposal(assignment)) for assignment in assignments]
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*turns, strict=False))
    return tuple(first for first, *_ in shared)


def _asks(text: str) -> bool:
    try:
        turn = parse_turn(text)
    except InvalidTurn:
        return False
    return turn.act == "message" and asks_something(turn.content)
