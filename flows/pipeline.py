"""The pipeline under Prefect: a task for each DVC stage, which does what `dvc repro` would do."""

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
from prefect.states import Failed, State

from flows.workspace import repro, run_now, stages
from slim_rl.core.errors import UserError
from slim_rl.runtime.cli import run_stage as run_entry_point
from stages.workspace import composed_run, sole_run

REPORTS = Path("reports")


@flow
def pipeline(
    parameters: dict[str, Any] | None = None, elsewhere: dict[str, str] | None = None, profile: str | None = None
) -> State | None:
    """Bring every stage up to date.

    Args:
        parameters: by dotted name, over params.yaml and the profile, for this run alone.
        elsewhere: by stage, the deployment of `run_stage` that runs it on another machine. It must see the
            same workspace.
        profile: of conf/.
    """
    log = get_run_logger()
    try:
        with sole_run(log.info) as lock, composed_run(profile, parameters):
            rows = [
                _bring_up_to_date.with_options(name=stage)(stage, (elsewhere or {}).get(stage), lock)
                for stage in stages()
            ]
            create_table_artifact(rows, key="stages", description="What DVC did")
            publish()
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))
    return None


@flow(name="run_stage")
def run_stage(stage: str) -> str | State:
    """One stage, for `pipeline`, which holds the workspace meanwhile."""
    log = get_run_logger()
    try:
        return repro(stage, None, log.info)
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))


@task(cache_policy=NO_CACHE)
def _bring_up_to_date(stage: str, deployment: str | None, lock: int) -> dict[str, Any]:
    started = time.monotonic()
    if deployment is None:
        did = repro(stage, lock, get_run_logger().info)
    else:
        run: Any = run_deployment(deployment, parameters={"stage": stage})
        if not run.state.is_completed():
            raise UserError(f"The stage {stage} on {deployment} ended {run.state.name}: {run.state.message}")
        did = f"on {deployment}"
    return {"stage": stage, "did": did, "seconds": round(time.monotonic() - started, 1)}


def publish() -> None:
    """Verdict, metrics, figures and the report's address, as artifacts of the run."""
    metrics = pd.json_normalize(json.loads((REPORTS / "metrics.json").read_text())).iloc[0].to_dict()
    verdicts = [value for name, value in metrics.items() if name.split(".")[-1] == "verdict"]
    rows = [{"metric": name, "value": value} for name, value in metrics.items()]
    create_table_artifact(rows, key="metrics", description=" ".join(verdicts))
    figures = "\n\n".join(
        f"![{figure.stem}](data:image/png;base64,{base64.b64encode(figure.read_bytes()).decode()})"
        for figure in sorted(REPORTS.glob("print/**/*.png"))
    )
    create_markdown_artifact(figures, key="figures")
    report = os.environ.get("SLIM_RL_REPORTS_URL") or REPORTS.resolve().as_uri()
    create_link_artifact(f"{report}/report.html", "The report", key="report")


if __name__ == "__main__":
    run_entry_point(lambda: run_now(pipeline), __doc__)
