"""Parameters of the study."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from slim_rl.core.errors import UserError
from slim_rl.core.parameters import Section
from slim_rl.games import NamedGame, matching

ReferenceName = Annotated[
    str, Field(pattern=r"^(random|own-view|bayes|greedy|optimal|asks-(\d+|all)-(random|table|unknown|useful))$")
]
"""A player that needs no model; see `slim_rl.games.matching.scripted.reference_player`."""
ASKS_ON, ASKS_UNKNOWN, ASKS_PLANNED = "base-asks-on", "base-asks-unknown", "base-asks-planned"
"""The base model, not allowed to stop asking; one that must also ask for unknown scores; and one that asks what the
two-step asker asks."""
FAITHFUL = {"size": 8, "selection": "dialop"}
"""Parameters of the boards that people played."""


HUMAN = Path("data/human/human_games.jsonl")
"""What people played."""


class Parameters(Section):
    references: tuple[ReferenceName, ...] = (
        "random", "own-view", "bayes", "asks-all-random", "asks-all-table", "asks-all-unknown", "asks-all-useful", "greedy",
        "optimal",
    )  # fmt: skip
    """References on the held-out boards; `bayes`, which the verdict needs, plays also if it is not named."""
    human_references: tuple[ReferenceName, ...] = ("random", "own-view")
    """References on the boards that people played. `bayes` takes minutes there."""
    transplant_games: int = Field(256, ge=0)
    """Held-out boards that base and trained model play again, each with the other one's questions, with as many
    questions, and with none; 0 leaves that out."""
    transfer_games: int = Field(256, ge=0)
    """Boards of each game not seen in training: other wordings, another order of words, a partner that tells nothing,
    one that knows nothing. 0 leaves them out. No service plays them."""

    def files(self) -> list[Path]:
        return [HUMAN]


def board_of(game: NamedGame) -> matching.Parameters:
    """The parameters of the game's boards. Raises UserError: it has no such boards."""
    if not isinstance(game.parameters, matching.Parameters):
        raise UserError(f"The study asking is of the matching game's boards, and {game.name} has none.")
    return game.parameters
