"""Tic-tac-toe (TextArena's), with its legal moves and a perfect player."""

import itertools
import re
from functools import cache

import numpy as np

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.games.textarena import TextArenaGame, TextArenaKind
from slim_rl.players.player import Player

_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
_FIRST, _SECOND = "O", "X"  # TextArena's marks
_RULE = "\n---+---+---\n"


class TicTacToeKind(TextArenaKind):
    """See `slim_rl.games.game.GameKind`. A position is a string of nine: a mark, or the number of the cell."""

    opponents = ("random", "scripted")

    def __init__(self, config: Config):
        super().__init__(config, "tictactoe", "TicTacToe-v0")

    @property
    def words(self) -> list[str]:
        """Every row that a board can have, every move that is told, and the moves that are free in a row.

        Between two of its moves a player then reads mostly 11 tokens, three of them the board's rows; were each
        free move a token, and each number, it would be up to 20.
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

    def player(self, name: str, game: TextArenaGame, seat: str, seed: int) -> Player:
        if name == "scripted":
            return PerfectPlayer(seed)
        if name == "random":
            return super().player(name, game, seat, seed)
        raise ValueError(f"there is no player {name!r} of tictactoe; there are random and scripted")


class PerfectPlayer:
    """Says any of the moves that are best against the best answers."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    async def respond(self, observation: str) -> str:
        return self.turn(observation)

    def recall(self, observation: str, text: str) -> None:
        self.turn(observation)

    def turn(self, observation: str) -> str:
        return f"[{self._rng.choice(best_cells(position(observation)))}]"


def position(observation: str) -> str:
    """The position that an observation shows."""
    return "".join(
        re.findall(r"[0-8OX]", observation.partition("Current Board:")[2].partition("Available")[0])
    )


@cache
def value(board: str) -> int:
    """What best play earns the side to move: 1, 0 or -1."""
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


def kind(config: Config, variant: str) -> TicTacToeKind:
    if variant:
        raise UserError(f"tictactoe has no variants, but {variant!r} was asked for.")
    return TicTacToeKind(config)
