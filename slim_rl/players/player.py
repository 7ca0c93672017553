"""Who can sit in a seat. A player knows text in and text out, nothing of a game's rules."""

from typing import Protocol


class Player(Protocol):
    """Sits in one seat for one episode and remembers its own conversation."""

    async def respond(self, observation: str) -> str:
        """The player's next turn, after reading what it has not seen yet.

        Raises:
            PlayerFailed: the turn could not be had, for a reason that is not the player's play.
        """

    def recall(self, observation: str, text: str) -> None:
        """Take a turn of its own into its memory that was taken before an interruption."""


class PlayerFailed(Exception):
    """A turn could not be had through somebody else's fault (an engine, a partner's API).

    The episode becomes `failed`: it earns nothing, trains nothing, and can be played again. What is told is
    the exception that this one was raised from, or its own text, then of the form `Class: message`.
    """
