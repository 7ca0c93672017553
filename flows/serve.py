"""A local Prefect: server, the deployments of prefect.yaml, a worker, and the reports behind a link.

    python -m flows.serve [--port 4200]

All of it ends with Ctrl-C.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from flows.workspace import end
from slim_rl.errors import UserError, told_in_a_sentence

POOLS = {"laptop": 1, "gpu": 1}
"""Process pools, and how many runs each may have at a time."""
_PATIENCE_SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--port", type=int, default=4200, help="of the server; the reports are on the next one"
    )
    parser.add_argument("--pool", choices=POOLS, default="laptop", help="the worker's")
    options = parser.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)  # also where a shell has turned Ctrl-C off
    serve(options.port, options.pool)


def serve(port: int, pool: str) -> None:
    """Start everything and stay until interrupted. Raises UserError if a port is taken or a part ends."""
    ui, api = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/api"
    reports = f"http://127.0.0.1:{port + 1}"
    os.environ |= {
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "SLIM_RL_REPORTS_URL": reports,
        "SLIM_RL_WORKSPACE": os.environ.get("SLIM_RL_WORKSPACE", str(Path.cwd())),
    }
    for taken in (port, port + 1):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", taken)) == 0:
                raise UserError(
                    f"Port {taken} is taken; name another with `python -m flows.serve --port PORT`."
                )
    with ExitStack() as parts:
        server = _start(parts, "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
        _await(f"{api}/health", server)
        Path("reports").mkdir(exist_ok=True)
        _start(
            parts, sys.executable, "-m", "http.server", str(port + 1), "--bind", "127.0.0.1", "-d", "reports"
        )
        for name, limit in POOLS.items():
            _run("prefect", "work-pool", "create", name, "--type", "process", "--overwrite")
            _run("prefect", "work-pool", "set-concurrency-limit", name, str(limit))
        _run("prefect", "--no-prompt", "deploy", "--all")
        worker = _start(parts, "prefect", "worker", "start", "--pool", pool)
        print(
            f"Prefect: {ui}\nReports: {reports}/report.html\nStart: PREFECT_API_URL={api} prefect deployment run 'pipeline/laptop'\nCtrl-C ends all.",
            flush=True,
        )
        while (ended := next((part for part in (server, worker) if part.poll() is not None), None)) is None:
            time.sleep(0.5)
        raise UserError(
            f"`{' '.join(map(str, ended.args[:3]))}` ended with {ended.returncode}; .work/prefect.log has its words."
        )


def _start(parts: ExitStack, *command: str) -> subprocess.Popen:
    # A session of its own: Ctrl-C reaches it through `end`, in the right order.
    Path(".work").mkdir(exist_ok=True)
    log = parts.enter_context(Path(".work/prefect.log").open("a"))  # noqa: SIM115
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    parts.callback(end, process)
    return process


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _await(url: str, server: subprocess.Popen) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise UserError("The Prefect server did not start; .work/prefect.log has its words.")


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
