"""Tic-tac-toe: legal moves, a player that cannot be beaten, and a language of few tokens."""

from functools import cache

import numpy as np
import pytest

from slim_rl.games.textarena.parameters import Parameters
from slim_rl.games.tictactoe.tasks import TicTacToeTaskset, after, best_cells, free_cells, position
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer

EMPTY = "012345678"


@pytest.fixture(scope="module")
def taskset():
    return TicTacToeTaskset(Parameters(), seed=0)


@cache
def outcomes(board, perfect):
    """What "O" may earn if the seats in `perfect` take any of their best cells and the others any cell."""
    turn = "first" if len(free_cells(board)) % 2 else "second"
    if _won(board):
        return {-1 if turn == "first" else 1}
    if not free_cells(board):
        return {0}
    cells = best_cells(board) if turn in perfect else free_cells(board)
    return set().union(*(outcomes(after(board, cell), perfect) for cell in cells))


def _won(board):
    rows = [board[i : i + 3] for i in (0, 3, 6)] + [board[i::3] for i in range(3)] + [board[::4], board[2:7:2]]
    return any(row in ("OOO", "XXX") for row in rows)


def test_the_perfect_player_never_loses_whatever_is_played_against_it_and_draws_with_itself():
    assert outcomes(EMPTY, ("first",)) == {0, 1}
    assert outcomes(EMPTY, ("second",)) == {0, -1}
    assert outcomes(EMPTY, ("first", "second")) == {0}


def test_the_perfect_player_takes_a_win_and_stops_one():
    assert best_cells("OO2XX5678") == [2]
    assert best_cells("OO23X5678") == [2]
    assert best_cells(EMPTY) == list(range(9))
    assert best_cells("O12345678") == [4]


def test_players_in_their_seats(taskset, play_out):
    for n, task in enumerate(taskset.tasks("evaluate", 5)):
        assert play_out(taskset, task, ("scripted", "scripted"), 7 * n).metrics["drawn"] == 1
        assert play_out(taskset, task, ("random", "scripted"), 7 * n).rewards["second"] >= 0
        assert play_out(taskset, task, ("scripted", "random"), 7 * n).rewards["first"] >= 0


def test_the_player_reads_the_board_it_is_shown(taskset):
    game, board, rng = taskset.load(next(taskset.tasks("train", 1))), EMPTY, np.random.default_rng(3)
    while game.turn is not None:
        assert position(game.read(game.turn)) == board
        assert taskset.legal_moves(game) == [f"[{cell}]" for cell in free_cells(board)]
        moves = [f"[{cell}]" for cell in range(9)]
        assert all(game.allows(move) == (move in taskset.legal_moves(game)) for move in moves)
        move = taskset.random_move(game, rng)
        board = after(board, int(move[1]))
        game.move(move)


def test_a_move_is_one_token_a_turn_is_read_from_few_and_a_game_fits_in_the_context():
    taskset = TicTacToeTaskset(Parameters(opening_moves=4), seed=0)

    def shown(purpose, count):
        return [taskset.demonstrate(task, taskset.seats[n % 2]) for n, task in enumerate(taskset.tasks(purpose, count))]

    tokenizer = small_tokenizer(chat_corpus(shown("demonstrations", 256)), taskset.words)

    def length(text):
        return len(tokenizer.encode(text, add_special_tokens=False))

    assert [length(f"[{cell}]") for cell in range(9)] == [1] * 9
    for first, *later in (demo.observations for demo in shown("evaluate", 50)):
        # "user", reports of two moves, a heading, three rows, a heading, free moves of up to three rows; in rare cases a
        # piece that the tokenizer has not seen takes two tokens
        lengths = [length("user\n" + text) for text in (first, *later)]
        assert lengths[0] <= 20 and max(lengths) <= 25 and np.median(lengths[1:] or [0]) <= 11
        markers = 8  # around an observation and a turn, with an empty thought
        assert sum(lengths) + (markers + 1) * len(lengths) <= 256
        assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in (first, *later))
