"""A local Prefect: server, the deployments of prefect.yaml, a worker, and the reports behind a link.

All of it ends with Ctrl-C.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from slim_rl.core.errors import UserError
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.process import end, wait_until

POOLS = {"laptop": 1, "gpu": 1}
"""Process pools, and the runs that each may have at a time."""
LOG = Path(".work/prefect.log")
_START_SECONDS = 120.0
_PREFECT = (sys.executable, "-m", "prefect")  # found also where the environment is not activated


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--port", type=int, default=4200, help="of the server; the reports are on the next one")
    parser.add_argument("--pool", choices=POOLS, default="laptop", help="the worker's")
    options = parser.parse_args()
    with told_in_a_sentence():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has turned Ctrl-C off
        serve(options.port, options.pool)


def serve(port: int, pool: str) -> None:
    """Start everything and stay until interrupted. Raises UserError if a port is taken or a part ends."""
    ui, reports = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    api = f"{ui}/api"
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
                raise UserError(f"Port {taken} is taken; name another with `python -m flows.serve --port PORT`.")
    with ExitStack() as parts:
        server = _start_server(parts, port)
        Path("reports").mkdir(exist_ok=True)
        _start(parts, sys.executable, "-m", "http.server", str(port + 1), "--bind", "127.0.0.1", "-d", "reports")
        _make_pools(api)
        _deploy()
        worker = _start(parts, *_PREFECT, "worker", "start", "--pool", pool)
        print(
            f"Prefect: {ui}\nReports: {reports}/report.html\n"
            f"Start: PREFECT_API_URL={api} prefect deployment run 'pipeline/laptop'\nCtrl-C ends all.",
            flush=True,
        )
        while (ended := next((part for part in (server, worker) if part.poll() is not None), None)) is None:
            time.sleep(0.5)
        part = "server" if ended is server else "worker"
        raise UserError(f"The Prefect {part} ended with {ended.returncode}; see {LOG}.")


@contextmanager
def some_server() -> Iterator[None]:
    """The server of PREFECT_API_URL, or else one that ends with this process.

    Prefect's own temporary server has 20 seconds to start, and Ctrl-C in a terminal ends it before the flow.

    Raises:
        UserError: it does not start.
    """
    if PREFECT_API_URL.value():
        yield
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parts = ExitStack()
    atexit.register(parts.close)  # not earlier: Prefect's threads still tell the server what happened
    _start_server(parts, port, "--no-ui", "--no-services")
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
        yield


def _start_server(parts: ExitStack, port: int, *options: str) -> subprocess.Popen:
    server = _start(parts, *_PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port), *options)
    api = f"http://127.0.0.1:{port}/api"
    if not wait_until(lambda: _healthy(api) or server.poll() is not None, _START_SECONDS) or server.poll() is not None:
        raise UserError(f"Prefect's server did not start within {_START_SECONDS:.0f} seconds; see {LOG}.")
    return server


def _start(parts: ExitStack, *command: str) -> subprocess.Popen:
    # In its own session: Ctrl-C reaches it through `end`, in the right order.
    LOG.parent.mkdir(exist_ok=True)
    log = parts.enter_context(LOG.open("a"))
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    parts.callback(end, process)
    return process


def _healthy(api: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=5):
            return True
    except OSError:
        return False


def _make_pools(api: str) -> None:
    template = ProcessWorker.get_default_base_job_template()
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        for name, limit in POOLS.items():
            pool = WorkPoolCreate(name=name, type="process", concurrency_limit=limit, base_job_template=template)
            client.create_work_pool(pool, overwrite=True)


def _deploy() -> None:
    done = subprocess.run([*_PREFECT, "--no-prompt", "deploy", "--all"], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`prefect deploy --all` failed: {(done.stderr or done.stdout).strip()[-500:]}")


if __name__ == "__main__":
    main()
