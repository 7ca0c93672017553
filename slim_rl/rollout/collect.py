"""Many episodes at once: concurrency, progress, and going on after an interruption."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

from tqdm import tqdm

from slim_rl.rollout.episode import Episode
from slim_rl.rollout.store import finished, forget_notes, gather_notes, next_shard, note_episode, write_shard
from slim_rl.rollout.table import Job


def collect(
    jobs: Sequence[Job],
    play: Callable[[Job], Awaitable[Episode]],
    folder: Path,
    concurrency: int,
    title: str | None = None,
    shard_episodes: int | None = 256,
    tries: int = 1,
    status: Callable[[], str] | None = None,
    run: Callable[[Coroutine], None] = asyncio.run,
) -> list[Episode]:
    """Play the jobs that `folder` has no episode of yet, and add theirs to it in shards.

    Whatever interrupts it, the episodes that had ended are kept, and the same call goes on from there.
    Those that failed are played again.

    Args:
        concurrency: episodes under way at a time.
        title: of the progress bar; None shows none.
        shard_episodes: None writes all or nothing. Who shares a batch changes the last digits of
            log-probs, so only then has an interrupted run the numbers of one that was not.
        tries: so many times an episode that fails is played before its failure is taken.
        status: what else the bar says.
        run: runs the event loop that they are played on.

    Returns:
        One episode for each job, in the order of the jobs.
    """
    gather_notes(folder)
    ended = finished(folder)
    missing = [job for job in jobs if job.episode_id not in ended]
    unwritten: list[Episode] = []

    def write() -> None:
        if unwritten:
            write_shard(next_shard(folder), unwritten)
            unwritten.clear()
            forget_notes(folder)

    with tqdm(
        total=len(jobs), initial=len(jobs) - len(missing), desc=title, unit="episode", disable=title is None
    ) as bar:

        def end(episode: Episode) -> None:
            ended[episode.episode_id] = episode
            unwritten.append(episode)
            if shard_episodes is not None:
                note_episode(folder, episode)
                if len(unwritten) >= shard_episodes:
                    write()
            if episode.status != "failed":
                bar.update()
            if status is not None:
                bar.set_postfix_str(status(), refresh=False)

        try:
            for _ in range(tries):
                run(_play_all(missing, play, concurrency, end))
                missing = [job for job in missing if ended[job.episode_id].status == "failed"]
                if not missing:
                    break
        except BaseException:
            if shard_episodes is not None:
                write()
            raise
        write()
    return [ended[job.episode_id] for job in jobs]


async def _play_all(
    jobs: Sequence[Job],
    play: Callable[[Job], Awaitable[Episode]],
    concurrency: int,
    end: Callable[[Episode], None],
) -> None:
    free = asyncio.Semaphore(concurrency)

    async def one(job: Job) -> None:
        async with free:
            end(await play(job))

    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(one(job))
    except BaseExceptionGroup as errors:  # the first one ended the others; it is the one to tell of
        raise errors.exceptions[0] from None
