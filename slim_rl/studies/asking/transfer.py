"""Games that training did not play: what changes in each."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from slim_rl.games import NamedGame, matching
from slim_rl.studies.asking.parameters import board_of


class Change(NamedTuple):
    title: str
    parameters: Mapping[str, Any]
    partner: str = ""
    """Empty for the one that the model meets elsewhere in the evaluation."""


CHANGES = {
    "wordings": Change("Answers in unseen sentences", {"wordings": "held-out"}),
    "reordered": Change("Answers in another order of words", {"wordings": "reordered"}),
    "impatient": Change("Partner tells no score", {"patience": (0, 0)}),
    "ignorant": Change("Partner never knows", {}, "ignorant"),
}


def changes(game: NamedGame) -> Iterator[tuple[str, Change]]:
    """By name, those of CHANGES that make another game than `game`."""
    board = board_of(game)
    for name, change in CHANGES.items():
        met = not change.partner or change.partner in board.seating
        if "patience" in change.parameters and board.patience is None:
            continue  # the model never read how many scores are left
        if not met or any(getattr(board, n) != value for n, value in change.parameters.items()):
            yield name, change


def with_parameters(game: NamedGame, parameters: Mapping[str, Any], seed: int) -> NamedGame:
    """The game with other parameters."""
    parsed = matching.Parameters.model_validate(parameters)
    return NamedGame(game.name, parsed, matching.taskset(parsed, seed, ""))
