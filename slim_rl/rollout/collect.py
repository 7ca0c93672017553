"""Many episodes at once: concurrency, progress, and going on after an interruption."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from slim_rl.core.episode import Episode
from slim_rl.rollout.seating import Request
from slim_rl.rollout.shards import add_shard, finished, gather_notes, note_episode
from slim_rl.runtime.team import ALONE, Team

TRIES = 3
"""Attempts per episode in training and evaluation."""


def collect(
    requests: Sequence[Request],
    play: Callable[[Request], Awaitable[Episode]],
    folder: Path,
    concurrency: int,
    title: str | None = None,
    shard_episodes: int | None = 256,
    tries: int = 1,
    status: Callable[[], str] | None = None,
    team: Team = ALONE,
) -> list[Episode]:
    """Play the requests that `folder` has no episode of yet, and add the episodes to it in shards.

    Whatever interrupts it, finished episodes are kept, and the same call goes on from there. Failed episodes
    are played again.

    Args:
        concurrency: episodes under way at a time.
        title: of the progress bar; None shows none.
        shard_episodes: None writes all or nothing. The batch's members change the last digits of log-probs,
            so only then does an interrupted run get the numbers of an uninterrupted one.
        tries: failed episodes are played again, in rounds; after this many rounds in a row that complete none, they are
            recorded as failed. So groups stay whole where an environment often breaks, and an outage ends.
        status: progress-bar suffix.
        team: shares the episodes. Its first process alone writes, so a kill loses what the others have played here.

    Returns:
        One episode for each request, in their order.
    """
    if team.leads:
        gather_notes(folder)
    ended = team.lead(finished(folder) if team.leads else {})
    missing = [request for request in requests if request.episode_id not in ended]
    unwritten: list[Episode] = []

    def write() -> None:
        if unwritten:
            add_shard(folder, unwritten)
            unwritten.clear()

    with tqdm(
        total=len(requests),
        initial=len(requests) - len(missing),
        desc=title,
        unit="episode",
        disable=title is None or not team.leads,
    ) as bar:

        def end(episode: Episode, own: bool) -> None:
            ended[episode.episode_id] = episode
            if not team.leads:
                return
            unwritten.append(episode)
            if shard_episodes is not None:
                note_episode(folder, episode)
                if len(unwritten) >= shard_episodes:
                    write()
            if own and episode.status != "failed":
                bar.update(min(team.size, len(requests) - bar.n))  # the others keep pace
            if status is not None:
                bar.set_postfix_str(status(), refresh=False)

        try:
            left = tries
            while missing and left:
                _share(missing, play, concurrency, end, team)
                failed = [request for request in missing if ended[request.episode_id].status == "failed"]
                left = tries if len(failed) < len(missing) else left - 1
                missing = failed
        except BaseException:
            if shard_episodes is not None:
                write()
            raise
        write()
    team.lead(None)  # nobody goes on before all is written
    return [ended[request.episode_id] for request in requests]


def _share(
    requests: Sequence[Request],
    play: Callable[[Request], Awaitable[Episode]],
    concurrency: int,
    end: Callable[[Episode, bool], None],
    team: Team,
) -> None:
    """Play this process's share, then `end` what the others played."""
    played: list[Episode] = []

    def end_own(episode: Episode) -> None:
        played.append(episode)
        end(episode, True)

    failure: Exception | None = None
    try:
        asyncio.run(_play_all(team.share(requests), play, -(-concurrency // team.size), end_own))
    except Exception as error:
        failure = error
    for rank, theirs in enumerate(team.gather(played)):
        if rank != team.rank:
            for episode in theirs:
                end(episode, False)
    team.agree(failure)


async def _play_all(
    requests: Sequence[Request],
    play: Callable[[Request], Awaitable[Episode]],
    concurrency: int,
    end: Callable[[Episode], None],
) -> None:
    free = asyncio.Semaphore(concurrency)

    async def one(request: Request) -> None:
        async with free:
            end(await play(request))

    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(one(request))
    except BaseExceptionGroup as errors:  # the first error cancelled the other tasks
        raise errors.exceptions[0] from None
