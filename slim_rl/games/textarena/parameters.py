"""Parameters of games from TextArena."""

from typing import Literal

from pydantic import Field

from slim_rl.core.parameters import GameParameters, PlayerName


class Parameters(GameParameters):
    """A two-player game of TextArena."""

    seating: tuple[PlayerName, ...] = ("policy", "policy")
    illegal_moves: Literal["textarena", "spiral"] = "textarena"
    """`textarena`: its own rules, in most games one retry, then the game is lost; `spiral`: the game ends at once, the
    offender gets -1.5, the opponent +0.5."""
    opening_moves: int = Field(0, ge=0)
    """Training games begin after up to this many random legal moves, drawn for each game, so that self-play sees more
    of the game than its own openings."""
