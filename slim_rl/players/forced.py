"""A player whose turns follow a rule: what a turn is worth is measured by taking away the choice of it."""

from collections.abc import Awaitable, Callable, Sequence

from slim_rl.core.episode import TokenTrace
from slim_rl.core.message import Message, Tool
from slim_rl.core.player import Constraint, Player

Rule = Callable[[Sequence[Message], Sequence[Message]], Awaitable[Message | Constraint | None]]
"""(observation, what the player has said to it so far; all but the last was taken back) -> a message that is said
instead; how to speak (once more); or None: the player is free, or what it has said last stands."""


class Forced(Player):
    """Any player under a rule. What the rule says or begins is context, and never trained on."""

    def __init__(self, player: Player, rule: Rule):
        self._player, self._rule = player, rule
        self.recall, self.resume, self.close = player.recall, player.resume, player.close  # type: ignore[method-assign]
        self.can_say = player.can_say  # type: ignore[method-assign]
        self.say, self.take_back, self.constrain = player.say, player.take_back, player.constrain  # type: ignore[method-assign]

    @property
    def trace(self) -> TokenTrace | None:
        return self._player.trace

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        attempts: list[Message] = []
        while True:
            forced = await self._rule(observation, attempts)
            if attempts:
                if forced is None:
                    return attempts[-1]
                self.take_back()
            if isinstance(forced, Message):
                self.say(observation, forced, tools)
                return forced
            if forced is not None:
                self.constrain(forced)
            attempts.append(await self._player.respond(observation, tools))
