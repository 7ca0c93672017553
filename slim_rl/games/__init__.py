"""The games: a folder each, found by its name, or a module of the user's own, found by its import path."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from slim_rl.core.errors import UserError
from slim_rl.core.game import Taskset
from slim_rl.core.parameters import GameParameters


class NamedGame(NamedTuple):
    name: str
    """As the parameters have it: "chess", "cards:bridge", "my_package.my_game"."""
    parameters: GameParameters
    taskset: Taskset


def game_parameters(name: str, given: Any) -> GameParameters:
    """`given` as the parameters of the game `name`.

    Raises:
        ValueError: there is no such game.
        pydantic.ValidationError: a parameter is unknown or out of bounds.
    """
    return _module(name).Parameters.model_validate({} if given is None else given)


def load_games(parameters: Mapping[str, GameParameters], seed: int) -> dict[str, NamedGame]:
    """The games that the parameters name.

    Raises:
        UserError: a game cannot be played with these parameters.
    """
    games = {}
    for name, given in parameters.items():
        taskset = _module(name).taskset(given, seed, name.partition(":")[2])
        if len(given.seating) != len(taskset.seats):
            raise UserError(
                f"games.{name}.seating names {len(given.seating)} players ({', '.join(given.seating)}), but the game "
                f"has the seats {', '.join(taskset.seats)}."
            )
        games[name] = NamedGame(name, given, taskset)
    return games


def policy_seats(game: NamedGame) -> list[str]:
    """The seats that the policy takes in one task or another."""
    every = game.parameters.rotate
    pairs = zip(game.taskset.seats, game.parameters.seating, strict=True)
    return [seat for seat, name in pairs if every or name == "policy"]


def file_name(name: str) -> str:
    """The name of a game as a file name."""
    return name.replace(":", "-").replace("/", "-")


def _module(name: str) -> ModuleType:
    path = name.partition(":")[0]
    ours = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    if path in ours:
        return import_module(f"{__name__}.{path}")
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise ValueError(
            f"there is no game {name!r}; name one of {', '.join(ours)}, or the import path of your own module"
        ) from None
    missing = [part for part in ("Parameters", "taskset") if not hasattr(module, part)]
    if missing:
        raise ValueError(f"the module {path} is not a game: it has no {' and no '.join(missing)}")
    return module
