"""Token in, token out: what an engine was asked is what is trained on, whatever a model comes up with."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim_rl.engines.engine import Generation
from slim_rl.engines.local import LocalEngine
from slim_rl.games.matching import load_game
from slim_rl.games.matching.scripted import shy_partner
from slim_rl.players.player import PlayerFailed
from slim_rl.rollout.table import Job, Table, policy_seat
from slim_rl.training.warmstart import tiny_qwen
from tests.babbler import Babbler

SEATING = ("policy", "partner")


def seated(engine, chat_format, partner=None, max_turns=12):
    return Table(
        kind="matching",
        load_game=lambda line: load_game(line, max_turns),
        makers={
            "policy": policy_seat(engine, chat_format, max_turn_tokens=16, temperature=1.0),
            "partner": partner or (lambda game, seat, job, seed: shy_partner(game, seat, always_accept=True)),
        },
        seed=0,
    )


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_token_is_accounted_for(tokenizer, chat_format, games, seed):
    engine = Babbler(tokenizer, seed)
    episode = asyncio.run(seated(engine, chat_format).play(Job("e", games[0], SEATING)))
    trace = episode.traces["player-1"]
    assert len(trace.token_ids) == len(trace.loss_mask) == len(trace.logprobs)

    trained = [0] * len(trace.token_ids)
    for asked, generation in engine.asked:
        end = len(asked) + len(generation.token_ids)
        assert trace.token_ids[: len(asked)] == asked  # conditioned on exactly what is trained on
        assert trace.token_ids[len(asked) : end] == generation.token_ids
        assert trace.logprobs[len(asked) : end] == generation.logprobs
        trained[len(asked) : end] = [1] * len(generation.token_ids)
    assert trace.loss_mask == trained
    assert all(logprob == 0 for logprob, mask in zip(trace.logprobs, trained, strict=True) if not mask)
    assert engine.released == "e/player-1"


def test_partner_and_game_see_text_without_markers(tokenizer, chat_format, games):
    for seed in range(20):
        episode = asyncio.run(seated(Babbler(tokenizer, seed), chat_format).play(Job("e", games[0], SEATING)))
        heard = [turn.observation for turn in episode.turns if turn.seat == "player-2"]
        assert not any(
            marker in text for text in heard for marker in ("<|im_end|>", "<|im_start|>", "<think>")
        )


def test_a_dialogue_that_fills_the_context_is_truncated(tokenizer, chat_format, games):
    engine = Babbler(tokenizer, 1)
    engine.max_context_tokens = 60
    episode = asyncio.run(seated(engine, chat_format, max_turns=100).play(Job("e", games[0], SEATING)))
    assert episode.status == "truncated"
    assert episode.rewards == {"player-1": 0.0, "player-2": 0.0}
    assert all(len(asked) + len(g.token_ids) <= 60 for asked, g in engine.asked)


def test_a_game_that_runs_out_of_turns_is_truncated_and_earns_nothing(tokenizer, chat_format, games):
    episode = asyncio.run(
        seated(Babbler(tokenizer, 0), chat_format, max_turns=1).play(Job("e", games[0], SEATING))
    )
    assert (episode.status, episode.rewards["player-1"]) == ("truncated", 0.0)


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


class Remembering:
    """A partner that says how many turns it has behind it."""

    def __init__(self):
        self.memory = []

    async def respond(self, observation):
        self.recall(observation, f"[message] I have had {len(self.memory)} turns.")
        return self.memory[-1][1]

    def recall(self, observation, text):
        self.memory.append((observation, text))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_interrupted_dialogue_goes_on_as_if_nothing_had_happened(tokenizer, chat_format, games, seed):
    model = tiny_qwen(tokenizer, max_context_tokens=512, seed=seed % 5)
    engine = Interrupting(LocalEngine(model), seed)
    table = seated(engine, chat_format, partner=lambda *_: Remembering(), max_turns=6)
    begun, plays = None, 0
    while begun is None or begun.status == "aborted":
        begun = asyncio.run(table.play(Job("e", games[0], SEATING, begun=begun)))
        plays += 1
    engine.rng = SimpleNamespace(random=lambda: 1.0)
    whole = asyncio.run(table.play(Job("e", games[0], SEATING)))
    assert begun.turns == whole.turns and begun.rewards == whole.rewards
    ours, theirs = begun.traces["player-1"], whole.traces["player-1"]
    assert (ours.token_ids, ours.loss_mask) == (theirs.token_ids, theirs.loss_mask)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert all(whole.traces["player-1"].token_ids[: len(asked)] == asked for asked in engine.asked)


class GonePartner:
    async def respond(self, observation):
        try:
            raise ConnectionError("connection refused")
        except ConnectionError as error:
            raise PlayerFailed("the partner did not answer") from error


def test_somebody_elses_fault_fails_the_episode_with_its_cause(tokenizer, chat_format, games):
    engine = Babbler(tokenizer, 0)
    table = seated(engine, chat_format, partner=lambda *_: GonePartner())
    while not (episode := asyncio.run(table.play(Job("e", games[0], SEATING)))).error:
        pass
    assert (episode.status, episode.error) == ("failed", "ConnectionError: connection refused")
    assert (episode.rewards, episode.traces) == ({}, {})


def test_a_mistake_of_ours_is_not_hidden(tokenizer, chat_format, games):
    class Broken(Babbler):
        async def generate(self, input_ids, sampling):
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        asyncio.run(seated(Broken(tokenizer, 0), chat_format).play(Job("e", games[0], SEATING)))
