"""The policy in the agent's seat, without the choice whether to ask, or what.

Episodes that happen to have more questions may be on other boards, or of a policy in another state, so they do not
tell what a question is worth. Here the choice is made for the model, on the same boards:

* `forbidden`: it plays freely, but a turn that asks something is taken back and sampled again as a proposal.
* `given-MODEL`: it says the messages that this model, which may be itself, said on this board, and hears the answers; then it has
  to propose.
* `as-many`: it asks in its own words and order, for as many cells as the trained model did on this board. A turn that
  asks for none is taken back and sampled again as a message. Then it has to propose.
* `asks-on`: the same, until the partner's patience, the open cells or the turns end, or `max_questions` cells were asked
  for: a model that is not allowed to stop. Who was shown no more questions than that may not be able to propose after more.
* `asks-unknown`: the same, and a question about a score that it knows, exactly or roughly, is taken back and sampled again: a
  model that is also told what to ask for.
* `asks-planned`: it asks what the two-step asker asks, then has to propose: planning at test time in place of training.

A proposal or a message is brought about by its first tokens: those that all proposals, or all messages, share are
given, and the rest is sampled. They come from the encoding of whole turns, so they are cut as the model read them in
training, whatever its tokenizer. A model that thinks before it speaks does not think before such a turn; one that learnt
to write sums after the tag of a proposal still does. Nothing given is ever trained on: its loss mask is 0.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from slim_rl.core.episode import Episode
from slim_rl.core.message import Message, said, text_of
from slim_rl.core.player import Constraint, Player
from slim_rl.games.matching.board import TOP
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.reader import asked_cells, asks_something
from slim_rl.games.matching.rules import MUST_ANSWER, MatchingGame
from slim_rl.players.forced import Forced
from slim_rl.rollout.seating import Seat
from slim_rl.studies.asking.choices import act_of, message_of
from slim_rl.studies.asking.parameters import board_of

MAX_SAMPLES = 20
"""Times that a turn is sampled which asks for the wrong kind of score."""
MESSAGE = Constraint(begins=("[message] What", "[message] And", "[message] Please"))

Free = Mapping[str, Episode]
"""A model's free play, by board."""


def forbidden(player: Player, seat: Seat) -> Player:
    """May do anything but ask."""

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Constraint | None:
        return proposal(seat) if attempts and asks_something(message_of(attempts[-1].text)) else None

    return Forced(player, rule)


def given(free: Free, player: Player, seat: Seat) -> Player:
    """Says the messages that were said in `free`, then has to propose."""
    messages = list(map(said, messages_of(free[seat.request.task.game_id], seat.name)))

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Message | Constraint | None:
        if attempts or MUST_ANSWER in text_of(observation):
            return None
        return messages.pop(0) if messages else proposal(seat)

    return Forced(player, rule)


def asks_on(player: Player, seat: Seat) -> Player:
    """Asks for as many cells as possible."""
    game, board = game_of(seat), board_of(seat.of)
    cells = int((~game.view(seat.name).mask).sum())
    if game.limits.patience is not None:
        cells = min(cells, game.limits.patience)
    return _asks(player, seat, min(cells, board.max_questions))


def as_many(free: Free, player: Player, seat: Seat) -> Player:
    """Asks for as many cells as were asked for in `free`."""
    return _asks(player, seat, int(free[seat.request.task.game_id].metrics[f"{seat.name}.question_count"]))


def asks_unknown(player: Player, seat: Seat) -> Player:
    """Asks for as many cells as possible, and only for unknown ones, while there are any. After MAX_SAMPLES questions
    about others, it asks what it will."""
    game = game_of(seat)

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Constraint | None:
        least, most = game.bounds(seat.name)
        unknown = most - least == TOP
        if not attempts or len(attempts) > MAX_SAMPLES or not unknown.any():
            return None
        cells = asked_cells(message_of(attempts[-1].text), game.board.size)
        return None if all(unknown[cell] for cell in cells) else Constraint()

    return Forced(asks_on(player, seat), rule)


def asks_planned(player: Player, seat: Seat) -> Player:
    """Asks what `optimal` asks, as long as that asks."""
    planner = seat.of.taskset.player("optimal", seat.game, seat.name, seat.seed)

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Message | Constraint | None:
        if attempts or MUST_ANSWER in text_of(observation):
            return None
        turn = await planner.respond(observation)
        return turn if act_of(turn.text) == "message" else proposal(seat)

    return Forced(player, rule)


def _asks(player: Player, seat: Seat, cells: int) -> Player:
    """Asks until it has asked for `cells` cells or has turns for a proposal alone, then has to propose."""
    game = game_of(seat)

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Constraint | None:
        if MUST_ANSWER in text_of(observation) or len(attempts) > 1:
            return None
        turns_left = game.turns + 4 <= game.limits.max_turns  # question, answer, proposal, reply
        if not turns_left or game.question_count(seat.name) >= cells:
            return None if attempts else proposal(seat)
        asked = not attempts or asked_cells(message_of(attempts[0].text), game.board.size)
        return None if asked else MESSAGE

    return Forced(player, rule)


def messages_of(episode: Episode, seat: str) -> list[str]:
    """The messages of a seat before it first proposed."""
    turns = [turn.text for turn in episode.turns if turn.seat == seat]
    before = takewhile(lambda text: act_of(text) != "propose", turns)
    return [text for text in before if act_of(text) == "message"]


def proposal(seat: Seat) -> Constraint:
    """A turn that begins like all proposals; only with the tag where a thought may follow it."""
    board = board_of(seat.of)
    assignments = [tuple(np.roll(range(board.size), shift)) for shift in range(board.size)]
    thought = ["[propose] <think>"] if board.write_sums else []
    return Constraint(begins=(*("[propose] " + format_proposal(a) for a in assignments), *thought))


def game_of(seat: Seat) -> MatchingGame:
    assert isinstance(seat.game, MatchingGame)
    return seat.game
