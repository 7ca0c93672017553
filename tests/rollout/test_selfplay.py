"""One policy in both seats: each seat has its own tokens, and reads nothing that only the other may know."""

import asyncio
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.core.errors import UserError
from slim_rl.engines.local import LocalEngine
from slim_rl.games import game_parameters, load_games
from slim_rl.games.kuhn.tasks import card_of
from slim_rl.games.matching.board import Board
from slim_rl.games.matching.partner import question
from slim_rl.players.config import ModelConfig
from slim_rl.rollout.seating import PolicyRules, Request, Seating, checkpoint_makers
from slim_rl.training.checkpoint import save_model
from slim_rl.training.tiny import tiny_qwen
from tests.babbler import SENSIBLE, Babbler
from tests.settings import Setting, setting

SEEDS = st.integers(0, 2**32 - 1)
SAID = {
    "matching": (*SENSIBLE, question(2, 1), "[message] It is 50.", "[accept]", "[reject]"),
    "tictactoe": tuple(f"[{cell}]" for cell in range(9)),
    "kuhn": ("[check]", "[bet]", "[fold]", "[call]"),
}


class Talker(Babbler):
    """Mostly sensible."""

    moods = 8


def rules(at: Setting) -> PolicyRules:
    return PolicyRules(at.renderer, at.config.model.turn_tokens, temperature=1.0)


def played(at: Setting, task, seed):
    """An episode of a babbling policy with itself, and the engine that it was played with."""
    engine = Talker(at.tokenizer, seed, SAID[at.game.name])
    seating = Seating({at.game.name: at.game}, {"policy": rules(at).maker(engine)}, seed=0)
    return asyncio.run(seating.play(Request("e", at.game.name, task, ("policy", "policy")))), engine


def read_by(episode, seat):
    turns = [turn.read for turn in episode.turns if turn.seat == seat]
    return turns, episode.traces[seat].token_ids


@settings(max_examples=80, deadline=None)
@given(seed=SEEDS, seat=st.sampled_from([0, 1]))
def test_what_only_the_other_sees_of_a_board_changes_nothing_that_a_seat_reads(seed, seat):
    """The cells that a seat does not see get other values, while both players say the same."""
    at = setting("matching")
    task = at.tasks[seed % len(at.tasks)]
    board = Board.from_game_state(task.state)
    values = np.random.default_rng(seed).integers(0, 100, board.table.shape)
    table = np.where(board.masks[seat], board.table, values)
    table = np.where(board.masks.any(0), table, board.table)
    other = Board(table, board.masks, board.scales)
    if not other.best_assignment_reward:
        return
    one, _ = played(at, task, seed)
    two, _ = played(at, replace(task, state=other.to_game_state()), seed)
    assert [turn.text for turn in one.turns] == [turn.text for turn in two.turns]
    me, them = at.game.taskset.seats[seat], at.game.taskset.seats[1 - seat]
    assert read_by(one, me) == read_by(two, me)
    told = (table != board.table).any() and any(turn.seat == them for turn in one.turns)
    assert (read_by(one, them) != read_by(two, them)) == told  # the difference was there to be seen


@cache
def hands():
    """Tasks by (first seat's card, second seat's card)."""
    at = setting("kuhn")
    found = {}
    for task in at.game.taskset.tasks("train", 100):
        game = at.game.taskset.load(task)
        found.setdefault(tuple(card_of(game, seat) for seat in game.seats), task)
    assert len(found) == 6
    return found


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, seat=st.sampled_from([0, 1]), card=st.sampled_from("JQK"))
def test_the_others_card_changes_nothing_that_a_seat_reads(seed, seat, card):
    at = setting("kuhn")
    one, two = (played(at, task, seed)[0] for deal, task in hands().items() if deal[seat] == card)
    assert [turn.text for turn in one.turns] == [turn.text for turn in two.turns]
    me, them = at.game.taskset.seats[seat], at.game.taskset.seats[1 - seat]
    assert read_by(one, me) == read_by(two, me)
    assert (read_by(one, them) != read_by(two, them)) == any(turn.seat == them for turn in one.turns)


# Who can take a seat


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """By game, the folder of a model with random weights."""

    @cache
    def folder(game):
        path, at = tmp_path_factory.mktemp(game), setting(game)
        save_model(path / "model", tiny_qwen(at.tokenizer, 1500, seed=3, layers=1, hidden_size=32), at.tokenizer)
        return path / "model"

    return folder


@pytest.mark.parametrize("other", ["scripted", "random", "checkpoint"])
@pytest.mark.parametrize("game", SAID)
def test_every_player_plays_whole_games_in_either_seat_and_is_not_trained(game, other, checkpoints):
    name = f"checkpoint:{checkpoints(game)}" if other == "checkpoint" else other
    at = setting(game, ("policy", name))
    engine = LocalEngine(tiny_qwen(at.tokenizer, 1500, seed=1, layers=1, hidden_size=32))
    frozen = checkpoint_makers({name}, ModelConfig(turn_tokens=16), 1.0, engine.turn)
    makers = {"policy": rules(at).maker(engine), **frozen}
    seating = Seating({game: at.game}, makers, seed=0)
    seats = at.game.taskset.seats
    for number, task in enumerate(at.tasks[:2]):
        players = (("policy", name), (name, "policy"))[number % 2]
        episode = asyncio.run(seating.play(Request(f"e/{number}", game, task, players)))
        assert episode.status in ("completed", "truncated") and episode.turns
        assert list(episode.traces) == [seats[number % 2]]
        assert episode.seating == dict(zip(seats, players, strict=True))
        assert set(episode.rewards) == set(seats)


@pytest.mark.parametrize("count", [1, 3])
def test_there_is_a_player_for_each_seat(count):
    parameters = {"kuhn": game_parameters("kuhn", {"seating": ["policy"] * count})}
    with pytest.raises(UserError) as error:
        load_games(parameters, seed=0)
    named = ", ".join(["policy"] * count)
    assert str(error.value) == (
        f"games.kuhn.seating names {count} players ({named}), but the game has the seats first, second."
    )


@pytest.mark.parametrize("name", ["matching", "tictactoe", "kuhn", "textarena:Nim-v0"])
def test_an_unknown_player_is_told_with_the_known_ones(name):
    parameters = {name: game_parameters(name, {"seating": ["policy", "policy"]})}
    games = load_games(parameters, seed=0)
    task = next(games[name].taskset.tasks("train", 1))
    with pytest.raises(UserError, match=r"player 'nobody'.* random"):
        asyncio.run(Seating(games, {}, seed=0).play(Request("e", name, task, ("nobody", "nobody"))))
