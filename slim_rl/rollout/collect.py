"""Many episodes at once: concurrency, progress, and going on after an interruption."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from slim_rl.rollout.episode import Episode
from slim_rl.rollout.store import read_episodes, shards, write_shard
from slim_rl.rollout.table import Job


async def play_all(
    jobs: Sequence[Job],
    play: Callable[[Job], Awaitable[Episode]],
    concurrency: int,
    done: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """Play `jobs`, at most `concurrency` at a time; `done` hears of each episode as it ends.

    Returns the episodes in the order of the jobs. The first unexpected error stops them all.
    """
    free = asyncio.Semaphore(concurrency)

    async def one(job: Job) -> Episode:
        async with free:
            episode = await play(job)
        done(episode)
        return episode

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(job)) for job in jobs]
    return [task.result() for task in tasks]


def collect(
    jobs: Sequence[Job],
    play: Callable[[Job], Awaitable[Episode]],
    folder: Path,
    concurrency: int,
    title: str,
    shard_episodes: int = 256,
) -> None:
    """Play the jobs that `folder` has no episode of yet, and add theirs to it in shards.

    Failed episodes are not kept there as done: they are played again when the same call is made again.
    """
    finished = (
        {e.episode_id for e in read_episodes(folder) if e.status != "failed"} if folder.exists() else set()
    )
    missing = [job for job in jobs if job.episode_id not in finished]
    waiting: list[Episode] = []

    def write() -> None:
        if waiting:
            write_shard(folder / f"{len(shards(folder)):05d}.parquet", waiting)
            waiting.clear()

    with tqdm(total=len(jobs), initial=len(jobs) - len(missing), desc=title, unit="episode") as bar:

        def done(episode: Episode) -> None:
            waiting.append(episode)
            bar.update()
            if len(waiting) >= shard_episodes:
                write()

        try:
            asyncio.run(play_all(missing, play, concurrency, done))
        finally:
            write()
