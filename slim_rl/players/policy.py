"""The policy's seat: token ids in, token ids out, and a record of which of them were sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from slim_rl.engines.engine import Engine, EngineFailed, Sampling
from slim_rl.players.chat_format import ChatFormat
from slim_rl.players.player import PlayerFailed


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


class Interrupted(Exception):
    """The engine was told to end what it sampled; the dialogue can go on from there."""


class PolicyPlayer:
    """A conversation between one seat and an engine.

    What the policy sampled is never decoded and encoded again: what it hears is rendered to tokens that
    continue the ids that are there.

    Args:
        sampling: for every turn; its seed is the episode's, each turn draws from its own stream.
        trained: whether its trace is part of the episode; that of a frozen model is not.
    """

    def __init__(self, engine: Engine, chat_format: ChatFormat, sampling: Sampling, trained: bool = True):
        self.trace = TokenTrace()
        self.trained = trained
        self._engine = engine
        self._format = chat_format
        self._sampling = replace(sampling, stop_token_ids=chat_format.stop_token_ids)
        self._turns = 0
        self._begun: int | None = None
        """Tokens there are of a turn that was interrupted."""

    async def respond(self, observation: str, beginning: Sequence[int] = ()) -> str:
        """Raises ContextFull, Interrupted, PlayerFailed.

        `beginning`: tokens that the turn has to begin with; they are given, not sampled.
        """
        if self._begun is None:
            self._read([*self._heard(observation), *beginning], at_least=1)
        sampled, self._begun = self._begun or 0, None
        room = self._engine.max_context_tokens - len(self.trace.token_ids)
        if room < 1:
            raise ContextFull
        sampling = replace(
            self._sampling,
            max_new_tokens=min(max(self._sampling.max_new_tokens - sampled, 1), room),
            seed=_turn_seed(self._sampling.seed, self._turns, sampled),
        )
        try:
            generation = await self._engine.generate(self.trace.token_ids, sampling)
        except EngineFailed as error:
            raise PlayerFailed from error
        self.trace.extend(generation.token_ids, generation.logprobs)
        if generation.finish_reason == "abort":
            raise Interrupted
        self._turns += 1
        said = self.trace.token_ids[-sampled - len(generation.token_ids) :]
        return self._format.content([*beginning, *said])

    def recall(self, observation: str, text: str) -> None:
        self._turns += 1
        if not self.trained:  # it has no trace to go on from
            self.say(observation, text)

    def resume(self, trace: TokenTrace) -> None:
        """Go on from the trace of an interrupted dialogue, whose finished turns were recalled."""
        self.trace = trace
        starts = [i for i, step in enumerate(pairwise([0, *trace.loss_mask])) if step == (0, 1)]
        if len(starts) > self._turns:
            self._begun = len(trace.token_ids) - starts[-1]
        elif trace.loss_mask and not trace.loss_mask[-1]:
            self._begun = 0  # it had heard, and said nothing yet

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


def _turn_seed(episode_seed: int, turn: int, sampled: int) -> int:
    sequence = np.random.SeedSequence([episode_seed, turn] + [sampled] * (sampled > 0))
    return int(sequence.generate_state(1, np.uint64)[0])
