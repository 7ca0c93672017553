"""Many episodes at once: concurrency, progress, and going on after an interruption."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tqdm import tqdm

from slim_rl.core.episode import Episode
from slim_rl.rollout.seating import Request
from slim_rl.rollout.store import Store
from slim_rl.runtime.retry import wait_seconds
from slim_rl.runtime.team import ALONE, Team
from slim_rl.runtime.together import together

TRIES = 3
"""Attempts per episode in training and evaluation."""

Play = Callable[[Request], Awaitable[Episode]]


async def collect(
    requests: Sequence[Request],
    play: Play,
    store: Store,
    concurrency: int,
    tries: int = 1,
    title: str | None = None,
    status: Callable[[], str] = str,
    team: Team = ALONE,
) -> list[Episode]:
    """Play the requests that `store` has no episode of yet, and add the episodes to it.

    Whatever interrupts it, what the store keeps is kept, and the same call goes on from there. Failed episodes are played
    again.

    Args:
        concurrency: episodes under way at a time.
        tries: rounds in which failed episodes are played, with exponential waits; each round that completes some counts as
            the first again. So groups stay whole where an environment often breaks, and an outage ends.
        title: of the progress bar; None shows none.
        status: progress-bar suffix.
        team: shares the episodes. Its first process alone writes, so a kill loses what the others have played here.

    Returns:
        One episode for each request, in their order.
    """
    if team.leads:
        store.recover()
    ended = await team.lead(store.finished() if team.leads else {})
    missing = [request for request in requests if request.episode_id not in ended]
    hidden = title is None or not team.leads
    done = len(requests) - len(missing)
    with store, tqdm(total=len(requests), initial=done, desc=title, unit="episode", disable=hidden) as bar:

        def end(episode: Episode, own: bool = True) -> None:
            ended[episode.episode_id] = episode
            if team.leads:
                store.add(episode)
                if own and episode.status != "failed":
                    bar.update(min(team.size, len(requests) - bar.n))  # the others keep pace
                bar.set_postfix_str(status(), refresh=False)

        left = tries
        while missing and left:
            if left < tries:
                await asyncio.sleep(wait_seconds(tries - left, 0.5, 30.0))
            await _play_shared(missing, play, concurrency, end, team)
            failed = [request for request in missing if ended[request.episode_id].status == "failed"]
            left = (tries if len(failed) < len(missing) else left) - 1
            missing = failed
    await team.lead(None)  # nobody goes on before all is written
    return [ended[request.episode_id] for request in requests]


async def _play_shared(
    requests: Sequence[Request], play: Play, concurrency: int, end: Callable[..., None], team: Team
) -> None:
    """Play this process's share, then `end` the episodes of the others."""
    played: list[Episode] = []
    free = asyncio.Semaphore(-(-concurrency // team.size))

    async def one(request: Request) -> None:
        async with free:
            episode = await play(request)
            played.append(episode)
            end(episode)

    failure: Exception | None = None
    try:
        await together(map(one, team.share(requests)))
    except Exception as error:
        failure = error
    for rank, episodes in enumerate(await team.gather(played)):
        for episode in episodes if rank != team.rank else ():
            end(episode, own=False)
    await team.agree(failure)
