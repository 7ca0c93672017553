"""Tic-tac-toe (TextArena's), with its legal moves and a perfect player."""

from slim_rl.core.game import Taskset
from slim_rl.games.textarena.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.tictactoe.tasks import TicTacToeTaskset

    return TicTacToeTaskset(parameters, seed)
