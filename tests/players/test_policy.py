"""What a policy's seat remembers. `tests/rollout/test_play.py` has the rest."""

import asyncio

from slim_rl.core.message import Message, heard, said
from slim_rl.engines.engine import Generation, Sampling
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import renderer_for
from tests.echo import TOOLS, echo_tokenizer


def test_a_frozen_model_that_was_interrupted_reads_its_turns_again_with_its_tools():
    """It has no trace to continue from."""
    words, asked = echo_tokenizer(), []

    class SaysRiver:
        max_context_tokens = 10_000

        async def generate(self, input_ids, sampling):
            asked.append(list(input_ids))
            ids = words.encode("river<|im_end|>")
            return Generation(ids, [-0.5] * len(ids), "stop")

    renderer = renderer_for(words, thinking=False)
    whole, resumed = (PolicyPlayer(SaysRiver(), renderer, Sampling(50), trained=False) for _ in range(2))
    observations = [heard("What is the word?"), (Message("tool", "stone"),), heard("Sure?")]
    for observation in observations:
        asyncio.run(whole.respond(observation, TOOLS))
    for observation in observations[:2]:
        resumed.recall(observation, said("river"))
    asyncio.run(resumed.respond(observations[2], TOOLS))
    assert asked[-1] == asked[2]
