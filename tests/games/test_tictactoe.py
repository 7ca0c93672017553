"""Tic-tac-toe: legal moves, a player that cannot be beaten, and a language of few tokens."""

import asyncio
from functools import cache

import numpy as np
import pytest

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.games import tictactoe
from slim_rl.games.tictactoe import after, best_cells, free_cells, position
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.play import play
from slim_rl.training.tokenizer import chat_corpus, phrase_tokenizer

EMPTY = "012345678"


@pytest.fixture(scope="module")
def kind():
    return tictactoe.kind(Config(), "")


@cache
def outcomes(board, perfect):
    """What "O" may earn where the seats in `perfect` take any of their best cells, and the others any."""
    turn = "first" if len(free_cells(board)) % 2 else "second"
    if _won(board):
        return {-1 if turn == "first" else 1}
    if not free_cells(board):
        return {0}
    cells = best_cells(board) if turn in perfect else free_cells(board)
    return set().union(*(outcomes(after(board, cell), perfect) for cell in cells))


def _won(board):
    rows = (
        [board[i : i + 3] for i in (0, 3, 6)] + [board[i::3] for i in range(3)] + [board[::4], board[2:7:2]]
    )
    return any(row in ("OOO", "XXX") for row in rows)


def test_the_perfect_player_never_loses_whatever_is_played_against_it():
    assert outcomes(EMPTY, ("first",)) == {0, 1}
    assert outcomes(EMPTY, ("second",)) == {0, -1}


def test_two_perfect_players_always_draw():
    assert outcomes(EMPTY, ("first", "second")) == {0}


def test_the_perfect_player_takes_a_win_and_stops_one():
    assert best_cells("OO2XX5678") == [2]
    assert best_cells("OO23X5678") == [2]
    assert best_cells(EMPTY) == list(range(9))
    assert best_cells("O12345678") == [4]


def play_out(kind, names, number):
    line = list(kind.games("evaluate", number + 1))[number]
    game = kind.load(line)
    players = {
        seat: kind.player(name, game, seat, 7 * number + n)
        for n, (seat, name) in enumerate(zip(kind.seats, names, strict=True))
    }
    return asyncio.run(play(Episode(line["game_id"], 0, 0), game, players))


def test_players_at_the_table(kind):
    drawn = [play_out(kind, ("scripted", "scripted"), n) for n in range(10)]
    assert all(episode.facts["drawn"] == 1 and len(episode.turns) == 9 for episode in drawn)
    assert len({tuple(turn.text for turn in episode.turns) for episode in drawn}) > 5
    for n in range(10):
        assert play_out(kind, ("random", "scripted"), n).rewards["second"] >= 0
        assert play_out(kind, ("scripted", "random"), n).rewards["first"] >= 0


def test_the_player_reads_the_board_it_is_shown(kind):
    game, board, rng = kind.load(next(kind.games("train", 1))), EMPTY, np.random.default_rng(3)
    while game.turn is not None:
        assert position(game.observe(game.turn)) == board
        assert kind.legal_moves(game) == [f"[{cell}]" for cell in free_cells(board)]
        moves = [f"[{cell}]" for cell in range(9)]
        assert all(game.allows(move) == (move in kind.legal_moves(game)) for move in moves)
        move = kind.random_move(game, rng)
        board = after(board, int(move[1]))
        game.step(move)


def test_names(kind):
    assert kind.name == "tictactoe" and next(kind.games("train", 1))["game_id"] == "tictactoe-0-0"
    with pytest.raises(ValueError, match="there are random and scripted"):
        kind.player("bayes", kind.load(next(kind.games("train", 1))), "first", 0)
    with pytest.raises(UserError, match="no variants"):
        tictactoe.kind(Config(), "large")


def test_a_move_is_one_token_a_turn_is_read_from_few_and_a_game_fits_in_the_context():
    kind = tictactoe.kind(Config(textarena={"opening_moves": 4}), "")

    def shown(purpose, count):
        return [
            kind.demonstrate(line, kind.seats[n % 2]) for n, line in enumerate(kind.games(purpose, count))
        ]

    tokenizer = phrase_tokenizer(chat_corpus(shown("demonstrations", 512)), kind.words)

    def length(text):
        return len(tokenizer.encode(text, add_special_tokens=False))

    assert [length(f"[{cell}]") for cell in range(9)] == [1] * 9
    observations = [demo.observations for demo in shown("evaluate", 200)]
    lengths = [[length("user\n" + text) for text in texts] for texts in observations]
    first, later = [game[0] for game in lengths], [tokens for game in lengths for tokens in game[1:]]
    # "user", two moves that are told, a heading, three rows, a heading, free moves of up to three rows; rarely a
    # piece that the tokenizer never saw is spelt in two
    assert max(first) <= 20 and max(later) <= 25 and np.mean(np.array(later) <= 11) > 0.99
    markers = 8  # around an observation and a turn, with an empty thought
    assert all(sum(game) + (markers + 1) * len(game) <= 256 for game in lengths)
    for texts in observations:
        assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts)
