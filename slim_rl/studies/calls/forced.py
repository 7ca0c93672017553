"""The policy without the choice whether to call, on the same tasks for every model.

* `forbidden`: the token that begins a call is never drawn.
* `forced-K`: the first K turns are calls that a player without a model makes; then calls are forbidden.

Nothing given is ever trained on: its loss mask is 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slim_rl.core.message import Message, Tool
from slim_rl.core.player import Player
from slim_rl.evaluation.series import Policy
from slim_rl.players.policy import PolicyPlayer
from slim_rl.rollout.seating import PlayerMaker, Seat

FORBIDDEN = "forbidden"


class ForcedPlayer(PolicyPlayer):
    """Makes the first `calls` calls of another player, and none of its own."""

    def __init__(self, *policy: Any, caller: Player | None, calls: int):
        super().__init__(*policy)
        self._caller, self._calls = caller, calls

    async def respond(
        self, observation: Sequence[Message], tools: Sequence[Tool] = (), beginning: Sequence[int] = ()
    ) -> Message:
        if self._calls and self._caller is not None:
            self._calls -= 1
            message = await self._caller.respond(observation, tools)
            if message.tool_calls:
                written = (f"<tool_call>\n{call.raw}\n</tool_call>" for call in message.tool_calls)
                self.say(observation, "\n".join(written), tools)
                return message
        return await super().respond(observation, tools, beginning)


def forced_maker(arm: str, policy: Policy, caller: str | None) -> PlayerMaker:
    """Players under an arm.

    Args:
        caller: the game's player whose calls are forced.
    """
    rules = policy.rules

    def make(seat: Seat) -> PolicyPlayer:
        sampling = replace(rules.sampling(seat), forbidden_token_ids=rules.renderer.call_token_ids)
        calls = 0 if arm == FORBIDDEN else int(arm.removeprefix("forced-"))
        forces: Any = seat.of.taskset
        made = forces.player(caller, seat.game, seat.name, seat.seed) if calls else None
        return ForcedPlayer(policy.engine, rules.renderer, sampling, caller=made, calls=calls)

    return make
