"""The rate at which a service is called: requests and tokens per minute, calls at once, common pauses."""

import asyncio

from aiolimiter import AsyncLimiter

from slim_rl.runtime.retry import wait_seconds

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0


class Limits:
    """Lets calls through in the order in which they arrive. Belongs to one event loop.

    Args:
        max_requests, max_tokens: a minute, after a burst of as many at the start; None for no limit.
        max_concurrent: calls under way at once.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None, max_concurrent: int):
        self._requests = AsyncLimiter(max_requests) if max_requests else None
        self._tokens = AsyncLimiter(max_tokens) if max_tokens else None
        self._free = asyncio.Semaphore(max_concurrent)
        self._line = asyncio.Lock()
        self.refusals = 0
        """In a row. Meanwhile one call is let through at a time."""
        self._trial: float | None = None
        self._trial_over = asyncio.Event()
        self._paused_at = self._open_at = 0.0

    async def enter(self, tokens: int) -> float:
        """Wait until a call of about this many tokens may be sent. `leave` must follow.

        Returns:
            When the call was let through, by the event loop's clock.
        """
        await self._free.acquire()
        try:
            async with self._line:
                if self._requests:
                    await self._requests.acquire()
                if self._tokens:  # a call above the whole limit takes all of it
                    await self._tokens.acquire(min(tokens, self._tokens.max_rate))
                while (wait := self._open_at - _now()) > 0 or (self.refusals and self._trial is not None):
                    if wait > 0:
                        await asyncio.sleep(wait)
                    else:
                        await self._trial_over.wait()
                entered = _now()
                if self.refusals:
                    self._trial = entered
                    self._trial_over.clear()
        except BaseException:
            self._free.release()
            raise
        return entered

    def leave(self, entered: float) -> None:
        """The call that entered then has ended."""
        self._free.release()
        if entered == self._trial:
            self._trial = None
            self._trial_over.set()

    def pause(self, entered: float, seconds: float | None) -> None:
        """Let no call through for a while, because the service failed the one that entered at `entered`.

        Args:
            seconds: the shortest pause that the service accepts, if it says so. Each pause in a row is about twice as
                long as the last, or this long if that is longer.
        """
        now, seconds = _now(), seconds or 0.0
        if entered >= self._paused_at:  # not sent before the current pause
            self._paused_at = now
            self.refusals += 1
            seconds = max(seconds, wait_seconds(self.refusals, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
        self._open_at = max(self._open_at, now + seconds)

    def succeeded(self, entered: float) -> None:
        """The service works again: the next pause is short."""
        if entered >= self._paused_at:
            self.refusals = 0


def _now() -> float:
    return asyncio.get_running_loop().time()
