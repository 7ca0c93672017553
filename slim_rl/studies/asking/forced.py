"""The policy in the agent's seat, without the choice whether to ask, or what.

Episodes that happen to have more questions may be on other boards, or of a policy in another state, so they do not
tell what a question is worth. Here the choice is made for the model, on the same boards:

* `forbidden`: it plays freely, but a turn that asks something is taken back and sampled again as a proposal.
* `given-MODEL`: it says the messages that the other model said on this board, and hears the answers; then it has to
  propose.
* `as-many`: it asks in its own words and order, for as many cells as the trained model did on this board. A turn that
  asks for none is taken back and sampled again as a message. Then it has to propose.
* `asks-on`: the same, until the partner's patience, the open cells or the turns end, or `max_questions` cells were asked
  for: a model that is told not to stop. Who was shown no more questions than that may not be able to propose after more.
* `asks-unknown`: the same, and a question about a score of which it knows something is taken back and sampled again: a
  model that is also told what to ask for.

A proposal or a message is brought about by its first tokens: those that all proposals, or all messages, share are
given, and the rest is sampled. They come from the encoding of whole turns, so they are cut as the model read them in
training, whatever its tokenizer. A model that thinks before it speaks does not think before such a turn; one that learnt
to write sums after the tag of a proposal still does. Nothing given is ever trained on: its loss mask is 0.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from slim_rl.core.episode import Episode
from slim_rl.core.message import Message, Tool, text_of
from slim_rl.evaluation.series import Policy
from slim_rl.games.matching.board import TOP
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.reader import asked_cells, asks_something
from slim_rl.games.matching.rules import MUST_ANSWER, MatchingGame
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PlayerMaker, Seat
from slim_rl.studies.asking.choices import act_of, message_of

MAX_SAMPLES = 20
"""Of a turn that asks for the wrong kind of score."""


class ForbiddenPlayer(PolicyPlayer):
    """May do anything but ask."""

    def __init__(self, *policy: Any, proposal: Sequence[int]):
        super().__init__(*policy)
        self._proposal = proposal

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        before = len(self._trace.token_ids)
        message = await super().respond(observation, tools, beginning)
        if not asks_something(message_of(message.text)):
            return message
        self.take_back(before)
        return await super().respond(observation, tools, self._proposal)


class GivenPlayer(PolicyPlayer):
    """Says the given messages, then has to propose."""

    def __init__(self, *policy: Any, messages: Sequence[str], proposal: Sequence[int]):
        super().__init__(*policy)
        self._messages, self._proposal = list(messages), proposal

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        if MUST_ANSWER in text_of(observation):
            return await super().respond(observation, tools, beginning)
        if self._messages:
            return self.say(observation, self._messages.pop(0), tools)
        return await super().respond(observation, tools, self._proposal)


class AskingPlayer(PolicyPlayer):
    """Asks until it has asked for `cells` cells or has turns for a proposal alone, then has to propose."""

    def __init__(self, *policy: Any, seat: Seat, cells: int, message: Sequence[int], proposal: Sequence[int]):
        super().__init__(*policy)
        assert isinstance(seat.game, MatchingGame)
        self._game, self._seat, self._cells = seat.game, seat.name, cells
        self._message, self._proposal = message, proposal

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        if MUST_ANSWER in text_of(observation):
            return await super().respond(observation, tools, beginning)
        game = self._game
        turns_left = game.turns + 4 <= game.limits.max_turns  # question, answer, proposal, reply
        if not turns_left or game.cells_asked(self._seat) >= self._cells:
            return await super().respond(observation, tools, self._proposal)
        before = len(self._trace.token_ids)
        message = await super().respond(observation, tools, beginning)
        if asked_cells(message_of(message.text), game.board.size):
            return message
        self.take_back(before)
        return await super().respond(observation, tools, self._message)


class AskingUnknownPlayer(AskingPlayer):
    """Asks only for cells of which it knows nothing, while there are any. After MAX_SAMPLES questions about others, it
    asks what it will."""

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        least, most = self._game.bounds(self._seat)
        unknown = most - least == TOP
        before = len(self._trace.token_ids)
        for _ in range(MAX_SAMPLES if unknown.any() else 0):
            message = await super().respond(observation, tools, beginning)
            if all(unknown[cell] for cell in asked_cells(message_of(message.text), self._game.board.size)):
                return message
            self.take_back(before)
        return await super().respond(observation, tools, beginning)


def forbidden_maker(policy: Policy, board: Parameters) -> PlayerMaker:
    """On such boards, like those below."""
    return _maker(policy, partial(ForbiddenPlayer, proposal=proposal_beginning(policy.rules.renderer, board)))


def given_maker(policy: Policy, board: Parameters, free: Mapping[str, Episode]) -> PlayerMaker:
    """Players who say what was said in `free`, the other model's free play by board."""
    proposal = proposal_beginning(policy.rules.renderer, board)

    def player(*policy: Any, seat: Seat) -> PolicyPlayer:
        return GivenPlayer(*policy, messages=messages_of(free[seat.request.task.game_id], seat.name), proposal=proposal)

    return _maker(policy, player, seated=True)


def asking_maker(
    policy: Policy, board: Parameters, free: Mapping[str, Episode] | None = None, unknown: bool = False
) -> PlayerMaker:
    """Players who ask for as many cells as were asked for in `free`, by board; without it, as many as possible.

    Args:
        unknown: they ask only for cells of which they know nothing.
    """
    renderer = policy.rules.renderer
    beginnings = dict(proposal=proposal_beginning(renderer, board), message=message_beginning(renderer))

    def player(*policy: Any, seat: Seat) -> PolicyPlayer:
        if free is None:
            cells = min(most_cells(seat), board.max_questions)
        else:
            cells = int(free[seat.request.task.game_id].metrics[f"{seat.name}.cells_asked"])
        return (AskingUnknownPlayer if unknown else AskingPlayer)(*policy, seat=seat, cells=cells, **beginnings)

    return _maker(policy, player, seated=True)


def most_cells(seat: Seat) -> int:
    """The cells that a seat does not see, at most as many as its partner's patience."""
    assert isinstance(seat.game, MatchingGame)
    open_cells = int((~seat.game.view(seat.name).mask).sum())
    patience = seat.game.limits.patience
    return open_cells if patience is None else min(open_cells, patience)


def messages_of(episode: Episode, seat: str) -> list[str]:
    """The messages of a seat before it first proposed."""
    turns = [turn.text for turn in episode.turns if turn.seat == seat]
    before = takewhile(lambda text: act_of(text) != "propose", turns)
    return [text for text in before if act_of(text) == "message"]


def proposal_beginning(renderer: Renderer, board: Parameters) -> tuple[int, ...]:
    """The tokens that all proposals begin with; only the tag where a thought may follow it."""
    assignments = [tuple(np.roll(range(board.size), shift)) for shift in range(board.size)]
    thought = ["[propose] <think>"] if board.write_sums else []
    return _shared(renderer, ["[propose] " + format_proposal(assignment) for assignment in assignments] + thought)


def message_beginning(renderer: Renderer) -> tuple[int, ...]:
    """The tokens that all messages begin with."""
    return _shared(renderer, ["[message] What", "[message] And", "[message] Please"])


def _maker(policy: Policy, player: Callable[..., PolicyPlayer], seated: bool = False) -> PlayerMaker:
    def make(seat: Seat) -> PolicyPlayer:
        rules = policy.rules
        return player(policy.engine, rules.renderer, rules.sampling(seat), **({"seat": seat} if seated else {}))

    return make


def _shared(renderer: Renderer, texts: Sequence[str]) -> tuple[int, ...]:
    turns = [renderer.turn(text) for text in texts]
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*turns, strict=False))
    return tuple(first for first, *_ in shared)
