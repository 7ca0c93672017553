"""What every game is: seats that take turns, what each one sees, and what each one earns.

A game knows rules and text. It does not know models, tokens, or who sits where.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

from slim_rl.players.player import Player

Purpose = Literal["train", "evaluate", "demonstrations"]


def series_seed(seed: int, purpose: Purpose) -> int:
    """The seed of the series of games for one purpose; no two purposes or run seeds share a series."""
    purposes = get_args(Purpose)
    return seed * len(purposes) + purposes.index(purpose)


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
    """How one seat could play a game well, as a path of turns with ways out.

    A demonstrator who stops after i turns says `turns[0], …, turns[i - 1], closings[i]`.
    """

    observations: list[str]
    """What the seat reads before turn i; one more than `turns`."""
    turns: list[str]
    closings: Sequence[str | None]
    """What would end the game well instead of turn i, None where it cannot be ended; one more than `turns`.
    The last one is always there: where no way out is shown, it is simply the seat's last turn."""


class ChatRules(NamedTuple):
    """How a chat model takes a seat."""

    system: str
    """Its system prompt."""
    mend: Callable[[str, str], str]
    """(observation, reply) -> the one turn in the reply; raises ValueError, with what would be right, if there
    is none."""
    around: Callable[[Player], Player] = lambda player: player
    """What takes turns off the model that need no thought."""


class GameKind(Protocol):
    """A kind of game: where its games come from, and who can play them without a model.

    Each folder here has one: `kind(config, variant)` in its `__init__.py`. No room below the stages knows a game by name.
    """

    name: str
    """Of the kind, with its variant: "matching", "textarena:Nim-v0"."""
    seats: tuple[str, ...]
    """Those of its games, in the order in which they move first."""
    words: Sequence[str]
    """Where a tokenizer made for this game's language should cut."""

    opponents: tuple[str, ...]
    """Players without a model that everybody is measured against, if the game has winners."""

    def games(self, purpose: Purpose, count: int) -> Iterator[dict[str, Any]]:
        """`count` lines for a games file: JSON values, `game_id`, `prompt` (what the first seat reads first
        when nothing has happened; empty where it is not known yet)
        and `game_state` (all that `load` needs). The same for the same parameters and purpose."""

    def load(self, line: dict[str, Any]) -> Game:
        """The game of a line, ready to be played. Raises ValueError, KeyError or TypeError if it is damaged."""

    def player(self, name: str, game: Game, seat: str, seed: int) -> Player:
        """Somebody who plays `seat` without a model: `random`, `scripted`, and whoever else the game knows.

        Raises:
            ValueError: nobody has this name; the sentence says who there is.
        """

    def demonstrate(self, line: dict[str, Any], seat: str) -> Demonstration:
        """Legal play of `seat` in the game of a line, to be imitated; the same for the same line."""

    def chat_rules(self, seat: str) -> ChatRules:
        """What a chat model in this seat is told, and what of its replies is a turn."""


class Decision(NamedTuple):
    """A point where a seat has to decide, in a game small enough that all of them can be listed."""

    name: str
    seat: str
    observations: list[str]
    """What the seat has read, turn by turn; one more than `turns`."""
    turns: list[str]
    """What it has said."""
    options: list[str]
    """The turns that it may take."""


class SolvedKind(GameKind, Protocol):
    """A kind of game that can be computed through."""

    def decisions(self) -> list[Decision]: ...

    def solve(self, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
        """What a policy is worth, exactly, in the game's own units, by name (`exploitability`, …).

        Args:
            probabilities: for each of `decisions()`, of each of its options, in order; each sums to 1.
        """
