"""People's recorded games: they replay to their recorded score, and damaged ones are rejected in a sentence."""

import json
import re
from pathlib import Path

import pytest

from slim_rl.core.errors import UserError
from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.human import human_games, replay, transcript

HUMAN = Path(__file__).parents[3] / "data/human/human_games.jsonl"


@pytest.fixture(scope="module")
def people():
    return human_games(HUMAN)


def test_every_recorded_game_replays_to_its_recorded_score_in_the_games_language(people):
    assert len(people) == 100
    for task in people:
        game, recorded = replay(task), task.state
        reward = game.rewards()["player-1"]
        assert game.turn is None and game.game_id == task.game_id == f"human-{recorded['game_id']}"
        assert reward * recorded["best_assignment_reward"] == pytest.approx(recorded["proposal_reward"])
        assert reward == pytest.approx(recorded["result"]["norm"])
        turns = transcript(task)
        assert len(turns) == len(task.state["action_log"]) and turns[-1][1] == "[accept]"
        assert all(re.match(r"\[(message|propose|accept|reject)\]", text) for _, text in turns)
        assert not any("<br/>" in text for _, text in turns if text.startswith("[propose]"))


def test_a_game_can_be_continued(people):
    state = people[0].state
    env = MatchingEnv(max_turns=100)
    observation, _ = env.reset(state, action_log=state["action_log"][:3])
    last = state["action_log"][2]
    assert observation["turn_player"] == f"player-{2 - last['player']}"
    assert last["message"]["data"] in observation["obs_str"]
    _, done, _ = env.step("[message] go on")
    assert not done
    observation, _ = MatchingEnv().reset(state, action_log=[])
    assert (observation["turn_player"], observation["done"]) == ("player-1", False)


def without(key):
    return lambda state: {name: value for name, value in state.items() if name != key}


def with_(**changes):
    return lambda state: {**state, **changes}


def first_action(**changes):
    return lambda state: {**state, "action_log": [{**state["action_log"][0], **changes}]}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda state: [state], "it is not a JSON object"),
        (without("action_log"), "action_log is missing"),
        (with_(action_log=None), "The action log is not a list"),
        (first_action(type="dance"), "Action 1 of the action log cannot be applied"),
        (first_action(message={"data": "\ud800"}), "surrogates not allowed"),
        (without("proposal_reward"), "proposal_reward is missing"),
        (with_(proposal_reward=None), "it records proposal_reward None, but its log earns 599"),
        (with_(proposal_reward=float("nan")), "it records proposal_reward nan"),
        (with_(proposal_reward=598), "it records proposal_reward 598"),
        (without("game_id"), "game_id is missing"),
        (with_(game_id="\ud800"), "surrogates not allowed"),
        (with_(game_id=None), "its game_id is None, not a whole number"),
        (with_(scale1=10**19), "scale1 must be a number greater than 0 and at most 1000"),
        (with_(table=None), "table must be a square matrix"),
    ],
)
def test_a_damaged_game_is_rejected_in_a_sentence_with_its_line(tmp_path, damage, reason):
    state = json.loads(HUMAN.read_text().splitlines()[0])
    path = tmp_path / "people.jsonl"
    path.write_text(json.dumps(state) + "\n" + json.dumps(damage(state)))
    with pytest.raises(UserError, match=re.escape(reason)) as error:
        human_games(path)
    assert f"{path}, line 2 is not a human game: " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 5000, '{"game_id": ' + "1" * 5000 + "}", "\x00"])
def test_a_line_that_is_not_json_is_rejected_in_a_sentence(tmp_path, text):
    path = tmp_path / "people.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(UserError, match=r"people\.jsonl, line 1 is not a human game: "):
        human_games(path)
    with pytest.raises(UserError, match="There is no file of human games"):
        human_games(tmp_path)
