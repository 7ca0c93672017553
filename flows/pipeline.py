"""The pipeline under Prefect: one task for each DVC stage, each what `dvc repro` would do."""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.deployments import run_deployment
from prefect.states import Failed

from flows.workspace import overridden, repro, sole_run, stages
from slim_rl.config import load_config
from slim_rl.errors import UserError, told_in_a_sentence

REPORTS = Path("reports")


@flow
def pipeline(parameters: dict[str, Any] | None = None, elsewhere: dict[str, str] | None = None):
    """Bring every stage up to date.

    Args:
        parameters: overrides of params.yaml by dotted name, for this run alone.
        elsewhere: the deployment of `run_stage` by the name of a stage that does not run here. It must see
            the same workspace.
    """
    log = get_run_logger()
    try:
        with sole_run(log.info) as lock, overridden(parameters or {}):
            _check_partner()
            rows = [
                _bring_up_to_date.with_options(name=stage)(stage, (elsewhere or {}).get(stage), lock)
                for stage in stages()
            ]
            create_table_artifact(rows, key="stages", description="What DVC did")
            publish()
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))


@flow(name="run_stage")
def run_stage(stage: str):
    """One stage, for `pipeline`, which holds the workspace meanwhile."""
    log = get_run_logger()
    with open(os.devnull) as unlocked:
        try:
            return repro(stage, unlocked.fileno(), log.info)
        except UserError as error:
            log.error(str(error))
            return Failed(message=str(error))


@task(cache_policy=NO_CACHE)
def _bring_up_to_date(stage: str, deployment: str | None, lock: int) -> dict[str, Any]:
    started = time.monotonic()
    if deployment is None:
        did = repro(stage, lock, get_run_logger().info)
    else:
        run = run_deployment(deployment, parameters={"stage": stage})
        if not run.state.is_completed():
            raise UserError(f"The stage {stage} on {deployment} ended {run.state.name}: {run.state.message}")
        did = f"on {deployment}"
    return {"stage": stage, "did": did, "seconds": round(time.monotonic() - started, 1)}


def publish() -> None:
    """What came out, as artifacts of the run."""
    verdict = json.loads((REPORTS / "metrics.json").read_text())["verdict"]
    players = pd.read_csv(REPORTS / "data/players.csv")
    means = players[[name for name in players if not name.endswith(("_low", "_high"))]]
    rows = json.loads(means.to_json(orient="records"))  # null for what there is none of
    create_table_artifact(rows, key="metrics", description=verdict)
    figures = "\n\n".join(
        f"![{figure.stem}](data:image/png;base64,{base64.b64encode(figure.read_bytes()).decode()})"
        for figure in sorted((REPORTS / "figures").glob("*.png"))
    )
    create_markdown_artifact(figures, key="figures")
    report = os.environ.get("SLIM_RL_REPORTS_URL") or REPORTS.resolve().as_uri()
    create_link_artifact(f"{report}/report.html", "The report", key="report")


def _check_partner() -> None:
    config = load_config()
    if config.needs_service:
        from slim_rl.players.chat import check_service  # which a scripted partner does not wait for

        check_service(config.partner)


def main() -> None:
    _check_partner()  # before a server is started for the flow
    state = pipeline(return_state=True)
    if not state.is_completed():
        raise UserError(state.message)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
