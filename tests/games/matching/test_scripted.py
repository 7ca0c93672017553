"""The shy partner keeps its secrets, and the reference players earn what they should."""

import numpy as np
import pytest

from slim_rl.games.matching.board import generate_boards
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.rules import MatchingGame, View
from slim_rl.games.matching.scripted import ShyPartner, demonstrate
from slim_rl.games.matching.tasks import MatchingTaskset

VIEW = View(
    mask=np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=bool),
    numbers=np.array([[57, 12, -1], [30, 80, 5], [-1, 44, 90]]),
    scale=1.0,
)


def says(text, always_accept=False):
    return ShyPartner(VIEW, always_accept).turn(f"Partner: {text}")


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        ("What is Ava Li's score for BLEU?", "Ava Li's score for BLEU is 57."),
        ("how good is sofia at glove", "Sofia Patel's score for GloVe is 90."),
        ("tell me Daniel's Electra score", "Daniel Nguyen's score for Electra is 80."),
        ("What is Ava Li's score for GloVe?", "I do not know Ava Li's score for GloVe."),
        ("Ava BLEU, Daniel GloVe?", "Ava Li's score for BLEU is 57. Daniel Nguyen's score for GloVe is 5."),
    ],
)
def test_it_answers_what_it_is_asked_about_one_pair(question, reply):
    assert says(f"[message] {question}") == f"[message] {reply}"


@pytest.mark.parametrize(
    "text",
    [
        "Who is good at BLEU?",
        "Tell me everything you know about Ava.",
        "Please, please give me all your scores!",
        "What is your best assignment?",
        "Ava has 90 for BLEU with me.",
        "Hello!",
        "I think Ava should take BLEU.",
    ],
)
def test_it_never_volunteers_a_number(text):
    assert not any(character.isdigit() for character in says(f"[message] {text}"))


def propose(assignment):
    return f"[propose] {format_proposal(assignment)}\nYou can output one of these choices: [accept] or [reject]"


def test_it_weighs_proposals_by_its_own_numbers():
    assert says(propose((0, 1, 2))) == "[accept]"  # 57 + 80 + 90
    assert says(propose((1, 2, 0))) == "[reject]"  # 12 + 5 + unknown
    assert says(propose((1, 2, 0)), always_accept=True) == "[accept]"


def test_a_message_that_quotes_a_proposal_is_a_message():
    assert says("[message] Partner: [propose] x").startswith("[message]")


@pytest.fixture(scope="module")
def reward(play_out):
    """What a player without a model earns on average with a shy partner."""

    def reward(name, count=200, **parameters):
        taskset = MatchingTaskset(Parameters(max_turns=30, **parameters), seed=1)
        episodes = [
            play_out(taskset, task, (name, "scripted"), number)
            for number, task in enumerate(taskset.tasks("train", count))
        ]
        assert all(episode.status == "completed" for episode in episodes)
        return float(np.mean([episode.rewards["player-1"] for episode in episodes]))

    return reward


def test_reference_players_earn_what_they_earned_in_larger_measurements(reward):
    """Means at N = 3 with `stakes`, over many boards; 200 boards have a standard error of about .013."""
    measured = {
        "random": 0.656,
        "own-view": 0.796,
        "bayes": 0.790,
        "asks-2-random": 0.882,
        "asks-4-random": 0.945,
        "asks-7-random": 0.994,
    }
    for name, mean in measured.items():
        assert reward(name) == pytest.approx(mean, abs=0.035), name


def test_what_makes_a_reference_earn_more(reward):
    assert reward("asks-2-useful") > reward("asks-2-random") + 0.01
    assert reward("bayes", 50, selection="dialop") > reward("own-view", 50, selection="dialop") + 0.15
    assert reward("asks-7-random", 100, scale_range=(1, 10)) > 0.98  # private scales do not confuse it


def test_there_is_no_reference_of_that_name():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    with pytest.raises(ValueError, match="no reference player 'asks-lots'"):
        taskset.player("asks-lots", taskset.load(task), "player-1", 0)


def test_a_demonstration_closes_well_after_any_number_of_questions():
    [board] = generate_boards(1, 1, Parameters())
    shown = demonstrate(board, max_questions=9)
    assert len(shown.observations) == len(shown.closings) == len(shown.turns) + 1
    assert len(shown.turns) == (~board.masks[0]).sum() == len(set(shown.turns))
    game = MatchingGame(board, 30)
    game.step(shown.closings[-1])
    game.step("[accept]")
    assert game.rewards()["player-1"] >= 0.95  # it knows all that both know


def test_the_second_seat_is_shown_nearly_every_question_and_sometimes_an_early_proposal():
    taskset, asked = MatchingTaskset(Parameters(), seed=0), []
    for task in taskset.tasks("demonstrations", 300):
        shown = taskset.demonstrate(task, "player-2")
        assert shown.closings[-1] == "[accept]"
        unseen = int((~taskset.load(task).board.masks[0]).sum())
        asked.append((len(shown.turns), unseen))
    assert 0.85 < np.mean([questions == unseen for questions, unseen in asked]) < 0.97
    assert min(questions for questions, _ in asked) == 0


def test_a_demonstration_has_at_most_as_many_questions_as_the_parameter_says():
    taskset = MatchingTaskset(Parameters(max_questions=2), seed=0)
    for task in taskset.tasks("demonstrations", 30):
        assert all(len(taskset.demonstrate(task, seat).turns) <= 2 for seat in taskset.seats)
