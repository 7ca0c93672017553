"""A player that answers late: a model behind an API."""

import asyncio
from collections.abc import Callable, Sequence

from slime.utils.types import Sample

from slim_rl.core.message import Message, Tool
from slim_rl.core.player import Player
from slim_rl.players.policy import Interrupted
from slim_rl.slime.observability import trace_span

_LOOK_SECONDS = 0.5


class Partner(Player):
    """Stops waiting for the player once SLIME has enough samples: an episode that is not needed costs no call. SLIME's
    trace shows the time of each turn.

    Args:
        sample: a sample of the episode.
        aborted: whether SLIME interrupts the episodes.
    """

    def __init__(self, player: Player, name: str, sample: Sample, aborted: Callable[[], bool]):
        self._player, self._name, self._sample, self._aborted = player, name, sample, aborted

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        """See `Player.respond`. Raises Interrupted."""
        turn = asyncio.ensure_future(self._player.respond(observation, tools))
        try:
            with trace_span(self._sample, "partner", attrs={"player": self._name}):
                while not turn.done():
                    if self._aborted():
                        raise Interrupted
                    await asyncio.wait([turn], timeout=_LOOK_SECONDS)
            return turn.result()
        finally:
            turn.cancel()

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self._player.recall(observation, message)

    def close(self) -> None:
        self._player.close()
