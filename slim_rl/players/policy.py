"""The policy's seat: token ids in, token ids out, and a record of which of them were sampled."""

from dataclasses import dataclass, field, replace

import numpy as np
from renderers.base import Renderer
from transformers import PreTrainedTokenizerBase

from slim_rl.engines.engine import Engine, Sampling


@dataclass
class TokenTrace:
    """The sequence one seat was conditioned on and is trained on, aligned lists of one length.

    `loss_mask` is 1 exactly on sampled tokens; `logprobs` are 0.0 elsewhere.
    """

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def extend(self, token_ids: list[int], logprobs: list[float] | None = None) -> None:
        """Append context, or sampled tokens with their log-probs."""
        self.token_ids += token_ids
        self.loss_mask += [int(logprobs is not None)] * len(token_ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(token_ids)


class ContextFull(Exception):
    """The dialogue no longer fits the model's context; the episode ends truncated."""


class PolicyPlayer:
    """A conversation between one seat and an engine.

    What the policy sampled is never decoded and encoded again: each observation is rendered to the
    tokens that continue the ids that are there (`bridge_to_next_turn` of the renderers library).

    Args:
        sampling: for every turn; its seed is the episode's, each turn draws from its own stream.
    """

    def __init__(self, engine: Engine, renderer: Renderer, sampling: Sampling):
        self.trace = TokenTrace()
        self._engine = engine
        self._renderer = renderer
        self._sampling = replace(sampling, stop_token_ids=tuple(renderer.get_stop_token_ids()))
        self._turns = 0
        self._opening: list[int] = []

    async def respond(self, observation: str) -> str:
        """Raises ContextFull, or what the engine raises."""
        self._read(observation)
        room = self._engine.max_context_tokens - len(self.trace.token_ids)
        if room < 1:
            raise ContextFull(f"the dialogue has {len(self.trace.token_ids)} tokens")
        sampling = replace(
            self._sampling,
            max_new_tokens=min(self._sampling.max_new_tokens, room),
            seed=_turn_seed(self._sampling.seed, self._turns),
        )
        prompt_ids = list(self.trace.token_ids)
        generation = await self._engine.generate(prompt_ids, sampling)
        self.trace.extend(generation.token_ids, generation.logprobs)
        self._turns += 1
        return self._renderer.parse_response(generation.token_ids, prompt_ids=prompt_ids).content

    def close(self) -> None:
        if self._sampling.session is not None:
            self._engine.release(self._sampling.session)

    def _read(self, observation: str) -> None:
        message = {"role": "user", "content": observation}
        if not self.trace.token_ids:
            self._opening = self._renderer.render_ids([message], add_generation_prompt=True)
            self.trace.extend(self._opening)
            return
        end = self._sampling.stop_token_ids[0]
        if self.trace.token_ids[-1] not in self._sampling.stop_token_ids:
            self.trace.extend([end])  # the turn was cut; the chat format wants it closed
        # What follows a closed turn does not depend on what was said in it. So the renderer is asked what
        # follows an empty one, and never sees sampled tokens, which may be malformed in any way.
        before = [*self._opening, end]
        bridged = self._renderer.bridge_to_next_turn(self._opening, [end], [message])
        if bridged is None or bridged.token_ids[: len(before)] != before:
            raise RuntimeError("The renderer cannot continue a dialogue without rendering it again.")
        self.trace.extend(bridged.token_ids[len(before) :])


def _turn_seed(episode_seed: int, turn: int) -> int:
    return int(np.random.SeedSequence([episode_seed, turn]).generate_state(1, np.uint64)[0])


def make_renderer(tokenizer: PreTrainedTokenizerBase, thinking: bool) -> Renderer:
    """The renderer that belongs to the tokenizer's model family, keeping every turn as it was sampled."""
    from renderers import Qwen3RendererConfig, create_renderer

    config = Qwen3RendererConfig(enable_thinking=thinking, thinking_retention="all")
    return create_renderer(tokenizer, config)
