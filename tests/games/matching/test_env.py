"""The rules, as players meet them through `MatchingEnv`."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.tasks import MatchingTaskset

BEST = "[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"
STATE = {
    "table": [[90, 10, 20], [30, 80, 40], [50, 60, 70]],
    "mask1": [[1, 0, 0], [0, 0, 0], [0, 0, 1]],
    "mask2": [[0, 1, 1], [1, 1, 1], [0, 1, 1]],
    "scale1": 1.0,
    "scale2": 2.5,
    "best_assignment_reward": 240,
}


@pytest.fixture
def env():
    env = MatchingEnv(max_turns=10)
    env.reset(STATE)
    return env


def test_each_player_sees_its_own_numbers_on_its_own_scale(env):
    observation, info = env.reset(STATE)
    seen = observation["player-1"].partition("You see:\n")[2].splitlines()
    assert [line for line in seen if not line.endswith("?")] == [
        "Ava Li - BLEU: 90",
        "Sofia Patel - GloVe: 70",
        "Turns left: 5",
    ]
    assert seen[1:3] == ["Ava Li - Electra: ?", "Ava Li - GloVe: ?"] and len(seen) == 10
    assert "You see:\nAva Li - BLEU: ?\nAva Li - Electra: 25\nAva Li - GloVe: 50\n" in observation["player-2"]
    assert (observation["turn_player"], observation["done"]) == ("player-1", False)
    assert observation["obs_str"] == observation["player-1"]
    assert info["player-1.unknown_cells"] == 7
    observation, _, _ = env.step("[message] hi")  # the other one reads its prompt when its first turn comes
    assert observation["obs_str"].endswith("Partner: [message] hi") and "Ava Li - Electra: 25" in observation["obs_str"]


def test_a_game_from_the_first_word_to_the_reward(env):
    observation, done, _ = env.step("[message] Hello")
    assert (observation["player-2"], observation["turn_player"]) == ("Partner: [message] Hello", "player-2")
    assert not done
    observation, _, _ = env.step("[message] Hi")
    observation, _, _ = env.step(BEST)
    assert "[accept] or [reject]" in observation["player-2"]
    observation, done, info = env.step("[accept]")
    assert done and observation["turn_player"] is None
    assert env.get_normalized_reward() == 1.0
    assert (info["score"], info["score_norm"], info["num_msgs"]) == (240, 1.0, 2)


def test_rows_are_reviewers_in_the_score(env):
    env.step("[propose] Proposal:\nElectra: Ava Li\nGloVe: Daniel Nguyen\nBLEU: Sofia Patel")
    env.step("[accept]")
    assert env.get_normalized_reward() == pytest.approx((10 + 40 + 50) / 240)


def test_a_proposal_must_be_answered_and_once_rejected_is_off_the_table(env):
    env.step(BEST)
    observation, _, _ = env.step("[message] let me think")
    assert observation["player-2"] == "Error: A proposal was made. Answer it with [accept] or [reject]."
    observation, done, _ = env.step("[reject]")
    assert (observation["turn_player"], done, env.get_normalized_reward()) == ("player-1", False, 0.0)
    observation, _, _ = env.step("[accept]")
    assert observation["player-1"] == "Error: There is no proposal to answer."


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Hello", "A turn begins with [message], [propose], [accept] or [reject]."),
        ("[message]  ", "Nothing stands after [message]."),
        ("[think] hm", "A turn begins with"),
        ("[accept]", "There is no proposal to answer."),
        ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Ava Li\nGloVe: Sofia Patel", "line 2"),
        ("[propose] Proposal:\nBLEU: Ava Li", "Electra"),
        ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Nobody\nGloVe: Sofia Patel", "Nobody"),
    ],
)
def test_an_error_goes_back_to_the_speaker_who_speaks_again(env, text, error):
    observation, done, info = env.step(text)
    assert error.lower() in observation["player-1"].lower()
    assert observation["player-1"].startswith("Error: ")
    assert (observation["player-2"], observation["turn_player"], done) == ("", "player-1", False)
    assert info["player-1.errors"] == 1


def test_without_an_agreement_before_the_limit_the_reward_is_zero():
    env = MatchingEnv(max_turns=3)
    env.reset(STATE)
    for _ in range(3):
        _, done, info = env.step("[message] and on")
    assert done and info["truncated"] and env.get_normalized_reward() == 0.0
    with pytest.raises(ValueError, match="This game is over"):
        env.step("[message] one more")
    with pytest.raises(ValueError, match="call reset"):
        MatchingEnv().step("[message] hello")


def test_what_was_asked_and_learnt_is_counted(env):
    env.step("[message] What is Ava Li's score for BLEU?")  # sees it itself: useless
    env.step("[message] I do not know Ava Li's score for BLEU.")
    env.step("[message] What is Ava Li's score for Electra?")
    env.step("[message] Ava Li's score for Electra is 25.")
    env.step("[message] Electra for Ava, and GloVe for Daniel and Sofia?")  # asked before, unseen, seen
    _, _, info = env.step("[message] It is 25.")
    assert [info[f"player-1.{name}"] for name in ("cells_asked", "useful_cells", "answers")] == [5, 2, 1]


def test_the_oracle_knows_what_was_learnt_and_no_more(env):
    _, _, before = env.step("[message] What is Daniel Nguyen's score for Electra?")
    _, _, after = env.step("[message] Daniel Nguyen's score for Electra is 200.")
    game = env.game
    known = game.board.masks[0].copy()
    assert before["player-1.oracle_given_information"] == before["player-1.own_view"]
    known[1, 1] = True
    values = np.where(known, game.board.table, 50)
    best = max(permutations(range(3)), key=lambda papers: sum(values[i, papers[i]] for i in range(3)))
    earned = sum(game.board.table[i, best[i]] for i in range(3))
    assert after["player-1.oracle_given_information"] == earned / 240


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 8),
    selection=st.sampled_from(["stakes", "dialop"]),
    turns=st.lists(st.sampled_from(["[message] a?", "junk", "[accept]", "[reject]", "propose"]), max_size=30),
    seed=st.integers(0, 50),
)
def test_whatever_is_said_the_rules_hold(size, selection, turns, seed):
    [task] = MatchingTaskset(Parameters(size=size, selection=selection), seed).tasks("train", 1)
    env = MatchingEnv(max_turns=20)
    observation, _ = env.reset(task.state)
    assert observation["player-1"] == task.prompt
    speaker, done = "player-1", False
    for text in turns:
        if done:
            break
        if text == "propose":
            text = "[propose] " + format_proposal(tuple(np.random.default_rng(seed).permutation(size)))
        observation, done, _ = env.step(text)
        erred = observation[speaker].startswith("Error")
        assert done or (observation["turn_player"] == speaker) == erred
        speaker = observation["turn_player"]
        assert 0 <= env.get_normalized_reward() <= 1


MESSAGE = {"type": "message", "message": {"data": "x"}, "player": 0}


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("dance", "The action log is not a list"),
        ([MESSAGE, {"type": "dance", "player": 1}], r"Action 2 of the action log .* 'dance'"),
        ([MESSAGE, "dance"], "Action 2 of the action log cannot be applied: TypeError"),
        ([{"type": "message", "player": 0}], "Action 1 .* KeyError 'message'"),
        ([{"type": "message", "message": {"data": None}, "player": 0}], "Action 1 .* TypeError"),
        ([{**MESSAGE, "player": 2}], "Action 1 .* KeyError 2"),
        ([{"type": "proposal_response", "response": {"accept": True}, "player": 1}], "was not made"),
        *(
            ([{"type": "proposal", "proposal_ids": pairs, "player": 0}], "Action 1 .* a paper of its own")
            for pairs in ([[0, 0], [1, 0], [2, 0]], [[0, 0], [1, 1], [2, 9]], [[0, 0], [1, 1]])
        ),
        ([{"type": "proposal", "proposal_ids": [[0, 1, 2]], "player": 0}], "Action 1 .* ValueError"),
    ],
)
def test_a_damaged_log_is_rejected_in_a_sentence_with_the_action(log, sentence):
    with pytest.raises(ValueError, match=sentence):
        MatchingEnv().reset(STATE, action_log=log)
    with pytest.raises(ValueError, match=sentence):
        MatchingEnv().reset({**STATE, "action_log": log})
