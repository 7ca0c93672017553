"""The tasks of tic-tac-toe, its legal moves, and a perfect player."""

import itertools
import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from slim_rl.core.player import ScriptedPlayer
from slim_rl.games.textarena.adapter import TextArenaGame
from slim_rl.games.textarena.parameters import Parameters
from slim_rl.games.textarena.tasks import TextArenaTaskset

_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
_FIRST, _SECOND = "O", "X"  # TextArena's marks
_RULE = "\n---+---+---\n"


class TicTacToeTaskset(TextArenaTaskset):
    """Tic-tac-toe. A position is a string of nine characters: a mark, or the number of a free cell."""

    opponents = ("random", "scripted")

    def __init__(self, parameters: Parameters, seed: int):
        super().__init__(parameters, seed, "tictactoe", "TicTacToe-v0")

    @property
    def words(self) -> Sequence[str]:
        """Every row that a board can have, every report of a move, and the free moves in a row.

        Between two of its moves a player then usually reads 11 tokens, three of them the board's rows. With a token
        for each free move and number it would be up to 20.
        """
        numbers = ("012", "345", "678")
        rows = [
            " " + " | ".join(cells) + " " + end
            for row, end in zip(numbers, (_RULE, _RULE, ""), strict=True)
            for cells in itertools.product(*((number, _FIRST, _SECOND) for number in row))
        ]
        told = [
            f"Player {player} placed their symbol ({mark}) in cell {cell}."
            for player, mark in enumerate((_FIRST, _SECOND))
            for cell in range(9)
        ]
        free = [
            "', '".join(f"[{cell}]" for cell in cells)
            for row in numbers
            for count in (3, 2, 1)  # the longest that fits is taken first
            for cells in itertools.combinations(row, count)
        ]
        return [*dict.fromkeys(rows), *told, *free]

    def legal_moves(self, game: TextArenaGame) -> list[str]:
        board = itertools.chain(*game.state.game_state["board"])
        return [f"[{cell}]" for cell, mark in enumerate(board) if not mark]

    def player(self, name: str, game: TextArenaGame, seat: str, seed: int) -> ScriptedPlayer:
        return PerfectPlayer(seed) if name == "scripted" else super().player(name, game, seat, seed)


class PerfectPlayer(ScriptedPlayer):
    """Plays a random one of the best moves."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def turn(self, observation: str) -> str:
        return f"[{self._rng.choice(best_cells(position(observation)))}]"


def position(observation: str) -> str:
    """The position that an observation shows."""
    return "".join(re.findall(r"[0-8OX]", observation.partition("Current Board:")[2].partition("Available")[0]))


@cache
def value(board: str) -> int:
    """What the side to move earns under best play: 1, 0 or -1."""
    if any(board[a] == board[b] == board[c] for a, b, c in _LINES):
        return -1
    return max((-value(after(board, cell)) for cell in free_cells(board)), default=0)


def best_cells(board: str) -> list[int]:
    return [cell for cell in free_cells(board) if -value(after(board, cell)) == value(board)]


def free_cells(board: str) -> list[int]:
    return [int(sign) for sign in board if sign.isdecimal()]


def after(board: str, cell: int) -> str:
    """The position once the side to move has taken `cell`."""
    mark = _SECOND if len(free_cells(board)) % 2 == 0 else _FIRST
    return board[:cell] + mark + board[cell + 1 :]
