"""The interface of engines. An engine samples tokens from token ids; it knows no text, no games and no roles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from slim_rl.core.errors import EpisodeFailed


@dataclass(frozen=True)
class Sampling:
    """How one continuation is sampled."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 takes the most likely token."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends with the first of these; it belongs to the continuation."""
    seed: int = 0
    """The same seed on the same input draws the same tokens, whatever else is in the batch."""
    forbidden_token_ids: tuple[int, ...] = ()
    """Never drawn. The log-probs of the others are as if nothing were forbidden, but from SGLang as if these tokens did not
    exist."""
    session: str | None = None
    """Names a growing sequence, so that an engine can keep the keys and values of its beginning."""


FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Generation:
    """A continuation: one entry of `logprobs` (natural log, at the sampling temperature) for each token."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    """`abort`: the engine was told to stop; the tokens sampled so far can be continued."""


class EngineFailed(EpisodeFailed):
    """The engine gave no continuation: it is gone, overloaded, or its answer makes no sense."""


class Engine(Protocol):
    max_context_tokens: int
    """The limit on prompt and continuation together."""

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Raises EngineFailed."""

    def release(self, session: str) -> None:
        """Forget what was kept for `session`."""
