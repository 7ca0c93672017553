"""One policy in both seats: each seat has its own tokens, and reads nothing that only the other may know."""

import asyncio
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.config import Config
from slim_rl.engines.local import LocalEngine
from slim_rl.errors import UserError
from slim_rl.games import game_kind
from slim_rl.games.matching.board import Board
from slim_rl.games.matching.language import question
from slim_rl.rollout.table import Job
from slim_rl.seating import check_context, make_table, policy_makers
from slim_rl.training.checkpoint import save_model
from slim_rl.training.warmstart import tiny_qwen
from tests.babbler import SENSIBLE, Babbler
from tests.settings import Setting, setting

SEEDS = st.integers(0, 2**32 - 1)
SAID = {
    "matching": (*SENSIBLE, question(2, 1), "[message] It is 50.", "[accept]", "[reject]"),
    "tictactoe": tuple(f"[{cell}]" for cell in range(9)),
    "kuhn": ("[check]", "[bet]", "[fold]", "[call]"),
}


class Listening(Babbler):
    """Mostly sensible; it notes who asked."""

    moods = 8

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sessions = []

    async def generate(self, input_ids, sampling):
        self.sessions.append(sampling.session)
        return await super().generate(input_ids, sampling)


def played(at: Setting, line, seed):
    """An episode of a babbling policy with itself, and the engine that it was played with."""
    engine = Listening(at.tokenizer, seed, SAID[at.kind.name])
    policies = policy_makers(at.config, {"policy": engine}, at.chat_format, temperature=1.0)
    table = make_table(at.config, at.kind, at.config.players, policies)
    return asyncio.run(table.play(Job("e", line, at.config.players))), engine


def check_tokens(game, seed):
    at = setting(game)
    episode, engine = played(at, at.lines[seed % len(at.lines)], seed)
    assert list(episode.traces) == list(at.kind.seats)
    trained = {seat: [0] * len(trace.token_ids) for seat, trace in episode.traces.items()}
    for session, (asked, said) in zip(engine.sessions, engine.asked, strict=True):
        seat = session.removeprefix("e/")
        trace, end = episode.traces[seat], len(asked) + len(said.token_ids)
        assert trace.token_ids[: len(asked)] == asked
        assert trace.token_ids[len(asked) : end] == said.token_ids
        assert trace.logprobs[len(asked) : end] == said.logprobs
        assert not any(trained[seat][len(asked) : end])
        trained[seat][len(asked) : end] = [1] * len(said.token_ids)
    assert {seat: trace.loss_mask for seat, trace in episode.traces.items()} == trained
    sampled = sum(len(said.token_ids) for _, said in engine.asked)
    assert sum(map(sum, trained.values())) == sampled
    heard = {seat: [t.observation for t in episode.turns if t.seat == seat] for seat in at.kind.seats}
    for seat, trace in episode.traces.items():
        if heard[seat]:
            opening = at.chat_format.opening(heard[seat][0])
            assert trace.token_ids[: len(opening)] == opening
    return episode


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS)
def test_matching_each_sampled_token_is_trained_in_one_sequence(seed):
    check_tokens("matching", seed)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_tictactoe_each_sampled_token_is_trained_in_one_sequence(seed):
    check_tokens("tictactoe", seed)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_kuhn_each_sampled_token_is_trained_in_one_sequence(seed):
    check_tokens("kuhn", seed)


def read_by(episode, seat):
    turns = [turn.observation for turn in episode.turns if turn.seat == seat]
    return turns, episode.traces[seat].token_ids


@settings(max_examples=250, deadline=None)
@given(seed=SEEDS, seat=st.sampled_from([0, 1]))
def test_what_only_the_other_sees_of_a_board_changes_nothing_that_a_seat_reads(seed, seat):
    """The cells that a seat does not see get other values, while everybody says the same."""
    at = setting("matching")
    line = at.lines[seed % len(at.lines)]
    board = Board.from_game_state(line["game_state"])
    values = np.random.default_rng(seed).integers(0, 100, board.table.shape)
    table = np.where(board.masks[seat], board.table, values)
    table = np.where(board.masks.any(0), table, board.table)
    other = Board(table, board.masks, board.scales)
    if not other.best_assignment_reward:
        return
    one, _ = played(at, line, seed)
    two, _ = played(at, {**line, "game_state": other.to_game_state()}, seed)
    assert [turn.text for turn in one.turns] == [turn.text for turn in two.turns]
    me, them = at.kind.seats[seat], at.kind.seats[1 - seat]
    assert read_by(one, me) == read_by(two, me)
    told = (table != board.table).any() and any(turn.seat == them for turn in one.turns)
    assert (read_by(one, them) != read_by(two, them)) == told  # the difference was there to be seen


@cache
def hands():
    """Lines by (first seat's card, second seat's card)."""
    at = setting("kuhn")
    found = {}
    for line in at.kind.games("train", 100):
        game = at.kind.load(line)
        found.setdefault(tuple(map(game.card, at.kind.seats)), line)
    assert len(found) == 6
    return found


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, seat=st.sampled_from([0, 1]), card=st.sampled_from("JQK"))
def test_the_others_card_changes_nothing_that_a_seat_reads(seed, seat, card):
    at = setting("kuhn")
    one, two = (played(at, line, seed)[0] for deal, line in hands().items() if deal[seat] == card)
    assert [turn.text for turn in one.turns] == [turn.text for turn in two.turns]
    me, them = at.kind.seats[seat], at.kind.seats[1 - seat]
    assert read_by(one, me) == read_by(two, me)
    assert (read_by(one, them) != read_by(two, them)) == any(turn.seat == them for turn in one.turns)


def test_the_babbling_comes_to_something():
    """The checks above see games that end by their rules, not only errors."""
    for game in ("matching", "tictactoe", "kuhn"):
        episodes = [check_tokens(game, seed) for seed in range(40)]
        assert sum(any(episode.rewards.values()) for episode in episodes) > 2
        assert sum(len(episode.turns) > 2 for episode in episodes) > 10


# Who can sit where


OTHERS = ["scripted", "random", "checkpoint"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """By game, the folder of a model with random weights."""

    @cache
    def folder(game):
        path, at = tmp_path_factory.mktemp(game), setting(game)
        save_model(path / "model", tiny_qwen(at.tokenizer, 1500, seed=3), at.tokenizer)
        return path / "model"

    return folder


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("game", SAID)
def test_everybody_plays_whole_games_in_either_seat_and_is_not_trained(game, other, checkpoints):
    name = f"checkpoint:{checkpoints(game)}" if other == "checkpoint" else other
    at = setting(game, ("policy", name), alternate=True)
    engine = LocalEngine(tiny_qwen(at.tokenizer, 1500, seed=1))
    policies = policy_makers(at.config, {"policy": engine}, at.chat_format, temperature=1.0)
    table = make_table(at.config, at.kind, at.config.players, policies)
    for number, line in enumerate(at.lines[:4]):
        seating = at.config.seated(number)
        assert seating == (("policy", name), (name, "policy"))[number % 2]
        episode = asyncio.run(table.play(Job(f"e/{number}", line, seating)))
        assert episode.status in ("completed", "truncated") and episode.turns
        assert list(episode.traces) == [at.kind.seats[number % 2]]
        assert episode.seating == dict(zip(at.kind.seats, seating, strict=True))
        assert set(episode.rewards) == set(at.kind.seats)


@pytest.mark.parametrize(
    ("players", "sentence"),
    [
        (["policy"], "seating.players names 1 players, but kuhn has the seats first, second."),
        (["policy"] * 3, "seating.players names 3 players, but kuhn has the seats first, second."),
    ],
)
def test_a_player_for_each_seat(players, sentence):
    at = setting("kuhn")
    config = at.config.model_copy(
        update={"seating": at.config.seating.model_copy(update={"players": tuple(players)})}
    )
    with pytest.raises(UserError) as error:
        check_context(1500, at.chat_format, at.lines, config, at.kind)
    assert str(error.value) == sentence


@pytest.mark.parametrize("game", ["matching", "tictactoe", "kuhn", "textarena:Nim-v0"])
def test_who_is_not_known_at_a_table_is_told_with_those_who_are(game):
    config = Config(game=game)
    kind = game_kind(config)
    table = make_table(config, kind, ["nobody"], {})
    line = next(kind.games("train", 1))
    with pytest.raises(UserError, match=r"player 'nobody'.*there (are|is) .*random"):
        asyncio.run(table.play(Job("e", line, ("nobody", "nobody"))))


def test_alternating_seats_come_to_all_sides():
    config = setting("kuhn", ("policy", "random"), alternate=True).config
    assert [config.seated(n) for n in range(3)] == [
        ("policy", "random"),
        ("random", "policy"),
        ("policy", "random"),
    ]
    fixed = setting("kuhn", ("policy", "random")).config
    assert {fixed.seated(n) for n in range(3)} == {("policy", "random")}
    assert Config().seated(0) == Config().seated(1) == ("policy", "scripted")
