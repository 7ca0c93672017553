"""What a policy's seat remembers. `tests/rollout/test_play.py` has the rest."""

import asyncio

from slim_rl.core.message import Message, heard, said
from slim_rl.engines.engine import Sampling
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import Renderer
from tests.babbler import Scripted
from tests.echo import TOOLS, echo_tokenizer


def test_a_frozen_model_that_was_interrupted_reads_its_turns_again_with_its_tools():
    """It has no trace to continue from."""
    words = echo_tokenizer()
    engine, renderer = Scripted([words.encode("river<|im_end|>")] * 4), Renderer(words, thinking=False)
    whole, resumed = (PolicyPlayer(engine, renderer, Sampling(50), trained=False) for _ in range(2))
    observations = [heard("What is the word?"), (Message("tool", "stone"),), heard("Sure?")]
    for observation in observations:
        asyncio.run(whole.respond(observation, TOOLS))
    for observation in observations[:2]:
        resumed.recall(observation, said("river"))
    asyncio.run(resumed.respond(observations[2], TOOLS))
    assert engine.asked[3] == engine.asked[2]
