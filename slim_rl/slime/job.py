"""SLIME as a job on a Ray cluster, or as a process of this machine. A broken connection never ends a job."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from slim_rl.core.errors import UserError
from slim_rl.runtime.process import end, wait_until

_TOLD = {
    "Status for job '{}': RUNNING": "RUNNING",
    "Status for job '{}': PENDING": "PENDING",
    "Job '{}' succeeded": "SUCCEEDED",
    "Job '{}' failed": "FAILED",
    "Job '{}' was stopped": "STOPPED",
    "Job {} does not exist": "LOST",
}
"""What `ray job status` writes (Ray 2.60, `dashboard/modules/job/cli.py`)."""
RUNS = ("RUNNING", "PENDING")
_POLL_SECONDS = 20.0
_UNREACHABLE_SECONDS = 3600.0
_GRACE_SECONDS = 10.0


class Job:
    """A job of the cluster at `address`.

    Args:
        ray: Ray's command line.
        address: of the cluster's job server, `http://HEAD:8265`.
        name: the job's submission id.
    """

    def __init__(self, ray: Sequence[str], address: str, name: str, poll_seconds: float = _POLL_SECONDS):
        self._ray, self._address, self.name = ray, address, name
        self._poll_seconds = poll_seconds
        self._shown = 0
        """Bytes of the log that were shown; another connection sends them again."""

    def submit(self, runtime_env: str, command: Sequence[str]) -> None:
        """Start the job.

        Raises:
            UserError: the cluster did not take it.
        """
        options = (*self.options(runtime_env), "--no-wait")
        done = subprocess.run([*self.words("submit"), *options, "--", *command], check=False)
        if done.returncode and self.status() not in RUNS:
            raise UserError(f"Ray's job server at {self._address} did not take the job; its lines above say why.")

    def options(self, runtime_env: str) -> tuple[str, ...]:
        """Of its submission."""
        return "--submission-id", self.name, "--runtime-env-json", runtime_env

    def words(self, verb: str) -> tuple[str, ...]:
        """The beginning of a command of Ray's."""
        return *self._ray, "job", verb, "--address", self._address

    def status(self) -> str | None:
        """As Ray calls it, RUNNING for example; LOST if the cluster does not know the job, None if it does not answer."""
        done = subprocess.run([*self.words("status"), self.name], capture_output=True, text=True, check=False)
        written = done.stdout + done.stderr
        return next((status for words, status in _TOLD.items() if words.format(self.name) in written), None)

    def follow(self, tick: Callable[[], None]) -> str:
        """Show the job's log until it ends, and return how it ended. If this is interrupted, the job is stopped.

        Args:
            tick: is called several times a minute.

        Raises:
            UserError: the cluster has not answered for an hour. The job is left alone.
        """
        try:
            heard = time.monotonic()
            while True:
                whole = self._show_log(tick)
                status = self.status()
                tick()
                if status is not None:
                    heard = time.monotonic()
                    if status not in RUNS:
                        if not whole:  # its last lines say how it ended
                            self._show_log(tick)
                        return status
                elif time.monotonic() - heard > _UNREACHABLE_SECONDS:
                    break
                print(f"The connection to the log of {self.name} has ended, but not the job; connecting again.")
                time.sleep(1)
        except (KeyboardInterrupt, SystemExit):
            subprocess.run([*self.words("stop"), self.name], check=False)
            raise
        raise UserError(
            f"Ray's job server at {self._address} has not answered for {_UNREACHABLE_SECONDS / 60:.0f} minutes. The job "
            f"{self.name} may be running; the same command follows it again."
        )

    def _show_log(self, tick: Callable[[], None]) -> bool:
        """Until the connection or the job ends, whichever comes first. Returns whether it was not the connection."""
        words = [*self.words("logs"), "--follow", self.name]
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True, env=env)
        assert process.stdout is not None
        reader = threading.Thread(target=self._copy, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            ended = False
            while not ended and process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self._poll_seconds)
                tick()
                ended = process.poll() is None and self.status() not in (*RUNS, None)
            if ended:  # a connection that nobody closed, or the last lines are on their way
                wait_until(lambda: process.poll() is not None, _GRACE_SECONDS)
            return process.poll() == 0
        finally:
            end(process, _GRACE_SECONDS)
            reader.join(_GRACE_SECONDS)

    def _copy(self, log: IO[bytes]) -> None:
        """What of `log` was not shown yet, to our output."""
        seen = 0
        while chunk := os.read(log.fileno(), 65536):
            new = chunk[max(self._shown - seen, 0) :]
            seen += len(chunk)
            if new:
                self._shown = seen
                sys.stdout.buffer.write(new)
                sys.stdout.buffer.flush()


def run_here(command: Sequence[str], tick: Callable[[], None]) -> int:
    """Run a command on this machine to its end and return its exit code; `tick` as for `Job.follow`."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
            tick()
        return process.returncode
    finally:
        end(process, 60.0)
