"""Calls that fail for a while."""

import asyncio

import pytest

from slim_rl.runtime.retry import retry
from tests.fake_time import now, run_in_fake_time


class Busy(Exception):
    pass


class Service:
    """Fails until it was called `failures` times, then tells the time."""

    def __init__(self, failures: int, error: Exception | None = None):
        self.failures, self.error, self.calls = failures, error or Busy("busy"), []

    async def __call__(self) -> float:
        self.calls.append(now())
        if len(self.calls) <= self.failures:
            raise self.error
        return now()


def test_waits_double_up_to_the_longest_with_jitter_and_are_told():
    service, waits = Service(6), []
    run_in_fake_time(
        retry(
            service, Busy, first_seconds=1, longest_seconds=8, on_wait=lambda error, wait: waits.append((error, wait))
        )
    )
    for (error, wait), longest, (before, after) in zip(
        waits, [1, 2, 4, 8, 8, 8], zip(service.calls, service.calls[1:], strict=False), strict=True
    ):
        assert error is service.error
        assert longest / 2 <= wait <= longest and after - before == pytest.approx(wait)


@pytest.mark.parametrize(
    ("error", "again", "limits", "calls"),
    [
        (Busy(), Busy, {"tries": 3}, 3),
        (Busy(), (OSError, Busy), {"tries": 1}, 1),
        (OSError(), Busy, {"tries": 3}, 1),
        (OSError("gone"), lambda error: "busy" in str(error), {"tries": 3}, 1),
        (OSError("busy"), lambda error: "busy" in str(error), {"tries": 3}, 3),
    ],
)
def test_the_last_error_is_raised_after_all_tries_and_another_kind_at_once(error, again, limits, calls):
    service = Service(10, error)
    with pytest.raises(type(error)) as raised:
        run_in_fake_time(retry(lambda: service(), again, **limits))
    assert raised.value is error and len(service.calls) == calls


def test_no_call_is_made_after_the_limit_in_time():
    service = Service(1000)
    with pytest.raises(Busy):
        run_in_fake_time(retry(service, Busy, seconds=60, longest_seconds=10))
    assert 50 - 1e-9 <= service.calls[-1] <= 60


def test_a_cancelled_caller_makes_no_further_call():
    service = Service(1000)

    async def cancelled():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await retry(service, Busy)
        made = len(service.calls)
        await asyncio.sleep(100)
        assert len(service.calls) == made

    run_in_fake_time(cancelled())
