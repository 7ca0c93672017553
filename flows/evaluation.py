"""The evaluation's episodes, in batches that are tried again: for a partner that fails, is paid, or is slow.

They are gathered where the stage `evaluate` looks for them, so `dvc repro` then plays none of them again.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task, unmapped
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import wait
from prefect.states import Failed, State
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import exponential_backoff

from flows.workspace import overridden, sole_run
from slim_rl.config import Config, load_config
from slim_rl.errors import UserError, told_in_a_sentence
from slim_rl.players.chat import check_service
from slim_rl.rollout.collect import collect
from slim_rl.rollout.store import finished, gather_notes
from slim_rl.seating import partner_service

BATCHES_AT_ONCE, TRIES = 4, 5
_NAMED = 20  # missing episodes that a message names


class PartnerGaveOut(Exception):
    """Episodes of a batch failed through the partner's service; they can be played again."""


@flow(name="play_evaluation", task_runner=ThreadPoolTaskRunner(max_workers=BATCHES_AT_ONCE))
def play_evaluation(
    only: list[str] | None = None, batch_episodes: int = 64, parameters: dict[str, Any] | None = None
):
    """Play what the evaluation lacks.

    Args:
        only: series to play, such as `held-out/trained`; by default all.
        batch_episodes: of a task, and so of what is tried again together.
        parameters: overrides of params.yaml by dotted name, for this run alone.
    """
    log = get_run_logger()
    try:
        with sole_run(log.info), overridden(parameters or {}):
            config = load_config()
            if config.evaluate.server:
                raise UserError(
                    "The flow play_evaluation plays several series at once, and evaluate.server holds one checkpoint "
                    "at a time; run the stage instead (dvc repro evaluate)."
                )
            if config.needs_service:
                check_service(config.partner)
            missing = _play(config, only, batch_episodes)
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))
    if missing:
        named = ", ".join(missing[:_NAMED]) + (
            f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        )
        return Failed(message=f"{len(missing)} episodes are missing; the next run plays just these: {named}.")


def _play(config: Config, only: Sequence[str] | None, batch_episodes: int) -> list[str]:
    """Play what is missing; returns the ids of the episodes that still are."""
    series = _series(config)
    names = list(only or series)
    if unknown := set(names) - set(series):
        raise UserError(f"There are no episodes {', '.join(unknown)}; there are {', '.join(series)}.")
    for name in names:
        gather_notes(series[name].folder)  # of a run that was killed, so that all is in shards in the end
    batches = [
        (name, ids[i : i + batch_episodes])
        for name in names
        for ids in [_missing(config, name)]
        for i in range(0, len(ids), batch_episodes)
    ]
    runs = play_batch.map(unmapped(config), *map(list, zip(*batches, strict=True))) if batches else []
    wait(list(runs))
    for run in runs:
        error = run.state.result(raise_on_failure=False)
        if isinstance(error, BaseException) and not isinstance(error, PartnerGaveOut):
            raise error
    rows = [
        {"series": name, "episodes": len(series[name].jobs), "missing": len(_missing(config, name))}
        for name in names
    ]
    create_table_artifact(rows, key="episodes", description=_cost(config))
    return [episode for name in names for episode in _missing(config, name)]


def _curable(task: Any, task_run: Any, state: State) -> bool:
    return isinstance(state.result(raise_on_failure=False), PartnerGaveOut)


@task(
    task_run_name="{series}",
    retries=TRIES - 1,
    retry_delay_seconds=exponential_backoff(backoff_factor=2),
    retry_jitter_factor=0.5,
    retry_condition_fn=_curable,
    cache_policy=NO_CACHE,
)
def play_batch(config: Config, series: str, episodes: list[str]) -> None:
    """Play a batch; raises PartnerGaveOut if some failed, so that just these are played again."""
    of_name = {job.episode_id: job for job in _series(config)[series].jobs}
    table = _series(config)[series].make_table()
    # A folder of its own, because other batches of the series are written meanwhile.
    folder = _series(config)[series].folder / f"from-{episodes[0].rpartition('/')[2]}"
    played = collect(
        [of_name[name] for name in episodes], table.play, folder, config.concurrency, run=table.run
    )
    failed = [episode for episode in played if episode.status == "failed"]
    get_run_logger().info(f"{len(played) - len(failed)} of {len(played)} episodes are there. {_cost(config)}")
    if failed:
        raise PartnerGaveOut(
            f"{len(failed)} of {len(played)} episodes failed, the first with {failed[0].error}"
        )


@cache
def _series(config: Config) -> dict[str, Any]:
    from stages.evaluate import evaluation, evaluation_folder  # torch; after the partner was checked

    folder = evaluation_folder(config)
    found = evaluation(config, folder, partner_service(config, folder))
    return {"/".join(one.folder.parts[-2:]): one for one in found}


def _missing(config: Config, series: str) -> list[str]:
    one = _series(config)[series]
    there = finished(one.folder)
    return [job.episode_id for job in one.jobs if job.episode_id not in there]


def _cost(config: Config) -> str:
    from stages.evaluate import evaluation_folder

    service = partner_service(config, evaluation_folder(config))
    return f"{config.partner.model}: {service.status()}" if service else ""


def main() -> None:
    config = load_config(Path("params.yaml"))
    if config.needs_service:
        check_service(config.partner)  # before a server is started for the flow
    state = play_evaluation(return_state=True)
    if not state.is_completed():
        raise UserError(state.message)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
