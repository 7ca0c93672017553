"""Kuhn poker: the textbook's chips, secret cards, and an exact measure of play."""

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.core.message import heard, said
from slim_rl.games.kuhn.tasks import KuhnTaskset, card_of
from slim_rl.games.kuhn.theory import INFORMATION_SETS, equilibrium, options
from slim_rl.games.textarena.parameters import Parameters
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer

DEALS = list(itertools.permutations("JQK", 2))
HANDS = {  # what is said, and the chips of the first seat if its card is the higher one, and if not
    "check check": (1, -1),
    "check bet fold": (-1, -1),
    "check bet call": (2, -2),
    "bet fold": (1, 1),
    "bet call": (2, -2),
}
UNIFORM = [(0.5, 0.5)] * 12


@pytest.fixture(scope="module")
def taskset():
    return KuhnTaskset(Parameters(), seed=0)


@pytest.fixture(scope="module")
def spiral():
    return KuhnTaskset(Parameters(illegal_moves="spiral"), seed=0)


def dealt(taskset, deal):
    """A hand in which the two seats hold these cards."""
    for seed in itertools.count():
        game = taskset.deal(seed)
        if (card_of(game, "first"), card_of(game, "second")) == deal:
            return game


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("hand", HANDS)
def test_every_hand_pays_what_the_textbook_says(taskset, deal, hand):
    game = dealt(taskset, deal)
    for n, move in enumerate(hand.split()):
        assert game.turn == ("first", "second")[n % 2] and game.rewards() == {"first": 0, "second": 0}
        assert f"[{move}]" in taskset.legal_moves(game)
        game.move(f"[{move}]")
    chips = HANDS[hand]["JQK".index(deal[0]) < "JQK".index(deal[1])]
    assert game.turn is None and not game.truncated
    assert game.rewards() == {"first": chips, "second": -chips}
    assert game.metrics()["first.won"] == int(chips > 0) and game.metrics()["drawn"] == 0


@pytest.mark.parametrize("hand", HANDS)
def test_no_seat_learns_the_others_card(taskset, hand):
    for seat, card in itertools.product(taskset.seats, "JQK"):
        read = set()
        for deal in (deal for deal in DEALS if deal[taskset.seats.index(seat)] == card):
            game, seen = dealt(taskset, deal), []
            for move in hand.split():
                seen += [game.read(seat)] if game.turn == seat else []
                game.move(f"[{move}]")
            read.add(tuple(seen))
        assert len(read) == 1
        (seen,) = read
        assert f"Your card is: '{card}'" in seen[0]


@pytest.mark.parametrize("history", ["", "check", "bet", "check bet"])
def test_a_seat_that_loses_by_illegal_moves_loses_its_ante(taskset, spiral, history):
    for rules, tries in ((taskset, 2), (spiral, 1)):
        game = rules.deal(0)
        for move in history.split():
            game.move(f"[{move}]")
        offender = game.turn
        other = "second" if offender == "first" else "first"
        for _ in range(tries):
            assert game.turn == offender
            game.move("[raise] or [call] or what?" if not history.endswith("bet") else "[check]")
        assert game.turn is None
        assert game.rewards() == ({offender: -1, other: 1} if tries == 2 else {offender: -1.5, other: 0.5})
        assert game.metrics()[f"{offender}.illegal_moves"] == tries


def test_the_word_call_without_a_bet_raises_no_stakes(taskset):
    game = dealt(taskset, ("K", "J"))
    for text in ("[check] Player 0, submitted move: '[call]'.", "[check]"):
        game.move(text)
    assert game.rewards() == {"first": 1, "second": -1}


def test_decisions_are_the_twelve_that_play_leads_to(taskset):
    decisions = taskset.decisions()
    assert [decision.seat for decision in decisions] == ["first"] * 6 + ["second"] * 6
    assert len({(decision.seat, *decision.observations) for decision in decisions}) == 12
    assert [tuple(decision.options) for decision in decisions] == [options(said) for said, _ in INFORMATION_SETS]
    met, rng = set(), np.random.default_rng(0)
    for task in taskset.tasks("train", 200):
        game = taskset.load(task)
        talk = {seat: ([], []) for seat in taskset.seats}
        while (seat := game.turn) is not None:
            observations, turns = talk[seat]
            observations.append(game.read(seat))
            met.add((seat, *observations, *turns))
            turns.append(taskset.random_move(game, rng))
            game.move(turns[-1])
    assert met == {(decision.seat, *decision.observations, *decision.turns) for decision in decisions}


@settings(max_examples=20, deadline=None)
@given(alpha=st.floats(0, 1 / 3), bets=st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_no_equilibrium_can_be_exploited_and_nothing_earns_less_than_that(taskset, alpha, bets):
    assert taskset.solve([(1 - bet, bet) for bet in bets])["exploitability"] >= -1e-12
    solved = taskset.solve(equilibrium(alpha))
    assert solved["exploitability"] == pytest.approx(0, abs=1e-12)
    assert solved["value_first"] == pytest.approx(-1 / 18)


def test_every_other_strategy_can_be_exploited(taskset):
    for place in range(12):
        odds = equilibrium(1 / 6)
        odds[place] = odds[place][::-1] if odds[place][0] != 0.5 else (0.0, 1.0)
        assert taskset.solve(odds)["exploitability"] > 0.01
    folds = [(1.0, 0.0)] * 12  # both check, and fold to every bet: a bet each time wins the ante
    assert taskset.solve(folds) == {"exploitability": pytest.approx(1), "value_first": 0}
    assert taskset.solve(UNIFORM) == {"exploitability": pytest.approx(11 / 24), "value_first": pytest.approx(1 / 8)}


@pytest.mark.parametrize("names", [("random", "scripted"), ("scripted", "random")])
def test_what_players_win_agrees_with_what_is_computed(taskset, names, play_out):
    odds = {"scripted": equilibrium(1 / 3), "random": UNIFORM}
    expected = taskset.solve(odds[names[0]][:6] + odds[names[1]][6:])["value_first"]

    tasks = enumerate(taskset.tasks("evaluate", 250))
    won = [play_out(taskset, task, names, seed=2 * number).rewards["first"] for number, task in tasks]
    assert abs(np.mean(won) - expected) < 3.5 * np.std(won) / np.sqrt(len(won))


def test_the_equilibrium_player_goes_on_after_an_interruption(taskset):
    decision = taskset.decisions()[INFORMATION_SETS.index((("[check]", "[bet]"), "K"))]
    player = taskset.player("scripted", taskset.deal(0), "first", 0)
    player.recall(heard(decision.observations[0]), said(decision.turns[0]))
    assert asyncio.run(player.respond(heard(decision.observations[1]))) == said("[call]")


def test_a_move_and_a_card_are_one_token(taskset):
    shown = [taskset.demonstrate(task, seat) for task in taskset.tasks("demonstrations", 100) for seat in taskset.seats]
    corpus = chat_corpus(demo._replace(closings=demo.closings[-1:]) for demo in shown)
    tokenizer = small_tokenizer(corpus, taskset.words)

    def tokens(text):
        return tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))

    assert all(len(tokens(move)) == 1 for move in ("[check]", "[bet]", "[fold]", "[call]"))
    for decision in taskset.decisions():
        first, *later = (tokens("user\n" + observation) for observation in decision.observations)
        assert any(token.startswith("Your card is: '") and len(token) < 20 for token in first)
        assert len(first) <= 40 and all(len(some) <= 15 for some in later)


def test_names(taskset):
    assert taskset.name == "kuhn" and next(taskset.tasks("train", 1)).game_id == "kuhn-0-0"
    assert taskset.study == "matches" and taskset.decisions() and taskset.opponents
    with pytest.raises(ValueError, match="kuhn has no player 'bayes'; it has random and scripted"):
        taskset.player("bayes", taskset.deal(0), "first", 0)
