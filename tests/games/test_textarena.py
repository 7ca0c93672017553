"""TextArena's games through our adapter: fair, repeatable, and no seat reads what is not meant for it."""

import random
from itertools import product

import nltk
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textarena import ObservationType
from textarena.envs.registration import ENV_REGISTRY

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.games import game_parameters, load_games

PLAYED = ["TicTacToe-v0", "Nim-v0", "KuhnPoker-v0", "PigDice-v0-50"]
SPIRAL = {"illegal_moves": "spiral"}
REFUSALS = (  # why a game cannot be played
    "is not a game for two",
    "SyntaxError",  # Checkers, Chess, IteratedStagHunt, ReverseTicTacToe, UltimateTexasHoldem: Python 3.12's
    "Resource 'words' not found",  # DontSayIt, LetterAuction, SpellingBee, WordChains: NLTK's word lists
    "OpenRouter API key",  # Debate, ScenarioPlanning: a jury of models
    "No module named",  # UsedCar: registered, but not there
    "not found:",  # ScorableGames: files left out of the package
    "No such file",  # UsedCarNegotiation: the same
)


def named(name, max_turns=200, **parameters):
    """The taskset of `textarena:NAME`."""
    name = f"textarena:{name}"
    given = game_parameters(name, {"max_turns": max_turns, **parameters})
    return load_games({name: given}, seed=0)[name].taskset


def said_and_seen(taskset, game, seed):
    """Play at random, a step at a time; at the end, all that was seen and said, and what it earned."""
    rng, history = np.random.default_rng(seed), []
    while game.turn is not None:
        seat, observation = game.turn, game.read(game.turn)
        history.append((seat, observation, taskset.random_move(game, rng)))
        game.move(history[-1][-1])
        yield
    yield history, game.rewards(), game.metrics()


@pytest.mark.parametrize("name", PLAYED)
@settings(max_examples=3, deadline=None)
@given(order=st.randoms(use_true_random=False), seed=st.integers(0, 1000))
def test_games_played_at_once_are_those_played_alone(name, order, seed):
    taskset = named(name)
    alone = [list(said_and_seen(taskset, taskset.deal(n), seed + n))[-1] for n in range(3)]
    random.seed(seed)
    before = random.getstate()
    under_way = {n: said_and_seen(taskset, taskset.deal(n), seed + n) for n in range(3)}
    outcomes = {}
    while under_way:
        n = order.choice(list(under_way))
        if (outcome := next(under_way[n])) is not None:
            outcomes[n] = outcome
            del under_way[n]
    assert [outcomes[n] for n in range(3)] == alone
    assert random.getstate() == before


@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.parametrize("rules", [{}, SPIRAL])
@settings(max_examples=10, deadline=None)
@given(moves=st.lists(st.sampled_from(["random", "[99]", "hello", "[0 0]", ""]), max_size=12), number=st.integers(0, 9))
def test_rewards_add_up_whatever_is_said(name, rules, moves, number):
    taskset = named(name, **rules)
    game, rng = taskset.deal(number), np.random.default_rng(number)
    for move in moves:
        if game.turn is None:
            break
        speaker = game.turn
        game.read(speaker)
        game.move(taskset.random_move(game, rng) if move == "random" else move)
    rewards, metrics = game.rewards(), game.metrics()
    illegal = sum(game.illegal_moves.values())
    if rules and illegal:
        other = "second" if speaker == "first" else "first"
        assert game.turn is None and not game.truncated and rewards == {speaker: -1.5, other: 0.5}
    else:
        assert sum(rewards.values()) == 0
        assert game.turn is None or not any(rewards.values())
    assert metrics["first.won"] + metrics["second.won"] == int(any(rewards.values()))
    assert metrics["first.illegal_moves"] + metrics["second.illegal_moves"] == illegal


def test_seats_are_named_by_the_order_of_moving():
    game = named("KuhnPoker-v0").deal(0)  # TextArena's player 1 begins
    assert game.turn == "first"
    assert game.read("first").startswith("You are Player 1")
    assert game.read("second").startswith("You are Player 0")


def test_a_seat_reads_what_is_new_once_and_only_the_newest_board():
    game = named("TicTacToe-v0").deal(0)
    assert game.read("first").count("Current Board") == 1
    assert game.read("first") == ""
    game.move("I take the centre: [4]")
    game.read("second")
    game.move("[0]")
    read = game.read("first")
    assert read.splitlines()[:2] == [
        "Player 0 placed their symbol (O) in cell 4.",
        "Player 1 placed their symbol (X) in cell 0.",
    ]
    assert read.count("Current Board") == 1 and " X | 1 | 2 \n" in read
    assert "I take" not in read


def test_messages_are_heard_only_in_games_made_of_talk():
    game = named("IteratedPrisonersDilemma-v0").deal(0)
    game.read("first")
    game.move("Let us both cooperate.")
    assert "[Player 0] Let us both cooperate." in game.read("second")
    assert "Let us both" not in game.read("first")
    game = named("SimpleNegotiation-v0").deal(0)
    game.read("first")
    game.move("Give me wheat! [Offer: 1 Wood -> 1 Wheat]")
    assert "Give me wheat!" not in game.read("second")


def test_by_textarenas_rules_a_second_illegal_move_loses():
    game = named("TicTacToe-v0").deal(0)
    game.read("first")
    game.move("[9]")
    assert game.turn == "first"
    assert "attempted an invalid move" in game.read("first")
    game.move("[9]")
    assert game.turn is None and not game.truncated
    assert game.rewards() == {"first": -1, "second": 1}
    assert game.metrics() == {
        "turn_count": 2, "drawn": 0,
        "first.illegal_moves": 2, "first.won": 0, "second.illegal_moves": 0, "second.won": 1,
    }  # fmt: skip
    assert "invalid" not in game.read("second")


def test_a_limit_truncates():
    ours = named("TicTacToe-v0", max_turns=2).deal(0)
    ours.move("[0]")
    ours.move("[1]")
    assert ours.turn is None and ours.truncated
    assert ours.rewards() == {"first": 0, "second": 0} and ours.metrics()["drawn"] == 0
    theirs = named("PigDice-v0-short").deal(0)
    while theirs.turn is not None:
        theirs.move("[hold]")
    assert theirs.truncated and theirs.metrics()["turn_count"] == 26


def test_tasks_name_their_games():
    taskset = named("Nim-v0")
    tasks = {purpose: list(taskset.tasks(purpose, 20)) for purpose in ("train", "evaluate", "demonstrations")}
    every = [task for some in tasks.values() for task in some]
    assert len({task.game_id for task in every}) == len({task.state["seed"] for task in every}) == 60
    assert tasks["train"][:5] == list(taskset.tasks("train", 5))
    assert every[7].game_id == "textarena-Nim-v0-0-7"
    assert all(task.prompt == taskset.load(task).read("first") for task in every)


@pytest.mark.parametrize(
    "state",
    [
        {},
        *({"seed": seed} for seed in ("1", -1, 1.5, True, None)),
        *({"seed": 1, "opening_moves": moves} for moves in ("1", -1, None, 3)),  # its legal moves are not known
    ],
)
def test_a_damaged_task_is_rejected(state):
    taskset = named("Nim-v0")
    taskset.check(Task("nim", state={"seed": 1, "opening_moves": 0}))
    for use in (taskset.check, taskset.load):
        with pytest.raises((KeyError, ValueError), match=r"seed|opening_moves"):
            use(Task("nim", state=state))


def test_opening_moves_need_legal_moves_and_players_a_name_that_are_known():
    taskset = named("Nim-v0")
    with pytest.raises(ValueError, match="textarena:Nim-v0 has no player 'scripted'; it has random"):
        taskset.player("scripted", taskset.deal(0), "first", 0)
    with pytest.raises(UserError, match=r"games\.textarena:Nim-v0\.opening_moves must be 0"):
        named("Nim-v0", opening_moves=2)


@pytest.mark.parametrize(
    ("name", "seat"), [*product(PLAYED, ("first", "second")), ("LiarsDice-v0", "first"), ("ConnectFour-v0", "second")]
)
def test_demonstrations_replay_legally(name, seat):
    taskset = named(name)
    for task in taskset.tasks("demonstrations", 2):
        shown, game = taskset.demonstrate(task, seat), taskset.load(task)
        assert shown == taskset.demonstrate(task, seat)
        turns = [*shown.turns, shown.closings[-1]]
        assert len(shown.observations) == len(shown.closings) == len(turns)
        assert not any(shown.closings[:-1])
        other = taskset.demonstrate(task, next(other for other in taskset.seats if other != seat))
        others = iter([*other.turns, other.closings[-1]])
        for observation, text in zip(shown.observations, turns, strict=True):
            while game.turn != seat:
                game.move(next(others))
            assert game.read(seat) == observation
            game.move(text)
        assert sum(game.illegal_moves.values()) == 0


def test_random_players_finish_a_game_and_go_on_after_an_interruption(play_out):
    taskset = named("Nim-v0")
    [task] = taskset.tasks("train", 1)
    whole = play_out(taskset, task, ("random", "random"))
    assert whole.status == "completed" and sorted(whole.rewards.values()) == [-1, 1]
    assert play_out(taskset, task, ("random", "random"), turns=whole.turns[:2]).turns == whole.turns


def test_a_chat_models_reply_is_reduced_to_its_move():
    rules = named("Nim-v0").chat_rules("first")
    assert "[" in rules.system
    assert rules.repair("", "Taking [0 3] would lose, so [1 2].") == "[1 2]"
    with pytest.raises(ValueError, match="no move"):
        rules.repair("", "I pass.")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Nim", "no game 'Nim'; did you mean Nim-v0"),
        ("TicTacToe", "did you mean TicTacToe-v0 or"),
        ("Nim-v0-raw", "did you mean Nim-v0"),
        ("nim-v0", "did you mean Nim-v0"),
        ("bridge", r"TextArena has no game 'bridge'\."),
        ("", "as in textarena:Nim-v0"),
        ("Sudoku-v0", "not a game for two: The number of players has to be 1"),
        ("Taboo-v0", "not a game for two: Taboo game requires at least 4 players"),
    ],
)
def test_a_name_that_cannot_be_played_is_an_error_in_a_sentence(name, told):
    with pytest.raises(UserError, match=told) as error:
        named(name)
    assert "\n" not in str(error.value) and str(error.value)[-1] in ".?"


@pytest.mark.slow
def test_every_game_for_two_starts_and_takes_a_step(monkeypatch):
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)  # some would download word lists
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    names = {name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw")}
    started = set()
    for name in sorted(names):
        before = random.getstate()
        try:
            taskset = named(name)
        except UserError as error:
            assert any(reason in str(error) for reason in REFUSALS), error
            continue
        game = taskset.deal(seed=0)
        assert game.turn == "first" and game.read("first") and not game.truncated
        assert game.newest["first"][ObservationType.PROMPT]
        for text in ("[1]", "no move at all", "[0 1]", "[pass]"):
            if game.turn is not None:
                game.read(game.turn)
                game.move(text)
        assert sum(game.rewards().values()) == 0
        assert random.getstate() == before
        started.add(name)
    assert len(started) >= 110 and set(PLAYED) <= started
