"""TextArena's games through our adapter: fair, repeatable, and nobody reads what is not for him."""

import asyncio
import random

import nltk
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textarena import ObservationType
from textarena.envs.registration import ENV_REGISTRY

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.games import textarena
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.play import play

PLAYED = ["TicTacToe-v0", "Nim-v0", "KuhnPoker-v0", "ConnectFour-v0", "PigDice-v0-50", "LiarsDice-v0"]
SPIRAL = {"illegal_moves": "spiral"}
REFUSALS = (  # why a game cannot be had
    "is not a game for two",
    "SyntaxError",  # Checkers, Chess, IteratedStagHunt, ReverseTicTacToe, UltimateTexasHoldem: Python 3.12's
    "Resource 'words' not found",  # DontSayIt, LetterAuction, SpellingBee, WordChains: NLTK's word lists
    "OpenRouter API key",  # Debate, ScenarioPlanning: a jury of models
    "No module named",  # UsedCar: registered, but not there
    "not found:",  # ScorableGames: files left out of the package
    "No such file",  # UsedCarNegotiation: the same
)


def game_kind(name, max_turns=200, **rules):
    config = Config.model_validate({"games": {"max_turns": max_turns}, "textarena": rules})
    return textarena.kind(config, name)


def new_game(kind, number=0):
    return kind.load(list(kind.games("train", number + 1))[number])


def said_and_seen(kind, game, seed):
    """Play at random, a step at a time; at the end, all that was seen and said, and what it earned."""
    rng, history = np.random.default_rng(seed), []
    while game.turn is not None:
        seat, observation = game.turn, game.observe(game.turn)
        history.append((seat, observation, kind.random_move(game, rng)))
        game.step(history[-1][-1])
        yield
    yield history, game.rewards(), game.facts()


def finish(playing):
    *_, outcome = playing
    return outcome


@pytest.mark.parametrize("name", PLAYED)
@settings(max_examples=3, deadline=None)
@given(order=st.randoms(use_true_random=False), seed=st.integers(0, 1000))
def test_games_played_at_once_are_those_played_alone(name, order, seed):
    kind = game_kind(name)
    alone = [finish(said_and_seen(kind, new_game(kind, n), seed + n)) for n in range(3)]
    random.seed(seed)
    before = random.getstate()
    under_way = {n: said_and_seen(kind, new_game(kind, n), seed + n) for n in range(3)}
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
@given(
    moves=st.lists(st.sampled_from(["random", "[99]", "hello", "[0 0]", ""]), max_size=12),
    number=st.integers(0, 9),
)
def test_rewards_add_up_whatever_is_said(name, rules, moves, number):
    kind = game_kind(name, **rules)
    game, rng = new_game(kind, number), np.random.default_rng(number)
    for move in moves:
        if game.turn is None:
            break
        speaker = game.turn
        game.observe(speaker)
        game.step(kind.random_move(game, rng) if move == "random" else move)
    rewards, facts = game.rewards(), game.facts()
    illegal = sum(game.illegal_moves.values())
    if rules and illegal:
        other = "second" if speaker == "first" else "first"
        assert game.turn is None and rewards == {speaker: -1.5, other: 0.5}
    else:
        assert sum(rewards.values()) == 0
        assert game.turn is None or not any(rewards.values())
    assert facts["first.won"] + facts["second.won"] == int(any(rewards.values()))
    assert facts["first.illegal_moves"] + facts["second.illegal_moves"] == illegal


def test_seats_are_named_by_the_order_of_moving():
    game = new_game(game_kind("KuhnPoker-v0"))  # TextArena's player 1 begins
    assert game.turn == "first"
    assert game.observe("first").startswith("You are Player 1")
    assert game.observe("second").startswith("You are Player 0")


def test_a_seat_reads_what_is_new_once_and_only_the_newest_board():
    game = new_game(game_kind("TicTacToe-v0"))
    assert game.observe("first").count("Current Board") == 1
    assert game.observe("first") == ""
    game.step("I take the centre: [4]")
    game.observe("second")
    game.step("[0]")
    read = game.observe("first")
    assert read.splitlines()[:2] == [
        "Player 0 placed their symbol (O) in cell 4.",
        "Player 1 placed their symbol (X) in cell 0.",
    ]
    assert read.count("Current Board") == 1 and " X | 1 | 2 \n" in read
    assert "I take" not in read


def test_what_the_other_said_is_heard_in_games_made_of_talk_alone():
    game = new_game(game_kind("IteratedPrisonersDilemma-v0"))
    game.observe("first")
    game.step("Let us both cooperate.")
    assert "[Player 0] Let us both cooperate." in game.observe("second")
    assert "Let us both" not in game.observe("first")
    game = new_game(game_kind("SimpleNegotiation-v0"))
    game.observe("first")
    game.step("Give me wheat! [Offer: 1 Wood -> 1 Wheat]")
    assert "Give me wheat!" not in game.observe("second")


def test_by_textarenas_rules_a_second_illegal_move_loses():
    game = new_game(game_kind("TicTacToe-v0"))
    game.observe("first")
    game.step("[9]")
    assert game.turn == "first"
    assert "attempted an invalid move" in game.observe("first")
    game.step("[9]")
    assert game.turn is None and not game.truncated
    assert game.rewards() == {"first": -1, "second": 1}
    assert game.facts() == {
        "turns": 2, "drawn": 0,
        "first.illegal_moves": 2, "first.won": 0, "second.illegal_moves": 0, "second.won": 1,
    }  # fmt: skip
    assert "invalid" not in game.observe("second")


def test_by_spirals_rule_the_first_illegal_move_ends_the_game():
    game = new_game(game_kind("TicTacToe-v0", **SPIRAL))
    game.step("[4]")
    game.step("[4]")
    assert game.turn is None and not game.truncated
    assert game.rewards() == {"first": 0.5, "second": -1.5}


def test_trying_a_move_leaves_no_trace():
    kind = game_kind("PigDice-v0-50")
    tried, left_alone = new_game(kind), new_game(kind)
    for _ in range(20):
        assert tried.allows("[roll]") and not tried.allows("[fly]")
        assert tried.observe(tried.turn) == left_alone.observe(left_alone.turn)
        tried.step("[roll]")
        left_alone.step("[roll]")
    assert tried.facts() == left_alone.facts()


def test_a_limit_truncates():
    ours = new_game(game_kind("TicTacToe-v0", max_turns=2))
    ours.step("[0]")
    ours.step("[1]")
    assert ours.turn is None and ours.truncated
    assert ours.rewards() == {"first": 0, "second": 0} and ours.facts()["drawn"] == 0
    theirs = new_game(game_kind("PigDice-v0-short"))
    while theirs.turn is not None:
        theirs.step("[hold]")
    assert theirs.truncated and theirs.facts()["turns"] == 26


@pytest.mark.parametrize("name", PLAYED)
def test_lines_name_their_games(name):
    kind = game_kind(name)
    lines = {purpose: list(kind.games(purpose, 20)) for purpose in ("train", "evaluate", "demonstrations")}
    every = [line for some in lines.values() for line in some]
    assert (
        len({line["game_id"] for line in every}) == len({line["game_state"]["seed"] for line in every}) == 60
    )
    assert lines["train"][:5] == list(kind.games("train", 5))
    assert every[7]["game_id"] == f"textarena-{name}-0-7"
    assert all(line["prompt"] == kind.load(line).observe("first") for line in every)


@pytest.mark.parametrize("state", [{}, {"seed": "1"}, {"seed": -1}, {"seed": 1.5}, None])
def test_a_damaged_line_is_noticed(state):
    with pytest.raises((KeyError, ValueError, TypeError)):
        game_kind("Nim-v0").load({"game_id": "nim", "prompt": "", "game_state": state})


@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.parametrize("seat", textarena.SEATS)
def test_demonstrations_replay_legally(name, seat):
    kind = game_kind(name)
    for line in kind.games("demonstrations", 2):
        shown, game = kind.demonstrate(line, seat), kind.load(line)
        assert shown == kind.demonstrate(line, seat)
        turns = [*shown.turns, shown.closings[-1]]
        assert len(shown.observations) == len(shown.closings) == len(turns)
        assert not any(shown.closings[:-1])
        other = kind.demonstrate(line, next(other for other in kind.seats if other != seat))
        others = iter([*other.turns, other.closings[-1]])
        for observation, text in zip(shown.observations, turns, strict=True):
            while game.turn != seat:
                game.step(next(others))
            assert game.observe(seat) == observation
            game.step(text)
        assert sum(game.illegal_moves.values()) == 0


def test_random_players_play_a_game_through_and_go_on_after_an_interruption():
    kind = game_kind("Nim-v0")
    line = next(kind.games("train", 1))

    def episode(turns=()):
        game = kind.load(line)
        players = {seat: kind.player("random", game, seat, seed) for seed, seat in enumerate(kind.seats)}
        return asyncio.run(play(Episode(line["game_id"], 0, 0, turns=list(turns)), game, players))

    whole = episode()
    assert whole.status == "completed" and sorted(whole.rewards.values()) == [-1, 1]
    assert episode(whole.turns[:2]).turns == whole.turns


def test_random_moves_are_each_as_likely():
    kind, rng = game_kind("Nim-v0"), np.random.default_rng(0)
    game = new_game(kind)
    game.observe("first")
    counts = {}
    for _ in range(600):
        move = kind.random_move(game, rng)
        counts[move] = counts.get(move, 0) + 1
    assert len(counts) == 3 + 4 + 5
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < 31.3  # chi-squared, 11 d.f., p = .001


def test_nobody_else_is_known():
    kind = game_kind("Nim-v0")
    with pytest.raises(ValueError, match="no player 'scripted' of textarena:Nim-v0; there is random"):
        kind.player("scripted", new_game(kind), "first", 0)


def test_a_chat_models_reply_is_mended():
    rules = game_kind("Nim-v0").chat_rules("first")
    assert "[" in rules.system
    assert rules.mend("", "Taking [0 3] would lose, so [1 2].") == "[1 2]"
    with pytest.raises(ValueError, match="no move"):
        rules.mend("", "I pass.")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Nim", "no game 'Nim'; is it Nim-v0 that was meant"),
        ("TicTacToe", "is it TicTacToe-v0 or"),
        ("Nim-v0-raw", "is it Nim-v0"),
        ("nim-v0", "is it Nim-v0"),
        ("bridge", r"TextArena has no game 'bridge'\."),
        ("", "as in textarena:Nim-v0"),
        ("Sudoku-v0", "not a game for two: The number of players has to be 1"),
        ("Taboo-v0", "not a game for two: Taboo game requires at least 4 players"),
    ],
)
def test_a_name_that_cannot_be_played_is_told_in_a_sentence(name, told):
    with pytest.raises(UserError, match=told) as error:
        game_kind(name)
    assert "\n" not in str(error.value) and str(error.value)[-1] in ".?"


def test_every_game_for_two_starts_and_takes_a_step(monkeypatch):
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)  # some would fetch word lists
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    names = {name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw")}
    started = set()
    for name in sorted(names):
        before = random.getstate()
        try:
            kind = game_kind(name)
        except UserError as error:
            assert any(reason in str(error) for reason in REFUSALS), error
            continue
        game = new_game(kind)
        assert game.turn == "first" and game.observe("first") and not game.truncated
        assert game.newest["first"][ObservationType.PROMPT]
        for text in ("[1]", "no move at all", "[0 1]", "[pass]"):
            if game.turn is not None:
                game.observe(game.turn)
                game.step(text)
        assert sum(game.rewards().values()) == 0
        assert random.getstate() == before
        started.add(name)
    assert len(started) >= 110 and set(PLAYED) <= started
