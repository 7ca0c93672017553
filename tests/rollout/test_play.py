"""Token in, token out: the engine is asked for exactly what is trained on, whatever a model samples."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.core.errors import GameFailed, PlayerFailed, UserError
from slim_rl.core.player import Player, ScriptedPlayer
from slim_rl.engines.engine import EngineFailed, Generation
from slim_rl.engines.local import LocalEngine
from slim_rl.games import NamedGame, load_games
from slim_rl.games.matching.parameters import Parameters
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PolicyRules, Request, Seating, service_makers
from slim_rl.training.tiny import tiny_qwen
from tests import echo
from tests.babbler import Babbler, Caller
from tests.fake_time import now, run_in_fake_time

SEATS = ("policy", "scripted")


def matching_with(engine, renderer, partner=None, max_turns=12):
    """The policy in the first seat of the matching game, a shy partner or `partner` in the second."""
    makers = {"policy": PolicyRules(renderer, max_turn_tokens=16, temperature=1.0).maker(engine)}
    if partner is not None:
        makers["scripted"] = lambda seat: partner()
    games = load_games({"matching": Parameters(max_turns=max_turns)}, seed=0)
    return Seating(games, makers, seed=0)


def played(seating, task, begun=None):
    return asyncio.run(seating.play(Request("e", "matching", task, SEATS, begun=begun)))


@pytest.mark.parametrize(("max_turns", "max_context_tokens"), [(1, 1500), (100, 60)])
def test_a_game_that_runs_out_of_turns_or_context_is_truncated_and_earns_nothing(
    tokenizer, renderer, tasks, max_turns, max_context_tokens
):
    engine = Babbler(tokenizer, 1)
    engine.max_context_tokens = max_context_tokens
    episode = played(matching_with(engine, renderer, max_turns=max_turns), tasks[0])
    assert (episode.status, episode.rewards) == ("truncated", {"player-1": 0.0, "player-2": 0.0})
    assert all(len(asked) + len(g.token_ids) <= max_context_tokens for asked, g in engine.asked)
    assert engine.released == "e/player-1"


class Interrupting:
    """Greedy sampling that is cut off at random, also before its first token."""

    def __init__(self, engine, seed):
        self.max_context_tokens = engine.max_context_tokens
        self.engine, self.rng, self.asked = engine, np.random.default_rng(seed), []

    async def generate(self, input_ids, sampling):
        generation = await self.engine.generate(input_ids, replace(sampling, temperature=0.0))
        self.asked.append(list(input_ids))
        if self.rng.random() < 0.6:
            cut = int(self.rng.integers(len(generation.token_ids)))
            return Generation(generation.token_ids[:cut], generation.logprobs[:cut], "abort")
        return generation

    def release(self, session):
        self.engine.release(session)


class Remembering(ScriptedPlayer):
    """A partner that says how many turns it has taken."""

    def __init__(self):
        self.memory = []

    def turn(self, observation):
        self.memory.append((observation, f"[message] I have had {len(self.memory)} turns."))
        return self.memory[-1][1]


@pytest.mark.parametrize("seed", range(2))
def test_an_interrupted_dialogue_continues_as_if_nothing_had_happened(tokenizer, renderer, tasks, seed):
    engine = Interrupting(LocalEngine(tiny_qwen(tokenizer, 512, seed, layers=1, hidden_size=32)), seed)
    seating = matching_with(engine, renderer, partner=Remembering, max_turns=6)
    begun = None
    while begun is None or begun.status == "aborted":
        begun = played(seating, tasks[0], begun)
    engine.rng = SimpleNamespace(random=lambda: 1.0)
    whole = played(seating, tasks[0])
    assert begun.turns == whole.turns and begun.rewards == whole.rewards
    ours, theirs = begun.traces["player-1"], whole.traces["player-1"]
    assert (ours.token_ids, ours.loss_mask) == (theirs.token_ids, theirs.loss_mask)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert all(whole.traces["player-1"].token_ids[: len(asked)] == asked for asked in engine.asked)


class GonePartner(Player):
    async def respond(self, observation, tools=()):
        raise PlayerFailed("the partner did not answer") from ConnectionError("connection refused")


class BrokenEngine(Babbler):
    error = None

    async def generate(self, input_ids, sampling):
        raise self.error


def test_a_player_or_an_engine_that_fails_fails_the_episode_but_our_mistakes_are_not_hidden(
    tokenizer, renderer, tasks, monkeypatch
):
    seating = matching_with(Babbler(tokenizer, 0), renderer, partner=GonePartner)
    while not (episode := played(seating, tasks[0])).error:
        pass
    assert (episode.status, episode.error) == ("failed", "ConnectionError: connection refused")
    assert (episode.rewards, episode.traces) == ({}, {})

    seating = matching_with(BrokenEngine(tokenizer, 0), renderer)
    monkeypatch.setattr(BrokenEngine, "error", EngineFailed("the server answered 500"))
    episode = played(seating, tasks[0])
    assert (episode.status, episode.error) == ("failed", "EngineFailed: the server answered 500")
    monkeypatch.setattr(BrokenEngine, "error", KeyError("ours"))
    with pytest.raises(KeyError, match="ours"):
        played(seating, tasks[0])


# Games with tools


@pytest.fixture(scope="module")
def words():
    return echo.echo_tokenizer()


class Loading(echo.Echoes):
    """`loaded` holds the games that were loaded."""

    loaded = ()

    def load(self, task):
        self.loaded = *self.loaded, super().load(task)
        return self.loaded[-1]


def with_tools(engine, renderer, **parameters):
    """The policy in the game `tests.echo`, and the taskset."""
    game = NamedGame("echo", echo.Parameters(**parameters), Loading(echo.Parameters(**parameters), 0))
    maker = PolicyRules(renderer, max_turn_tokens=300, temperature=1.0).maker(engine)
    return Seating({"echo": game}, {"policy": maker}, seed=0), game.taskset


def request(taskset, number=0):
    return Request(f"e/{number}", "echo", list(taskset.tasks("train", number + 1))[number], ("policy",))


@pytest.fixture
def echoing(words):
    """echoing(engine=EchoEngine, **parameters): an episode of the game with tools, which is closed."""

    def play(engine=echo.EchoEngine, run=asyncio.run, **parameters):
        seating, taskset = with_tools(engine(words), Renderer(words, thinking=False), **parameters)
        try:
            return run(seating.play(request(taskset)))
        finally:
            assert all(game.closed == 1 for game in taskset.loaded)

    return play


@pytest.fixture(scope="module", params=[False, True], ids=["", "thinking"])
def cutting_renderer(request, words):
    return Renderer(words, thinking=request.param, max_tool_tokens=50)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_call_of_1000_dialogues_is_counted_and_answered(words, cutting_renderer, seed):
    """Several calls in a turn, drafts in thoughts, cut calls, bad JSON, unknown tools, markers and too much in results."""
    seating, taskset = with_tools(Caller(words, seed, echo.SPOKEN), cutting_renderer, max_turns=6)
    episode = asyncio.run(seating.play(request(taskset)))
    attempted = [call for turn in episode.turns for call in turn.message.tool_calls]
    assert episode.metrics["calls"] == len(attempted)
    for status in ("invalid_json", "missing_name", "unclosed_block"):
        assert episode.metrics[f"calls.{status}"] == sum(call.status == status for call in attempted)
    for before, after in pairwise(episode.turns):
        assert len(after.observation) == len(before.message.tool_calls) > 0  # every call is answered
    assert (episode.status == "truncated") == bool(episode.turns[-1].message.tool_calls)
    assert taskset.loaded[0].closed == 1


def test_a_policy_plays_a_game_with_tools(words, echoing):
    episode = echoing()
    assert (episode.status, episode.rewards) == ("completed", {"solver": 1.0})
    first, second = episode.turns
    assert [message.role for message in first.observation] == ["system", "user"]
    assert [call.name for call in first.message.tool_calls] == ["look"]
    assert second.read == f"The word is {second.text}." and first.text == '{"name": "look", "arguments": {}}'
    assert "# Tools" in words.decode(episode.traces["solver"].token_ids)


def raising(error):
    def method(self, *arguments):
        raise error

    return method


async def dropped(self, seat):
    raise ConnectionResetError("by peer")


@pytest.mark.parametrize(
    ("parameters", "broken", "told"),
    [
        ({"call_seconds": 5, "step_seconds": 0.05}, None, "StepTimeout: a step of the game took longer than 0.05 s"),
        ({"failure_rate": 1}, None, "BadGateway: the tool server is gone"),
        ({}, (echo.EchoGame, "observe", dropped), "ConnectionResetError: by peer"),
        ({}, (echo.Echoes, "load", raising(GameFailed("SandboxFailed: no start"))), "SandboxFailed: no start"),
    ],
)
def test_an_environment_that_breaks_fails_the_episode_in_a_sentence_and_is_closed(
    echoing, monkeypatch, parameters, broken, told
):
    if broken:
        monkeypatch.setattr(*broken)
    episode = echoing(**parameters)
    assert (episode.status, episode.error, episode.rewards, episode.traces) == ("failed", told, {}, {})


class Broken(echo.EchoEngine):
    async def generate(self, input_ids, sampling):
        raise KeyError("ours")


class Hanging(echo.EchoEngine):
    async def generate(self, input_ids, sampling):
        await asyncio.sleep(60)


@pytest.mark.parametrize(("engine", "error"), [(Broken, KeyError), (Hanging, TimeoutError)])
def test_a_game_is_closed_after_a_mistake_of_ours_and_after_a_cancellation(echoing, engine, error):
    with pytest.raises(error):
        echoing(engine, run=lambda work: run_in_fake_time(asyncio.wait_for(work, 1)))


def test_a_game_that_cannot_be_closed_changes_nothing(echoing, monkeypatch):
    async def close(self):
        self.closed += 1
        raise GameFailed("BadGateway: the tool server is gone")

    monkeypatch.setattr(echo.EchoGame, "close", close)
    episode = echoing()
    assert (episode.status, episode.rewards) == ("completed", {"solver": 1.0})


def test_slow_steps_of_many_dialogues_overlap(words):
    renderer = Renderer(words, thinking=False)
    seating, taskset = with_tools(echo.EchoEngine(words, looks=2), renderer, call_seconds=0.3)

    async def all_at_once():
        return await asyncio.gather(*(seating.play(request(taskset, n)) for n in range(20))), now()

    episodes, seconds = run_in_fake_time(all_at_once())
    assert {episode.rewards["solver"] for episode in episodes} == {1.0}
    assert seconds == pytest.approx(2 * 0.3)


# Seating


@pytest.mark.parametrize(
    ("seating", "told"),
    [
        (("nobody",), r"no player 'nobody'.* policy, checkpoint:PATH and service:NAME"),
        (("policy", "policy"), r"games.echo.seating names 2 players, but the game has the seats solver."),
        (("service:partner",), "The game echo has no rules for a chat model, so service:partner cannot play it"),
    ],
)
def test_a_seating_that_cannot_be_is_told_in_a_sentence(words, seating, told):
    seats, taskset = with_tools(echo.EchoEngine(words), Renderer(words, thinking=False))
    makers = seats.makers | service_makers({"service:partner", "policy"}, {"partner": None})
    with pytest.raises(UserError, match=told):
        asyncio.run(replace(seats, makers=makers).play(replace(request(taskset), seating=seating)))


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        ("rewards", {}),
        ("rewards", {"solver": 1.0, "nobody": 0.0}),
        *((method, {"solver": value}) for method in ("rewards", "metrics")
          for value in (float("nan"), np.float32("-inf"), 10**400, None, "1.0", torch.ones(2))),
    ],
)  # fmt: skip
def test_a_game_rewards_each_of_its_seats_and_all_its_numbers_are_finite(echoing, monkeypatch, method, numbers):
    what = f"{method} of the game echo are .* no finite number" if len(numbers) == 1 else "each of its seats needs one"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=what):
        patch.setattr(echo.EchoGame, method, lambda self: numbers)
        echoing()
    monkeypatch.setattr(echo.EchoGame, "metrics", lambda self: {"looks": np.int64(3)})
    assert type(echoing().metrics["looks"]) is float
