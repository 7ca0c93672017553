"""A Prefect as `make serve` starts it, in a workspace of its own."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.workspaces import copy_of, environment

KEY = "-".join(("sk", "flow", "8c1d04b7e93a"))  # in pieces, because copies of this file are searched for it
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Prefect:
    """`flows.serve` in a copy of `finished`. Prefect's own waits are cut short."""

    def __init__(self, finished: Path, folder: Path):
        self.home, self.workspace = folder / "prefect", copy_of(finished, folder / "workspace")
        self.port = _free_port()
        self.environment = {
            **environment(),
            "OPENAI_API_KEY": KEY,
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "0.5",
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flows.serve", "--port", str(self.port)],
            cwd=self.workspace, env=self.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.says = [next(self.process.stdout) for _ in range(4)]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # which ends server and worker too
            self.process.wait()
        self.process.stdout.close()

    def run(self, deployment: str, **parameters: Any) -> str:
        """Start a run; returns its id."""
        found = self.get(f"deployments/name/{deployment}")["id"]
        return self._post(f"deployments/{found}/create_flow_run", {"parameters": parameters})["id"]

    def cancel(self, run: str) -> None:
        self._post(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})

    def state(self, run: str, *wanted: str, within_seconds: float = 600) -> str:
        """The run's state, as soon as it is one of those wanted."""
        until = time.monotonic() + within_seconds
        while (state := self.get(f"flow_runs/{run}")["state"]["type"]) not in wanted:
            if time.monotonic() > until:
                break
            time.sleep(0.3)
        return state

    def artifacts(self, key: str, run: str) -> list[Any]:
        asked = {"artifacts": {"key": {"any_": [key]}, "flow_run_id": {"any_": [run]}}}
        return [artifact["data"] for artifact in self._post("artifacts/filter", asked)]

    def get(self, path: str) -> Any:
        return self._answer(urllib.request.Request(f"http://127.0.0.1:{self.port}/api/{path}"))

    def _post(self, path: str, body: Any) -> Any:
        sent, kind = json.dumps(body).encode(), {"content-type": "application/json"}
        return self._answer(urllib.request.Request(f"http://127.0.0.1:{self.port}/api/{path}", sent, kind))

    def _answer(self, request: urllib.request.Request, tries: int = 10) -> Any:
        """Prefect answers 503, "try again", while its SQLite database is locked."""
        try:
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code != 503 or not tries:
                raise
        time.sleep(1)
        return self._answer(request, tries - 1)


def _free_port() -> int:
    """One of two neighbours, both free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def processes_in(folder: Path) -> list[str]:
    """Commands of the processes that work in `folder` on a stage."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if (process / "cwd").resolve() == folder and re.search(r"dvc repro|stages\.", command):
                found.append(command)
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], Any], within_seconds: float = 300) -> Any:
    until = time.monotonic() + within_seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
    return found


def grep(text: str, *folders: Path) -> list[Path]:
    """The files below the folders that contain a text."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]
