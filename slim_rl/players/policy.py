"""The policy's seat: token ids in, token ids out, and a record of which of them were sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slim_rl.engines.engine import Engine, Sampling
from slim_rl.players.chat_format import ChatFormat


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

    What the policy sampled is never decoded and encoded again: what it hears is rendered to tokens that
    continue the ids that are there.

    Args:
        sampling: for every turn; its seed is the episode's, each turn draws from its own stream.
    """

    def __init__(self, engine: Engine, chat_format: ChatFormat, sampling: Sampling):
        self.trace = TokenTrace()
        self._engine = engine
        self._format = chat_format
        self._sampling = replace(sampling, stop_token_ids=chat_format.stop_token_ids)
        self._turns = 0

    async def respond(self, observation: str, beginning: Sequence[int] = ()) -> str:
        """Raises ContextFull, or what the engine raises.

        `beginning`: tokens that the turn has to begin with; they are given, not sampled.
        """
        self._read([*self._heard(observation), *beginning], at_least=1)
        room = self._engine.max_context_tokens - len(self.trace.token_ids)
        sampling = replace(
            self._sampling,
            max_new_tokens=min(self._sampling.max_new_tokens, room),
            seed=_turn_seed(self._sampling.seed, self._turns),
        )
        generation = await self._engine.generate(self.trace.token_ids, sampling)
        self.trace.extend(generation.token_ids, generation.logprobs)
        self._turns += 1
        return self._format.content([*beginning, *generation.token_ids])

    def say(self, observation: str, text: str) -> str:
        """Take the turn `text`, which somebody else decided on; none of it is sampled. Raises ContextFull."""
        self._read([*self._heard(observation), *self._format.turn(text)])
        return text

    def take_back(self, length: int) -> None:
        """Forget all but the first `length` tokens of the dialogue."""
        trace = self.trace
        for tokens in (trace.token_ids, trace.loss_mask, trace.logprobs):
            del tokens[length:]

    def _read(self, token_ids: list[int], at_least: int = 0) -> None:
        """Append context, after which there must be room for `at_least` tokens more."""
        if len(self.trace.token_ids) + len(token_ids) + at_least > self._engine.max_context_tokens:
            raise ContextFull
        self.trace.extend(token_ids)

    def close(self) -> None:
        if self._sampling.session is not None:
            self._engine.release(self._sampling.session)

    def _heard(self, observation: str) -> list[int]:
        if not self.trace.token_ids:
            return self._format.opening(observation)
        cut = self.trace.token_ids[-1] not in self._format.stop_token_ids
        return [self._format.stop_token_ids[0]] * cut + self._format.continuation(observation)


def _turn_seed(episode_seed: int, turn: int) -> int:
    return int(np.random.SeedSequence([episode_seed, turn]).generate_state(1, np.uint64)[0])
