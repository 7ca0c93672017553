"""Games that training did not have: what changes in each."""

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
    "limit": Change("At most 3 turns", {"max_turns": 6}),
    "impatient": Change("Partner tells no score", {"patience": (0, 0)}),
    "seen": Change("Sees 40 % of the cells", {"p_agent": 0.4}),
    "rough": Change("Knows 60 % of the cells roughly", {"p_rough": 0.6}),
    "size-4": Change("4 by 4 boards", {"size": 4}),
    "size-5": Change("5 by 5 boards", {"size": 5}),
    "weighs": Change("Partner weighs proposals", {"always_accept": False}),
    "ignorant": Change("Partner never knows", {}, "ignorant"),
}
REFERENCES = ("optimal",)
"""Who plays them besides the checkpoints."""


def changes(game: NamedGame) -> Iterator[tuple[str, Change]]:
    """By name, those of CHANGES that make another game than `game`."""
    board = board_of(game)
    for name, change in CHANGES.items():
        met = not change.partner or change.partner in board.seating
        unfair = {
            "p_rough": not board.p_rough,  # such scores would be new to the model
            "max_turns": not board.turns_told,  # who is not told a limit cannot keep it
            "patience": board.patience is None,  # the model never read how many scores are left
        }
        if any(unfair.get(name) for name in change.parameters):
            continue
        if not met or any(getattr(board, n) != value for n, value in change.parameters.items()):
            yield name, change


def changed(game: NamedGame, change: Change, seed: int) -> NamedGame:
    return with_parameters(game, {**board_of(game).model_dump(), **change.parameters}, seed)


def with_parameters(game: NamedGame, parameters: Mapping[str, Any], seed: int) -> NamedGame:
    """The game with other parameters."""
    given = matching.Parameters.model_validate(parameters)
    return NamedGame(game.name, given, matching.taskset(given, seed, ""))
