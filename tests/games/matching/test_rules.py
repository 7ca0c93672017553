"""The rules: what each player reads, whose turn it is, what is counted and what a game earns."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching.board import Board, generate_boards
from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.rules import Limits, MatchingGame, opening, read_prompt
from slim_rl.games.matching.tasks import MatchingTaskset

BEST = "[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
WORSE = "[propose] Proposal:\nElectra: Ava Li\nGloVe: Daniel Nguyen\nBLEU: Sofia Patel"
STATE = {
    "table": [[90, 10, 20], [30, 80, 40], [50, 60, 70]],
    "mask1": [[1, 0, 0], [0, 0, 0], [0, 0, 1]],
    "mask2": [[0, 1, 1], [1, 1, 1], [0, 1, 1]],
    "scale1": 1.0,
    "scale2": 2.5,
    "best_assignment_reward": 240,
}


def game_of(*texts, **limits):
    """A game on the board of STATE after these turns."""
    game = MatchingGame(Board.from_game_state(STATE), Limits(**{"max_turns": 10, **limits}))
    for text in texts:
        game.move(text)
    return game


def test_each_player_sees_its_own_numbers_on_its_own_scale():
    game = game_of()
    first, second = (game.read(seat) for seat in game.seats)
    cells = first.partition("You see:\n")[2].splitlines()
    assert cells[0] == "Ava Li - BLEU: 90" and cells[8:] == ["Sofia Patel - GloVe: 70", "Turns left: 5"]
    assert cells[1:3] == ["Ava Li - Electra: ?", "Ava Li - GloVe: ?"]
    assert "You see:\nAva Li - BLEU: ?\nAva Li - Electra: 25\nAva Li - GloVe: 50\n" in second
    assert game.metrics()["player-1.unknown_cells"] == 7


def test_the_environment_plays_a_game_from_reset_to_the_reward():
    env = MatchingEnv(max_turns=10)
    observation, info = env.reset(STATE)
    assert (observation["turn_player"], observation["done"], info["score_norm"]) == ("player-1", False, 0)
    observation, done, _ = env.step("[message] Hello")  # the other one reads its prompt when its first turn comes
    assert observation["turn_player"] == "player-2" and "Ava Li - Electra: 25" in observation["obs_str"]
    assert observation["obs_str"].endswith("Partner: [message] Hello") and not done
    env.step("[message] Hi")
    assert "[accept] or [reject]" in env.step(BEST)[0]["obs_str"]
    observation, done, info = env.step("[accept]")
    assert done and observation["turn_player"] is None
    assert (info["score_norm"], info["player-1.message_count"], info["truncated"]) == (1.0, 1, False)
    said = {"type": "message", "message": {"data": "Hi"}, "player": 0}
    assert env.reset({**STATE, "action_log": [said]})[0]["turn_player"] == "player-2"


def test_a_proposal_must_be_answered_and_once_rejected_is_off_the_table():
    game = game_of(BEST, "[message] let me think")
    assert game.turn == "player-2" and game.read("player-2").splitlines()[-1].startswith("Error: ")
    game.move("[reject]")
    assert (game.turn, game.quality) == ("player-1", 0.0)
    game.move("[accept]")
    assert game.read("player-1").splitlines()[-1].startswith("Error: ") and game.turn == "player-1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Hello", "[message]"),
        ("[message]  ", "[message]"),
        ("[think] hm", "[message]"),
        ("[accept]", "proposal"),
        ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Ava Li\nGloVe: Sofia Patel", "Line 2"),
        ("[propose] Proposal:\nBLEU: Ava Li", "Electra"),
        ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Nobody\nGloVe: Sofia Patel", "Nobody"),
    ],
)
def test_an_error_goes_back_to_the_speaker_who_speaks_again(text, named):
    game = game_of()
    game.read("player-1"), game.read("player-2")
    game.move(text)
    error = game.read("player-1")
    assert error.startswith("Error: ") and named in error
    assert (game.read("player-2"), game.turn, game.metrics()["player-1.errors"]) == ("", "player-1", 1)


@pytest.mark.parametrize("price", [0, 2])
def test_a_game_that_reaches_its_limit_earns_nothing_and_what_was_asked_for_is_paid(price):
    game = game_of("[message] Ava on BLEU?", "[message] I see.", BEST, max_turns=3, patience=1, price=price)
    assert game.turn is None and game.truncated and game.quality == 0
    assert game.rewards() == {"player-1": -price / 100, "player-2": 0}
    with pytest.raises(ValueError, match="over"):
        game.move("[accept]")


def test_each_cell_asked_for_has_its_price_for_the_one_who_asks():
    asks = ("[message] Ava on BLEU and on GloVe, and Ava on BLEU?", "[message] Hm. What do you think?")
    game = game_of(*asks, "[message] Ava on BLEU?", "[message] No.", WORSE, "[accept]", price=5)
    assert game.rewards() == {"player-1": pytest.approx(100 / 240 - 0.15), "player-2": 100 / 240}


def test_what_was_asked_and_learnt_is_counted_and_the_oracle_knows_no_more():
    texts = [
        "What is Ava Li's score for BLEU?",  # sees it itself: useless
        "I do not know Ava Li's score for BLEU.",
        "What is Ava Li's score for Electra?",
        "Ava Li's score for Electra is 25.",
        "Electra for Ava, and GloVe for Daniel and Sofia?",  # asked before, unseen, seen
        "It is 25.",
        "How is Sofia Patel Nguyen score?",  # malformed, and of no paper
        "Hm.",
        "How is Li Sofia score for Electra?",  # malformed
    ]
    game = game_of(*(f"[message] {text}" for text in texts))
    metrics = game.metrics()
    counted = ("question_count", "useful_cells", "answers", "message_count", "malformed_count")
    assert [metrics[f"player-1.{name}"] for name in counted] == [5, 2, 1, 5, 2]
    known = game.board.masks[0].copy()
    known[0, 1] = True
    assert (game.known("player-1") == known).all()
    values = np.where(known, game.board.table, 50)
    best = max(permutations(range(3)), key=lambda papers: sum(values[i, papers[i]] for i in range(3)))
    earned = sum(game.board.table[i, best[i]] for i in range(3))
    assert metrics["player-1.oracle_given_information"] == earned / 240
    assert metrics["player-1.own_view"] == game_of().metrics()["player-1.oracle_given_information"]


@pytest.mark.parametrize("reply", ["Ava Li's is **{}**.", "It is {}!", "BLEU:{}", "({})", "That would be {}%."])
def test_a_score_counts_as_told_however_a_model_marks_it(reply):
    game = game_of("[message] Ava on Electra?", "[message] " + reply.format(25))
    assert game.metrics()["player-1.answers"] == 1


def test_what_is_left_is_told_before_each_turn_of_the_first_player():
    def heard(**limits):
        game, observations = game_of(**limits), []
        game.read("player-1"), game.read("player-2")
        for text in ("Ava on BLEU?", "It is 3.", "Ava on GloVe, on Electra?", "4."):
            game.move(f"[message] {text}")
            observations.append(game.read(game.turn).partition("\n")[2])
        return observations

    assert heard(patience=2) == ["", "Turns left: 4\nScores left: 1", "", "Turns left: 3\nScores left: 0"]
    assert heard() == ["", "", "", ""]


@pytest.mark.parametrize("short", [False, True])
def test_a_prompt_can_be_read_back(short):
    [board] = generate_boards(1, 1, Parameters(size=4))
    for player in (0, 1):
        text = opening(board, player, Limits(8, 3, 2), short)
        assert ("Take turns." in text) != short
        assert (read_prompt(text) == board.numbers(player)).all()
    assert read_prompt("[message] Hello") is None


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 8),
    selection=st.sampled_from(["stakes", "dialop"]),
    turns=st.lists(st.sampled_from(["[message] a?", "junk", "[accept]", "[reject]", "propose"]), max_size=30),
    seed=st.integers(0, 50),
)
def test_whatever_is_said_the_rules_hold(size, selection, turns, seed):
    taskset = MatchingTaskset(Parameters(size=size, selection=selection), seed)
    [task] = taskset.tasks("train", 1)
    game = taskset.load(task)
    assert game.read("player-1") == task.prompt
    for text in turns:
        if (speaker := game.turn) is None:
            break
        if text == "propose":
            text = "[propose] " + format_proposal(tuple(np.random.default_rng(seed).permutation(size)))
        game.move(text)
        erred = "Error" in game.read(speaker)
        assert game.turn is None or (game.turn == speaker) == erred
        assert 0 <= game.quality <= 1
