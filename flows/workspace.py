"""DVC's stages, each as a process that can be ended."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from dvc.repo import Repo
from networkx import topological_sort
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from flows.serve import some_server
from slim_rl.config import load_config
from slim_rl.core.errors import UserError
from slim_rl.runtime.process import end
from stages.services import main as check_services
from stages.workspace import environment, grace_seconds


def run_now(flow: Any) -> None:
    """Run a flow in this process. Raises UserError if it fails, with the flow's sentence."""
    check_services()  # before a server is started for the flow
    check_server()
    with some_server():
        state = flow(return_state=True)
    if not state.is_completed():
        raise UserError(state.message)


def check_server() -> None:
    """Raises UserError: PREFECT_API_URL names a server, and it does not answer."""
    url = PREFECT_API_URL.value()
    if not url:
        return
    try:
        with get_client(sync_client=True) as client:
            error: Exception | None = client.api_healthcheck()
    except (ValueError, RuntimeError) as failure:  # it is no address, or the server's version does not fit
        error = failure
    if error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"No Prefect server answers at PREFECT_API_URL={url} ({reason}); start it, or unset PREFECT_API_URL, and the flow "
            "starts one of its own."
        )


def stages() -> list[str]:
    """The stages of dvc.yaml, each after those that it needs."""
    graph = Repo(".").index.graph
    return [stage.name for stage in reversed(list(topological_sort(graph)))]


def repro(stage: str, lock: int | None, log: Callable[[str], None]) -> str:
    """Let DVC bring one stage up to date; returns what it did: `ran`, `restored` from its cache, or `skipped`.

    Whatever ends this call ends DVC and the stage's own processes too.

    Args:
        lock: of `sole_run`; while any process of the stage lives, the workspace is in use. None if the caller
            of the flow holds the lock.
        log: gets the output line by line.

    Raises:
        UserError: a parameter is wrong, or the stage failed; the sentence is the stage's own.
    """
    grace = grace_seconds(load_config())
    process = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "--single-item", stage],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,  # a progress bar's carriage returns end lines too
        errors="replace",
        start_new_session=True,
        pass_fds=[] if lock is None else [lock],
        env={**environment(), "TQDM_MININTERVAL": "10", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    did, complaint = "skipped", ""
    try:
        for line in map(str.rstrip, process.stdout):
            if line:
                log(line)
            if line.startswith("error: "):
                complaint = line.removeprefix("error: ")
            elif line.startswith("Running stage "):
                did = "ran"
            elif "is cached - skipping run" in line:
                did = "restored"
        if process.wait():
            raise UserError(complaint or f"`dvc repro --single-item {stage}` ended with {process.returncode}.")
    finally:
        end(process, grace)
    return did
