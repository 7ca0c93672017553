"""What every game is: seats that take turns, what each one sees, and what each one earns.

A game knows rules and text. It does not know models, tokens, or who sits where.
"""

from typing import NamedTuple, Protocol


class Game(Protocol):
    """One game being played. `play()` is its only caller; a game is used once."""

    game_id: str
    """Names the board or task, so that episodes of the same game can be compared."""

    seats: tuple[str, ...]
    """The names of the seats, in the order in which they move first."""

    @property
    def turn(self) -> str | None:
        """The seat that speaks next; None once the game is over."""

    @property
    def truncated(self) -> bool:
        """Whether the game ended because a limit was reached, not because its rules ended it."""

    def observe(self, seat: str) -> str:
        """Everything `seat` may see and has not seen yet; at its first call that is its prompt."""

    def step(self, text: str) -> None:
        """Let the seat whose turn it is say `text`.

        What the rules forbid is answered to the speaker by its next observation; it is not an
        exception, because a policy's mistakes are part of the episode.
        """

    def rewards(self) -> dict[str, float]:
        """What each seat has earned so far; final once `turn` is None."""

    def facts(self) -> dict[str, float]:
        """What a report wants to know about this episode, by name (questions asked, errors, …)."""


class Demonstration(NamedTuple):
    """How one seat could play a game well, as a path of turns with a way out at every turn.

    A demonstrator who stops after i turns says `turns[0], …, turns[i - 1], closings[i]`.
    """

    observations: list[str]
    """What the seat reads before turn i; one more than `turns`."""
    turns: list[str]
    closings: list[str]
    """What would end the game well instead of turn i; one more than `turns`."""
