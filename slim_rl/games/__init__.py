"""The games: a folder each, found by its name, or a module of the user's own, found by its import path."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from slim_rl.core.errors import UserError
from slim_rl.core.game import ChatRules, Game, Task, Taskset
from slim_rl.core.parameters import GameParameters
from slim_rl.core.player import Player
from slim_rl.runtime.imports import module_of


class NamedGame(NamedTuple):
    name: str
    """As the parameters have it: "chess", "cards:bridge", "my_package.my_game"."""
    parameters: GameParameters
    taskset: Taskset

    def load(self, task: Task) -> Game:
        """The game of a task; raises UserError if it is no `Game`."""
        game = self.taskset.load(task)
        _derived(self.name, type(game), Game, "Game or TextGame")
        return game

    def player(self, name: str, game: Game, seat: str, seed: int) -> Player:
        """A player without a model; raises UserError if the game has none of this name."""
        try:
            return self.taskset.player(name, game, seat, seed)
        except ValueError as error:
            raise UserError(f"The game {self.name} cannot seat {name}: {str(error).removesuffix('.')}.") from None

    def chat_rules(self, name: str, seat: str) -> ChatRules:
        """The rules for a chat model; raises UserError if the game has none."""
        if (rules := self.taskset.chat_rules(seat)) is None:
            raise UserError(f"The game {self.name} has no rules for a chat model, so {name} cannot play it.")
        return rules


def game_parameters(name: str, values: Any) -> GameParameters:
    """`values` as the parameters of the game `name`.

    Raises:
        ValueError: there is no such game.
        pydantic.ValidationError: a parameter is unknown or out of bounds.
    """
    return _module(name).Parameters.model_validate({} if values is None else values)


def load_games(parameters: Mapping[str, GameParameters], seed: int) -> dict[str, NamedGame]:
    """The games that the parameters name.

    Raises:
        UserError: a game cannot be played with these parameters.
    """
    games = {}
    for name, given in parameters.items():
        module, (base, _, variant) = _module(name), name.partition(":")
        if variant and not getattr(module, "VARIANTS", False):
            raise UserError(f"The game {base} has no variants; name it {base}, not {name}.")
        if isinstance(module.taskset, type):
            _derived(name, module.taskset, Taskset, "Taskset")
        taskset = module.taskset(given, seed, variant)
        _derived(name, type(taskset), Taskset, "Taskset")
        if len(given.seating) != len(taskset.seats):
            raise UserError(
                f"games.{name}.seating names {len(given.seating)} players ({', '.join(given.seating)}), but the game "
                f"has the seats {', '.join(taskset.seats)}."
            )
        games[name] = NamedGame(name, given, taskset)
    return games


def policy_seats(game: NamedGame) -> list[str]:
    """The seats that the policy takes."""
    pairs = zip(game.taskset.seats, game.parameters.seating, strict=True)
    return [seat for seat, name in pairs if name == "policy"]


def file_name(name: str) -> str:
    """The name of a game as a file name."""
    return name.replace(":", "-").replace("/", "-")


def _module(name: str) -> ModuleType:
    return module_of(__name__, "game", name.partition(":")[0], needs=("Parameters", "taskset"))


def _derived(name: str, part: type, base: type, bases: str) -> None:
    if not issubclass(part, base):
        raise UserError(f"{part.__name__} of the game {name} does not derive from slim_rl.core.game's {bases}.")
