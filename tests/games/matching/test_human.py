"""People's recorded games: they replay to their recorded score, and damaged ones are rejected in a sentence."""

import json
import re
from pathlib import Path

import pytest

from slim_rl.core.errors import UserError
from slim_rl.games.matching.human import human_games, replay, transcript

HUMAN = Path(__file__).parents[3] / "data/human/human_games.jsonl"


def test_every_recorded_game_replays_to_its_recorded_score_in_the_games_language():
    people = human_games(HUMAN)
    assert len(people) == 100
    for task in people:
        game, recorded = replay(task), task.state
        reward = game.rewards()["player-1"]
        assert game.turn is None and game.game_id == task.game_id == f"human-{recorded['game_id']}"
        assert reward * recorded["best_assignment_reward"] == pytest.approx(recorded["proposal_reward"])
        assert reward == pytest.approx(recorded["result"]["norm"])
        turns = transcript(task)
        assert len(turns) == len(recorded["action_log"]) and turns[-1][1] == "[accept]"
        assert all(re.match(r"\[(message|propose|accept|reject)\]", text) for _, text in turns)
        assert not any("<br/>" in text for _, text in turns if text.startswith("[propose]"))


MESSAGE = {"type": "message", "message": {"data": "x"}, "player": 0}


def without(key):
    return lambda state: {name: value for name, value in state.items() if name != key}


def changed(**changes):
    return lambda state: {**state, **changes}


def proposal(*pairs):
    return changed(action_log=[{"type": "proposal", "proposal_ids": pairs, "player": 0}])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda state: [state], "JSON object"),
        (without("action_log"), "action_log"),
        (without("proposal_reward"), "proposal_reward"),
        (without("game_id"), "game_id"),
        (changed(proposal_reward=None), "proposal_reward None"),
        (changed(proposal_reward=float("nan")), "proposal_reward nan"),
        (changed(proposal_reward=598), "proposal_reward 598, but its log earns 599"),
        (changed(game_id="\ud800"), "surrogates"),
        (changed(game_id=None), "game_id is None"),
        (changed(scale1=10**19), "scale1"),
        (changed(table=None), "table"),
        (changed(action_log=None), "not a list"),
        (changed(action_log="dance"), "not a list"),
        (changed(action_log=[MESSAGE, {"type": "dance", "player": 1}]), "Action 2 .* 'dance'"),
        (changed(action_log=[MESSAGE, "dance"]), "Action 2 "),
        (changed(action_log=[{"type": "message", "player": 0}]), "Action 1 .* 'message'"),
        (changed(action_log=[{**MESSAGE, "message": {"data": None}}]), "Action 1 "),
        (changed(action_log=[{**MESSAGE, "message": {"data": "\ud800"}}]), "surrogates"),
        (changed(action_log=[{**MESSAGE, "player": 2}]), "Action 1 .* 2"),
        (changed(action_log=[{"type": "proposal_response", "response": {"accept": True}, "player": 1}]), "not made"),
        (proposal([0, 0], [1, 0], [2, 0]), "Action 1 .* a paper of its own"),
        (proposal([0, 0], [1, 1], [2, 9]), "Action 1 .* a paper of its own"),
        (proposal([0, 1, 2]), "Action 1 "),
    ],
)
def test_a_damaged_game_is_rejected_in_a_sentence_with_its_line(tmp_path, damage, reason):
    state = json.loads(HUMAN.read_text().splitlines()[0])
    path = tmp_path / "people.jsonl"
    path.write_text(json.dumps(state) + "\n" + json.dumps(damage(state)))
    with pytest.raises(UserError, match=f"{re.escape(str(path))}, line 2 .*{reason}") as error:
        human_games(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 5000, '{"game_id": ' + "1" * 5000 + "}", "\x00"])
def test_a_line_that_is_not_json_is_rejected_in_a_sentence(tmp_path, text):
    path = tmp_path / "people.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(UserError, match=r"people\.jsonl, line 1 "):
        human_games(path)
    with pytest.raises(UserError, match="There is no file"):
        human_games(tmp_path)
