"""Who can sit in a seat. A player knows messages in and a message out, nothing of a game's rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from slim_rl.core.message import Message, Tool, said, text_of


class Player(Protocol):
    """Sits in one seat for one episode and remembers its own conversation."""

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        """The player's next turn, after reading what it has not seen yet.

        Args:
            tools: what it may call; the same at every turn.

        Raises:
            PlayerFailed: the engine or service failed; the player is not at fault.
        """

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        """Take into memory a turn of its own from before an interruption."""


class TextPlayer(Protocol):
    """A player of a text game: text in, text out."""

    async def respond(self, observation: str) -> str:
        """See `Player.respond`."""

    def recall(self, observation: str, text: str) -> None:
        """See `Player.recall`."""


class ScriptedPlayer(ABC):
    """A text player without a model. Its turns depend only on its seed and on what it has read."""

    @abstractmethod
    def turn(self, observation: str) -> str:
        """Its next turn."""

    async def respond(self, observation: str) -> str:
        return self.turn(observation)

    def recall(self, observation: str, text: str) -> None:
        self.turn(observation)


class TextSeat:
    """A text player as a `Player`."""

    def __init__(self, player: TextPlayer):
        self._player = player

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        return said(await self._player.respond(text_of(observation)))

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self._player.recall(text_of(observation), message.text)
