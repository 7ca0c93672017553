"""What samples tokens. An engine works on token ids alone: no text, no games, no roles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Sampling:
    """How one continuation is drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 takes the most likely token."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends with the first of these; it belongs to the continuation."""
    seed: int = 0
    """The same seed on the same input draws the same tokens, whoever else is in the batch."""
    session: str | None = None
    """Names a growing sequence, so that an engine can keep what it computed for its beginning."""


FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Generation:
    """A continuation: one entry of `logprobs` (natural log, at the sampling temperature) a token."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    """`abort`: the engine was told to end it; what there is can be continued."""


class EngineFailed(Exception):
    """A continuation could not be had: the engine is gone, overloaded or talks nonsense."""


class Engine(Protocol):
    max_context_tokens: int
    """Prompt and continuation together may not be longer."""

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Raises EngineFailed."""

    def release(self, session: str) -> None:
        """Forget what was kept for `session`."""
