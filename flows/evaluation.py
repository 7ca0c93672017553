"""The evaluation's episodes, in batches that are tried again: for services that fail, cost money, or are slow.

They are gathered where the stage `evaluate` looks for them, so `dvc repro` then plays none of them again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed, State
from prefect.tasks import exponential_backoff
from prefect.utilities.annotations import quote

from flows.workspace import run_now
from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.evaluation.series import Series, befores, rounds
from slim_rl.players.services import Services
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import Request
from slim_rl.rollout.store import Store
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.together import together
from slim_rl.studies import load_study
from stages.evaluate import evaluation_folder, evaluations, missing
from stages.workspace import composed_run, sole_run, sole_stage

BATCHES_AT_ONCE, BATCH_TRIES = 4, 5
_NAMED = 20  # missing episodes that a message names


class PartnerGaveOut(Exception):
    """Episodes of a batch failed through a service; they can be played again."""


@flow(name="play_evaluation")
def play_evaluation(
    only: list[str] | None = None,
    batch_episodes: int = 64,
    parameters: dict[str, Any] | None = None,
    profile: str | None = None,
) -> State | None:
    """Play what the evaluation lacks.

    Args:
        only: series to play, as GAME/SERIES/PLAYER, and what they come after; by default all.
        batch_episodes: of a task, and so of what is tried again together.
        parameters: by dotted name, over params.yaml and the profile, for this run alone.
        profile: of conf/.
    """
    log = get_run_logger()
    try:
        with sole_run(log.info), sole_stage(), composed_run(profile, parameters) as config:
            if config.evaluate.server:
                raise UserError(
                    "The flow play_evaluation plays several series at once, but evaluate.server holds one "
                    "checkpoint at a time; run the stage instead (dvc repro evaluate)."
                )
            left = asyncio.run(_play(config, only, batch_episodes))
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))
    if not left:
        return None
    named = ", ".join(left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return Failed(message=f"{len(left)} episodes are missing; the next run plays only these: {named}{more}.")


async def _play(config: Config, only: Sequence[str] | None, batch_episodes: int) -> list[str]:
    """Play what is missing; returns the ids of the episodes that still are."""
    folder = evaluation_folder(config)
    async with evaluations(config, folder) as (runs, services):
        every = {
            str(series.folder.relative_to(folder)): series
            for run in runs
            for series in load_study(run.game.taskset.study, "plan").series(run)
        }
        chosen = _with_those_before(every, only or [*every])
        for series_of_round in rounds(chosen):
            await _play_at_once(series_of_round, services, config.concurrency, batch_episodes)
        left = {name: missing(series) for name, series in chosen.items()}
        rows = [
            {"series": name, "episodes": len(series.requests()), "missing": len(left[name])}
            for name, series in chosen.items()
        ]
        create_table_artifact(rows, key="episodes", description=services.status())
        return [request.episode_id for requests in left.values() for request in requests]


def _with_those_before(every: Mapping[str, Series], names: Sequence[str]) -> dict[str, Series]:
    """The named series and all that they come after, in the order of `every`."""
    if unknown := set(names) - set(every):
        raise UserError(f"There is no series {', '.join(unknown)}; there are {', '.join(every)}.")
    wanted = set(names)
    for name, series in reversed([*every.items()]):  # a series stands after those in its `after`
        if name in wanted:
            wanted.update(befores(name, series))
    return {name: series for name, series in every.items() if name in wanted}


async def _play_at_once(
    chosen: Mapping[str, Series], services: Services, concurrency: int, batch_episodes: int
) -> None:
    for series in chosen.values():
        Store(series.folder).recover()  # of a run that was killed, so that all is in shards at the end
    batches = [
        (name, series, requests[i : i + batch_episodes])
        for name, series in chosen.items()
        for requests in [missing(series)]
        for i in range(0, len(requests), batch_episodes)
    ]
    free = asyncio.Semaphore(BATCHES_AT_ONCE)

    async def play(name: str, series: Series, requests: list[Request]) -> None:
        batch: Any = play_batch
        async with free:
            with suppress(PartnerGaveOut):
                # Quoted, because Prefect would look for futures in every request.
                await batch.with_options(task_run_name=name)(quote((series, requests)), quote(services), concurrency)

    await together(play(*batch) for batch in batches)


async def _is_transient(task: Any, task_run: Any, state: State) -> bool:
    return isinstance(await state.aresult(raise_on_failure=False), PartnerGaveOut)


@task(
    retries=BATCH_TRIES - 1,
    retry_delay_seconds=exponential_backoff(backoff_factor=2),
    retry_jitter_factor=0.5,
    retry_condition_fn=_is_transient,
    cache_policy=NO_CACHE,
)
async def play_batch(batch: tuple[Series, list[Request]], services: Services, concurrency: int) -> None:
    """Play some requests of a series; raises PartnerGaveOut if some failed, so that only these are played again."""
    series, requests = batch
    seating = await series.seating()
    # In its own folder, because other batches of the series are written meanwhile.
    folder = series.folder / f"from-{requests[0].episode_id.rpartition('/')[2]}"
    played = await collect(requests, seating.play, Store(folder), concurrency)
    failed = [episode for episode in played if episode.status == "failed"]
    get_run_logger().info(f"{len(played) - len(failed)} of {len(played)} episodes are there. {services.status()}")
    if failed:
        raise PartnerGaveOut(f"{len(failed)} of {len(played)} episodes failed, the first with {failed[0].error}")


if __name__ == "__main__":
    run_stage(lambda: run_now(play_evaluation), __doc__)
