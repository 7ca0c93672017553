"""Calls that may fail for a while are made again: exponential waits with jitter, by tenacity.

    reply = await retry(lambda: post(body), (aiohttp.ClientError, TimeoutError), tries=4)

It reads the event loop's clock alone, so a test can run it on a loop whose time jumps.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

T = TypeVar("T")


async def retry(
    call: Callable[[], Awaitable[T]],
    again: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool],
    *,
    tries: int | None = None,
    seconds: float | None = None,
    first_seconds: float = 0.25,
    longest_seconds: float = 30.0,
    on_wait: Callable[[Exception, float], object] | None = None,
) -> T:
    """The result of the first `call()` that succeeds. The last error is raised as it came.

    Args:
        again: the errors after which it is called again, or a function that tells them.
        tries: makes at most this many calls.
        seconds: makes no call later than this after the first one.
        first_seconds, longest_seconds: of a wait; see `wait_seconds`.
        on_wait: is told the error and the seconds of each wait.
    """
    clock = asyncio.get_running_loop().time
    started = clock()

    async def attempt() -> T:
        return await call()

    def wanted(error: BaseException) -> bool:
        if isinstance(again, type | tuple):
            return isinstance(error, again)
        return isinstance(error, Exception) and again(error)

    def wait(state: RetryCallState) -> float:
        return wait_seconds(state.attempt_number, first_seconds, longest_seconds)

    def stop(state: RetryCallState) -> bool:
        late = seconds is not None and clock() - started + state.upcoming_sleep > seconds
        return late or (tries is not None and state.attempt_number >= tries)

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if on_wait is not None and isinstance(error, Exception):
            on_wait(error, state.upcoming_sleep)

    retrying = AsyncRetrying(
        retry=retry_if_exception(wanted), wait=wait, stop=stop, before_sleep=before_sleep, reraise=True
    )
    return await retrying(attempt)


def wait_seconds(failures: int, first: float, longest: float) -> float:
    """The wait after `failures` failures in a row, 1 or more: twice as long each time, and half of it is jitter."""
    return random.uniform(0.5, 1.0) * min(first * 2.0 ** min(failures - 1, 60), longest)
