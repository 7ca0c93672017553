"""Scores that the first player knows roughly: what it reads, what they count for, and who asks for them."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from slim_rl.games.matching.board import Board, generate_boards, posterior_mean
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import answer, question
from slim_rl.games.matching.reader import asked_cells, asks_something
from slim_rl.games.matching.rules import Limits, MatchingGame, read_prompt, read_rough
from slim_rl.games.matching.tasks import MatchingTaskset

GIVEN = Parameters(p_agent=0.2, p_rough=0.5, p_partner=1.0, patience=(1, 5), instructions="full")


@pytest.fixture(scope="module")
def boards():
    return list(generate_boards(200, 0, GIVEN))


def test_half_of_what_it_does_not_see_is_known_roughly_and_survives_being_stored(boards):
    seen, rough = (np.stack(masks) for masks in zip(*((b.masks[0], b.rough) for b in boards), strict=True))
    assert not (seen & rough).any() and rough[~seen].mean() == pytest.approx(0.5, abs=0.05)
    stored = Board.from_game_state(json.loads(json.dumps(boards[0].to_game_state())))
    assert (stored.rough == boards[0].rough).all() and (stored.bounds(0) == boards[0].bounds(0)).all()


def test_a_rough_score_is_read_as_the_middle_of_ten_by_the_first_player_alone(boards):
    game = MatchingGame(boards[0], Limits(8))
    first, second = (game.read(seat) for seat in game.seats)
    exact, rough, table = read_prompt(first), read_rough(first), boards[0].table
    assert (exact == np.where(boards[0].masks[0], table, -1)).all()
    assert (rough == np.where(boards[0].rough, table // 10 * 10 + 5, -1)).all()
    assert "±5" in first.partition("You see:")[0] and first.count("±5") == 1 + boards[0].rough.sum()
    assert (read_prompt(second) == table).all() and "±" not in second


def test_what_is_known_counts_by_its_middle_until_it_is_told(boards):
    game = MatchingGame(boards[0], Limits(8))
    low, high = game.bounds("player-1")
    unknown = ~boards[0].masks[0] & ~boards[0].rough
    assert game.metrics()["player-1.unknown_cells"] == unknown.sum() > 0
    assert {0, 9, 99} >= set((high - low).ravel().tolist())
    assert ((low <= boards[0].table) & (boards[0].table <= high)).all()
    cell = tuple(np.argwhere(boards[0].rough)[0].tolist())
    game.move(question(*cell, exactly=True))
    game.move(f"[message] {answer(*cell, int(boards[0].table[cell]))}")
    assert game.bounds("player-1")[:, *cell].tolist() == [boards[0].table[cell]] * 2
    assert game.metrics()["player-1.useful_cells"] == game.metrics()["player-1.answers"] == 1


def test_the_player_that_infers_stays_within_what_it_knows(boards):
    for board in boards[:5]:
        (low, high), mean = board.bounds(0), posterior_mean(board, 0, GIVEN, np.random.default_rng(0))
        assert (low <= mean).all() and (mean <= high).all()
        unknown = high - low == 99
        assert mean[unknown].min() > 20 and mean[unknown].max() < 80


def test_a_board_that_is_recited_asks_for_nothing(boards):
    game = MatchingGame(boards[0], Limits(8))
    [board] = re.findall(r"You see:\n(.*?)\nTurns", game.read("player-1"), re.DOTALL)
    rough = " ".join(line for line in board.splitlines() if line.endswith("±5"))
    assert rough and not asked_cells(rough, 3) and not asks_something(rough)


def test_demonstrators_ask_for_either_kind_first_and_word_them_differently():
    taskset, first = MatchingTaskset(GIVEN, seed=0), []
    for task in list(taskset.tasks("demonstrations", 160))[40:]:  # the first lesson asks nothing
        rough, turns = taskset.load(task).board.rough, taskset.demonstrate(task, "player-1").turns
        kinds = [bool(rough[asked_cells(turn.removeprefix("[message] "), 3)[0]]) for turn in turns]
        assert kinds == ["exactly" in turn.lower() for turn in turns]
        if len(set(kinds)) == 2:
            first.append(kinds[0])
    assert min(Counter(first).values()) > len(first) / 4 > 5


@pytest.mark.parametrize("unfit", [{"selection": "dialop"}, {"p_partner": 0.9}])
def test_rough_scores_need_a_partner_that_sees_the_same_numbers_and_all_of_them(unfit):
    with pytest.raises(ValidationError, match=r"without private scales that the partner sees whole: set scale_range"):
        Parameters(p_rough=0.5, **unfit)
