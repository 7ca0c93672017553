"""The policy's seat: token ids in, token ids out, and a record of which of them were sampled."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from slim_rl.core.episode import TokenTrace
from slim_rl.core.errors import PlayerFailed
from slim_rl.core.message import Message, Sampled, Tool
from slim_rl.core.player import Constraint, ContextFull, Interrupted, Player
from slim_rl.engines.engine import Engine, EngineFailed, Sampling
from slim_rl.players.renderer import Renderer


class PolicyPlayer(Player):
    """A conversation between one seat and an engine.

    What the policy sampled is never decoded and encoded again: new messages are rendered to tokens that continue the
    ids that are there.

    Args:
        sampling: for every turn. Its seed is the episode's; each turn draws from its own stream.
        trained: whether the trace becomes part of the episode; the trace of a frozen model does not.
    """

    def __init__(self, engine: Engine, renderer: Renderer, sampling: Sampling, trained: bool = True):
        self._trace = TokenTrace()
        self._trained = trained
        self._engine = engine
        self._renderer = renderer
        self._sampling = replace(sampling, stop_token_ids=renderer.stop_token_ids)
        self._turns = 0
        self._begin = 0
        """Where the last turn begins, with what was read before it."""
        self._constraint = Constraint()
        self._recalled: list[tuple[Sequence[Message], Message]] = []
        """Turns of a frozen model from before an interruption, to be read again before its next turn."""
        self._begun: int | None = None
        """The number of tokens sampled of a turn that was interrupted."""

    @property
    def trace(self) -> TokenTrace | None:
        return self._trace if self._trained else None

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        for past in self._recalled:
            self.say(*past, tools)
        self._recalled.clear()
        self._begin = len(self._trace.token_ids)
        constraint, self._constraint = self._constraint, Constraint()
        beginning = self._renderer.beginning(constraint.begins)
        if self._begun is None:
            self._read([*self._heard(observation, tools), *beginning], at_least=1)
        sampled, self._begun = self._begun or 0, None
        room = self._engine.max_context_tokens - len(self._trace.token_ids)
        if room < 1:
            raise ContextFull
        limit = min(self._sampling.max_new_tokens, constraint.max_new_tokens or self._sampling.max_new_tokens)
        sampling = replace(
            self._sampling,
            max_new_tokens=min(max(limit - sampled, 1), room),
            seed=_turn_seed(self._sampling.seed, self._turns, sampled),
            forbidden_token_ids=() if constraint.calls else self._renderer.call_token_ids,
        )
        try:
            generation = await self._engine.generate(self._trace.token_ids, sampling)
        except EngineFailed as error:
            raise PlayerFailed from error
        self._trace.extend(generation.token_ids, generation.logprobs)
        if generation.finish_reason == "abort":
            raise Interrupted
        self._turns += 1
        turn = self._trace.token_ids[-sampled - len(generation.token_ids) :]
        texts = map(self._renderer.text, turn) if constraint.logprobs else ()
        counts = Sampled(
            len(self._trace.token_ids) - len(turn),
            len(turn),
            generation.finish_reason == "length",
            tuple(zip(texts, self._trace.logprobs[-len(turn) :], strict=False)),
        )
        return replace(self._renderer.parse([*beginning, *turn]), sampled=counts)

    def can_say(self, text: str) -> bool:
        return self._renderer.can_say(text, self._sampling.max_new_tokens)

    def recall(self, observation: Sequence[Message], message: Message) -> None:
        self._turns += 1
        if not self._trained:  # it has no trace to continue from
            self._recalled.append((observation, message))

    def resume(self, trace: TokenTrace) -> None:
        self._trace = trace
        starts = [i for i, step in enumerate(pairwise([0, *trace.loss_mask])) if step == (0, 1)]
        if len(starts) > self._turns:
            self._begun = len(trace.token_ids) - starts[-1]
        elif trace.loss_mask and not trace.loss_mask[-1]:
            self._begun = 0  # it read the observation, but has not sampled anything yet

    def say(self, observation: Sequence[Message], message: Message, tools: Sequence[Tool] = ()) -> None:
        """See `Player.say`; none of it is sampled. Raises ContextFull."""
        self._begin = len(self._trace.token_ids)
        calls = (f"<tool_call>\n{call.raw}\n</tool_call>" for call in message.tool_calls)
        text = "\n".join(filter(None, (message.text, *calls)))
        self._read([*self._heard(observation, tools), *self._renderer.turn(text)])

    def take_back(self) -> None:
        for tokens in (self._trace.token_ids, self._trace.loss_mask, self._trace.logprobs):
            del tokens[self._begin :]

    def constrain(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def close(self) -> None:
        if self._sampling.session is not None:
            self._engine.release(self._sampling.session)

    def _read(self, token_ids: list[int], at_least: int = 0) -> None:
        """Append context, after which there must be room for `at_least` more tokens."""
        if len(self._trace.token_ids) + len(token_ids) + at_least > self._engine.max_context_tokens:
            raise ContextFull
        self._trace.extend(token_ids)

    def _heard(self, observation: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        if not self._trace.token_ids:
            return self._renderer.opening(observation, tools)
        cut = self._trace.token_ids[-1] not in self._renderer.stop_token_ids
        return [self._renderer.stop_token_ids[0]] * cut + self._renderer.continuation(observation)


def _turn_seed(episode_seed: int, turn: int, sampled: int) -> int:
    sequence = np.random.SeedSequence([episode_seed, turn] + [sampled] * (sampled > 0))
    return int(sequence.generate_state(1, np.uint64)[0])
