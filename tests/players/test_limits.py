"""How fast a service is called."""

import asyncio
from itertools import pairwise

import pytest

from slim_rl.players.limits import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Limits
from tests.fake_time import now, run_in_fake_time


def calls(limits, *tokens, lasts=0.0):
    """Make calls of so many tokens at once; returns when each was let through and when it ended, in seconds."""
    times = []

    async def one(size):
        entered = await limits.enter(size)
        assert entered == now()
        await asyncio.sleep(lasts)
        limits.leave(entered)
        times.append((entered, now()))

    async def all_at_once():
        async with asyncio.TaskGroup() as group:
            for size in tokens:
                group.create_task(one(size))

    run_in_fake_time(all_at_once())
    return times


@pytest.mark.parametrize(("limits", "tokens"), [(Limits(10, None, 100), [1] * 35), (Limits(None, 100, 100), [10] * 35)])
def test_requests_and_tokens_keep_to_their_rate_after_a_burst_of_a_minute(limits, tokens):
    entered = [start for start, _ in calls(limits, *tokens)]
    assert entered[9] == 0 and entered[10:] == pytest.approx([6.0 * (n + 1) for n in range(25)])


def test_calls_are_let_through_in_the_order_in_which_they_came():
    """A large one is not overtaken by small ones for ever."""
    limits, order = Limits(None, 100, 100), []

    async def one(size):
        await limits.enter(size)
        order.append(size)

    async def all_at_once():
        await asyncio.gather(*map(one, (60, 90, 1, 2, 3)))

    run_in_fake_time(all_at_once())
    assert order == [60, 90, 1, 2, 3]


def test_a_call_larger_than_the_limit_takes_all_of_it():
    assert [start for start, _ in calls(Limits(None, 100, 100), 500, 500)] == [0, pytest.approx(60)]


def test_calls_at_a_time_are_bounded():
    assert [start for start, _ in calls(Limits(None, None, 3), *[1] * 7, lasts=2.0)] == [0, 0, 0, 2, 2, 2, 4]


def test_a_call_that_gives_up_leaves_its_place():
    limits = Limits(None, None, 1)

    async def play():
        entered = await limits.enter(1)
        limits.pause(now(), 10)
        limits.leave(entered)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await limits.enter(1)
        assert await limits.enter(1) == 10

    run_in_fake_time(play())


def test_a_refusal_stops_everybody_and_each_further_one_for_longer_until_one_succeeds():
    limits = Limits(None, None, 10)

    async def play():
        entered = [await limits.enter(1)]

        async def following():
            limits.leave(entered[-1])
            entered.append(await limits.enter(1))

        for _ in range(3):
            limits.pause(entered[-1], None)
            limits.pause(entered[-1] - 1, None)  # sent before this pause: no longer one
            await following()
        limits.succeeded(entered[-1])
        limits.pause(entered[-1], None)
        await following()
        limits.pause(entered[-1], 100)  # the service asked for it
        await following()
        return [after - before for before, after in pairwise(entered)]

    *pauses, last, asked_for = run_in_fake_time(play())
    for n, pause in enumerate([*pauses, last]):
        longest = FIRST_PAUSE_SECONDS * 2 ** (n % 3)
        assert longest / 2 <= pause <= longest < LONGEST_PAUSE_SECONDS
    assert asked_for == pytest.approx(100)


@pytest.mark.parametrize("asked_for", [None, 2.0])
def test_after_a_refusal_one_call_at_a_time_tries_until_one_succeeds(asked_for):
    limits = Limits(None, None, 10)

    async def one(works):
        entered = await limits.enter(1)
        await asyncio.sleep(5)
        limits.succeeded(entered) if works else limits.pause(entered, asked_for)
        limits.leave(entered)
        return entered

    async def play():
        return await asyncio.gather(*(one(number >= 12) for number in range(16)))

    entered = run_in_fake_time(play())
    assert entered[:10] == [0] * 10  # they did not know yet
    assert all(after - before > 5 for before, after in pairwise(entered[9:13]))
    assert entered[13:] == [entered[12] + 5] * 3


def test_a_service_that_always_asks_for_a_short_pause_gets_longer_ones_and_a_late_refusal_may_ask_for_more():
    limits = Limits(None, None, 10)

    async def play():
        entered = [await limits.enter(1)]
        for _ in range(5):
            limits.pause(entered[-1], 0.01)
            limits.leave(entered[-1])
            entered.append(await limits.enter(1))
        limits.pause(entered[-1], 1)
        limits.pause(entered[0], 100)  # sent before this pause, so it counts no more
        assert limits.refusals == 6
        limits.leave(entered[-1])
        entered.append(await limits.enter(1))
        return [after - before for before, after in pairwise(entered)]

    *pauses, last = run_in_fake_time(play())
    assert sum(pauses) >= sum(FIRST_PAUSE_SECONDS * 2**n / 2 for n in range(5))
    assert last == pytest.approx(100)
