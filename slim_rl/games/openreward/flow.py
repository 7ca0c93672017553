"""Upload the trajectories of training to OpenReward; a run that failed continues where it stopped."""

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.states import Failed, State

from slim_rl.core.errors import UserError
from slim_rl.games.openreward.upload import API_URL, key_for, upload
from slim_rl.runtime.cli import run_stage

TRIES = 5


@flow(name="upload", retries=TRIES - 1, retry_delay_seconds=60)
def upload_trajectories(
    run: str = "slim-rl", episodes: str = "data/rollouts", url: str = API_URL, key_variable: str | None = None
) -> State | None:
    """Upload what has not been uploaded yet.

    Args:
        run: its name at OpenReward.
        episodes: a folder of shards.
        key_variable: the environment variable with the key of another address than OpenReward's.
    """
    log = get_run_logger()
    try:
        log.info(f"{upload(run, Path(episodes), url, key_for(url, key_variable))} trajectories uploaded.")
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))
    return None


def _run_now() -> None:
    state: Any = upload_trajectories(return_state=True)
    if not state.is_completed():
        raise UserError(str(state.message))


if __name__ == "__main__":
    run_stage(_run_now, __doc__)
