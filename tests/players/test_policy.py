"""What a policy's seat remembers."""

import asyncio

import pytest

from slim_rl.core.message import Message, heard, said
from slim_rl.engines.engine import Generation, Sampling
from slim_rl.players.policy import ContextFull, PolicyPlayer
from slim_rl.players.renderer import renderer_for
from tests.echo import TOOLS, call, echo_tokenizer


class Listening:
    """Says "river", and keeps what it was asked."""

    max_context_tokens = 10_000

    def __init__(self, tokenizer):
        self._ids, self.asked = tokenizer.encode("river"), []

    async def generate(self, input_ids, sampling):
        self.asked.append(list(input_ids))
        ids = [*self._ids, sampling.stop_token_ids[0]]
        return Generation(ids, [-0.5] * len(ids), "stop")


@pytest.fixture(scope="module")
def words():
    return echo_tokenizer()


@pytest.fixture
def engine(words):
    return Listening(words)


def player(engine, words, **options):
    return PolicyPlayer(engine, renderer_for(words, thinking=False), Sampling(50), **options)


def test_a_frozen_model_that_was_interrupted_reads_its_turns_again_with_its_tools(engine, words):
    """It has no trace to continue from."""
    observations = [heard("What is the word?"), (Message("tool", "stone"),), heard("Sure?")]
    whole, resumed = (player(engine, words, trained=False) for _ in range(2))
    for observation in observations:
        asyncio.run(whole.respond(observation, TOOLS))
    for observation in observations[:2]:
        resumed.recall(observation, said("river"))
    asyncio.run(resumed.respond(observations[2], TOOLS))
    assert engine.asked[-1] == engine.asked[2]


def test_a_turn_can_be_begun_for_the_policy_and_is_trained_on_only_where_it_was_sampled(engine, words):
    one, beginning = player(engine, words), words.encode("The word is ")
    message = asyncio.run(one.respond(heard("What is the word?"), beginning=beginning))
    assert message == said("The word is river")
    assert one.trace.loss_mask == [0] * (len(one.trace.token_ids) - 2) + [1, 1]


def test_a_turn_can_be_decided_elsewhere_and_be_taken_back(engine, words):
    one = player(engine, words)
    asyncio.run(one.respond(heard("What is the word?")))
    before = one.trace.token_ids[:]
    assert one.say(heard("And now?"), call("look")) == said(call("look"))
    assert one.trace.token_ids[-1] == words.eos_token_id and sum(one.trace.loss_mask) == 2
    one.take_back(len(before))
    assert one.trace.token_ids == before and len(one.trace.logprobs) == len(one.trace.loss_mask) == len(before)


def test_what_does_not_fit_the_context_ends_the_dialogue(engine, words):
    engine.max_context_tokens = 100
    with pytest.raises(ContextFull):
        asyncio.run(player(engine, words).respond(heard("word " * 100)))
