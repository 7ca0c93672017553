"""The rate at which a service may be called: requests and tokens per minute, calls at once, common pauses."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 60.0
_LOOK_AGAIN_SECONDS = 0.05


@dataclass
class Call:
    """A call that was let through."""

    started: float
    """By the event loop's clock, seconds."""
    tokens: int
    """An estimate; the caller replaces it by what the call used."""


class Limits:
    """Lets calls through in the order in which they arrive. Belongs to one event loop.

    A call counts from before it is sent until a minute after it has ended, because we cannot know when in between the
    server counted it. So the server never sees more than the limit in any minute, whatever the network does.

    Args:
        max_requests, max_tokens: in any `window_seconds`; None for no limit.
        max_concurrent: calls under way at once.
    """

    def __init__(
        self,
        max_requests: int | None,
        max_tokens: int | None,
        max_concurrent: int,
        window_seconds: float = 60.0,
    ):
        self._max_requests, self._max_tokens, self._window = max_requests, max_tokens, window_seconds
        self._free = asyncio.Semaphore(max_concurrent)
        self._turnstile = asyncio.Lock()
        self._requests = self._tokens = 0
        self._ended: deque[tuple[float, int]] = deque()
        self._backoff = self._paused_at = self._paused_until = 0.0

    @asynccontextmanager
    async def call(self, tokens: int) -> AsyncIterator[Call]:
        """Wait until a call of about this many tokens may be sent; it has ended when the context ends."""
        async with self._free:
            async with self._turnstile:
                while (wait := self._wait(tokens)) > 0:
                    await asyncio.sleep(wait)
                call = Call(_now(), tokens)
                self._requests += 1
                self._tokens += tokens
            try:
                yield call
            finally:
                self._tokens += call.tokens - tokens
                self._ended.append((_now(), call.tokens))

    def pause(self, refused: Call, seconds: float | None) -> None:
        """Let no call through for a while, because the service refused one.

        Args:
            seconds: the pause that the service asked for; None doubles the previous one.
        """
        now = _now()
        if seconds is None:
            if refused.started < self._paused_at:
                return  # sent before the current pause
            self._backoff = min(max(2 * self._backoff, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            seconds = self._backoff * random.uniform(1.0, 1.5)
        self._paused_at = now
        self._paused_until = max(self._paused_until, now + seconds)

    def succeeded(self, call: Call) -> None:
        """The service works again: the next pause is short."""
        if call.started >= self._paused_at:
            self._backoff = 0.0

    def _wait(self, tokens: int) -> float:
        """Seconds to wait before looking again; 0 if a call may be sent now."""
        now = _now()
        while self._ended and self._ended[0][0] + self._window <= now:
            self._requests -= 1
            self._tokens -= self._ended.popleft()[1]
        if now < self._paused_until:
            return self._paused_until - now
        full = self._max_requests is not None and self._requests >= self._max_requests
        if self._max_tokens is not None and self._requests:  # a call above the whole limit goes alone
            full |= self._tokens + tokens > self._max_tokens
        if not full:
            return 0.0
        return self._ended[0][0] + self._window - now if self._ended else _LOOK_AGAIN_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()
