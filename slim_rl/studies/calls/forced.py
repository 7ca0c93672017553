"""The policy without the choice whether to call, on the same tasks for every model.

* `forbidden`: the token that begins a call is never drawn.
* `forced-K`: the first K turns are calls that a player without a model makes; then calls are forbidden.

What it does not choose is never trained on: its loss mask is 0.
"""

from collections.abc import Sequence

from slim_rl.core.message import Message
from slim_rl.core.player import Constraint, Player
from slim_rl.players.forced import Forced
from slim_rl.rollout.seating import Seat

FORBIDDEN = "forbidden"


def forced(calls: int, caller: str, player: Player, seat: Seat) -> Player:
    """Makes the first calls of the game's player `caller`, `calls` of them, and none of its own."""
    turns = 0
    calls_of = seat.of.taskset.player(caller, seat.game, seat.name, seat.seed) if calls else None

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Message | Constraint | None:
        nonlocal turns
        if attempts:
            return None
        turns += 1
        if calls_of is not None and turns <= calls:
            message = await calls_of.respond(observation, seat.game.tools(seat.name))
            if message.tool_calls:
                return message
        return Constraint(calls=False)

    return Forced(player, rule)
