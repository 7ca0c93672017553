"""Limits hold in every window of time."""

import asyncio
import time

from slim_rl.players.limits import Limits

WINDOW = 0.4


def calls(limits, count, tokens=1, lasts=0.0):
    """Make `count` calls at once; returns when each was let through and when it ended, in seconds."""
    times = []

    async def one():
        async with limits.call(tokens):
            started = time.monotonic()
            await asyncio.sleep(lasts)
            times.append((started, time.monotonic()))

    async def everybody():
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())

    asyncio.run(everybody())
    return sorted(times)


def most_in_a_window(moments):
    return max(sum(first <= other < first + WINDOW for other in moments) for first in moments)


def test_requests_in_any_window_are_bounded_wherever_in_a_call_they_are_counted():
    times = calls(Limits(10, None, 100, WINDOW), 35, lasts=0.03)
    for counted_at in (0.0, 0.5, 1.0):  # by the service: as the call begins, half-way, as it ends
        assert most_in_a_window([a + counted_at * (b - a) for a, b in times]) <= 10
    assert times[-1][0] - times[0][0] < 5 * WINDOW  # and it is used up


def test_tokens_in_any_window_are_bounded():
    times = calls(Limits(None, 100, 100, WINDOW), 12, tokens=30)
    assert most_in_a_window([a for a, _ in times]) == 3


def test_what_a_call_used_replaces_its_estimate():
    limits = Limits(None, 100, 100, WINDOW)

    async def play():
        for _ in range(10):
            async with limits.call(90) as call:
                call.tokens = 10

    started = time.monotonic()
    asyncio.run(play())
    assert time.monotonic() - started < 6 * WINDOW  # by the estimates it would be nine windows


def test_a_call_larger_than_the_limit_goes_alone():
    assert len(calls(Limits(None, 100, 100, WINDOW), 2, tokens=500)) == 2


def test_calls_at_a_time_are_bounded():
    times = calls(Limits(None, None, 3, WINDOW), 12, lasts=0.02)
    assert max(sum(a <= start < b for a, b in times) for start, _ in times) == 3


def test_a_refusal_stops_everybody_and_each_further_one_for_longer():
    limits = Limits(None, None, 10, WINDOW)

    async def play():
        pauses = []
        for _ in range(3):
            async with limits.call(1) as refused:
                limits.pause(refused, None)
                limits.pause(refused, None)  # of the same round: no longer pause
            before = time.monotonic()
            async with limits.call(1):
                pauses.append(time.monotonic() - before)
        async with limits.call(1) as call:
            limits.succeeded(call)
            limits.pause(call, 0.1)
        before = time.monotonic()
        async with limits.call(1):
            return [*pauses, time.monotonic() - before]

    first, second, third, asked_for = asyncio.run(play())
    assert 0.25 <= first <= 0.4 and 0.5 <= second <= 0.8 and 1.0 <= third <= 1.6
    assert 0.1 <= asked_for < 0.2
