"""Tic-tac-toe (TextArena's), with its legal moves and a perfect player."""

from slim_rl.core.errors import UserError
from slim_rl.core.game import Taskset
from slim_rl.games.textarena.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.tictactoe.tasks import TicTacToeTaskset

    if variant:
        raise UserError(f"Tic-tac-toe has no variants; name it tictactoe, not tictactoe:{variant}.")
    return TicTacToeTaskset(parameters, seed)
