"""The shy partner keeps its secrets, and the reference players earn what they should."""

import asyncio

import numpy as np
import pytest

from slim_rl.config import Config, MatchingConfig
from slim_rl.games.matching import MatchingKind
from slim_rl.games.matching.board import generate_boards
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.rules import MatchingGame, View
from slim_rl.games.matching.scripted import ShyPartner, demonstrate, reference_player, shy_partner
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.play import play

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
        (
            "Ava for BLEU and Daniel for GloVe?",
            "Ava Li's score for BLEU is 57. Daniel Nguyen's score for GloVe is 5.",
        ),
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
    return (
        f"[propose] {format_proposal(assignment)}\nYou can output one of these choices: [accept] or [reject]"
    )


def test_it_weighs_proposals_by_its_own_numbers():
    assert says(propose((0, 1, 2))) == "[accept]"  # 57 + 80 + 90
    assert says(propose((1, 2, 0))) == "[reject]"  # 12 + 5 + unknown
    assert says(propose((1, 2, 0)), always_accept=True) == "[accept]"


def test_a_message_that_quotes_a_proposal_is_a_message():
    assert says("[message] Partner: [propose] x").startswith("[message]")


def rewards(name, config, count=300, seed=3):
    earned = []
    for number, board in enumerate(generate_boards(count, seed, config)):
        game = MatchingGame(board, max_turns=30)
        agent, partner = game.seats
        players = {
            agent: reference_player(name, game, config, number),
            partner: shy_partner(game, partner, always_accept=True),
        }
        episode = asyncio.run(play(Episode("e", "g"), game, players))
        assert episode.status == "completed"
        earned.append(episode.rewards[agent])
    return float(np.mean(earned))


def test_reference_players_earn_what_was_measured_of_them():
    """Means at N = 3 with `stakes`, over many boards; 300 boards have a standard error of about .011."""
    config = MatchingConfig()
    measured = {
        "random": 0.656,
        "own-view": 0.796,
        "bayes": 0.790,
        "asks-2-random": 0.882,
        "asks-4-random": 0.945,
        "asks-7-random": 0.994,
    }
    for name, mean in measured.items():
        assert rewards(name, config) == pytest.approx(mean, abs=0.035), name


def test_the_most_useful_questions_are_worth_more_than_random_ones():
    config = MatchingConfig()
    assert rewards("asks-2-useful", config) > rewards("asks-2-random", config) + 0.01


def test_dialops_selection_tells_a_player_who_asks_nothing():
    config = MatchingConfig(selection="dialop")
    assert rewards("bayes", config, 150) > rewards("own-view", config, 150) + 0.15


def test_private_scales_do_not_confuse_the_references():
    config = MatchingConfig(scale_range=(1, 10))
    assert rewards("asks-7-random", config, 100) > 0.98


def test_there_is_no_reference_of_that_name():
    [board] = generate_boards(1, 0, MatchingConfig())
    with pytest.raises(ValueError, match="no reference player 'asks-lots'"):
        reference_player("asks-lots", MatchingGame(board, 10), MatchingConfig(), 0)


def test_a_demonstration_closes_well_after_any_number_of_questions():
    [board] = generate_boards(1, 1, MatchingConfig())
    shown = demonstrate(board, max_questions=9)
    assert len(shown.observations) == len(shown.closings) == len(shown.turns) + 1
    assert len(shown.turns) == (~board.masks[0]).sum() == len(set(shown.turns))
    game = MatchingGame(board, 30)
    game.step(shown.closings[-1])
    game.step("[accept]")
    assert game.rewards()["player-1"] >= 0.95  # it knows all that both know


def test_the_second_seat_is_shown_nearly_every_question_and_sometimes_an_early_proposal():
    kind, asked = MatchingKind(Config()), []
    for line in kind.games("demonstrations", 300):
        shown = kind.demonstrate(line, "player-2")
        assert shown.closings[-1] == "[accept]"
        unseen = int((~kind.load(line).board.masks[0]).sum())
        asked.append((len(shown.turns), unseen))
    assert 0.85 < np.mean([questions == unseen for questions, unseen in asked]) < 0.97
    assert min(questions for questions, _ in asked) == 0
