"""A job on a Ray cluster, by the REST interface of its job server (github ray-project/ray, `dashboard/modules/job`).

A broken connection never ends a job.
"""

import asyncio
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence

import aiohttp

from slim_rl.core.errors import UserError

RUNS = ("RUNNING", "PENDING")
SILENCE_SECONDS = 600.0
"""A log that says nothing for so long may have lost its connection. Ray's server answers no pings, so that a heartbeat
would end healthy connections too."""
_UNREACHABLE_SECONDS = 3600.0
_GRACE_SECONDS = 10.0
_STOP_SECONDS = 120


class Job:
    """A job of the cluster at `address`. To be opened by `async with`.

    Args:
        address: of the cluster's job server, `http://HEAD:8265`. RAY_JOB_HEADERS and RAY_AUTH_TOKEN of the environment
            count, as for Ray's own command line.
        name: the job's submission id.
        poll_seconds: time between questions for the job's state.
    """

    def __init__(self, address: str, name: str, poll_seconds: float = 20.0):
        self.name = name
        self._jobs = f"{address.rstrip('/')}/api/jobs/"
        self._poll_seconds = poll_seconds
        self._shown = 0
        """Characters of the log that were shown; another connection sends them again."""

    async def __aenter__(self) -> "Job":
        headers = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")
        if token := os.environ.get("RAY_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        self._http = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=60))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def submit(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start the job.

        Raises:
            UserError: the cluster did not take it.
        """
        environment = {"env_vars": dict(variables)}
        job = {"submission_id": self.name, "entrypoint": shlex.join(command), "runtime_env": environment}
        try:
            async with self._http.post(self._jobs, json=job) as answer:
                problem = "" if answer.ok else f"{answer.status} {(await answer.text())[-1000:]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = f"{type(error).__name__} {error}"
        if problem and await self.status() not in RUNS:
            raise UserError(f"Ray's job server at {self._jobs} did not take the job: {problem}.")

    async def status(self) -> str | None:
        """Ray's word, RUNNING for example; LOST if the cluster does not know the job, None if it does not answer."""
        try:
            async with self._http.get(self._jobs + self.name) as answer:
                if answer.status == 404:
                    return "LOST"
                answer.raise_for_status()
                return (await answer.json())["status"]
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def follow(self) -> str:
        """Show the job's log until it ends, and return how it ended. An interrupt stops the job, and waits for its end.

        Raises:
            UserError: the cluster has not answered for an hour. The job is left alone.
        """
        heard, log = time.monotonic(), asyncio.create_task(self._show_log())
        try:
            while time.monotonic() - heard < _UNREACHABLE_SECONDS:
                await asyncio.wait([log], timeout=self._poll_seconds)
                if status := await self.status():
                    heard = time.monotonic()
                    if status not in RUNS:
                        await self._show_end(log)
                        return status
                if log.done():
                    print(f"The connection to the log of {self.name} has ended; connecting again.")
                    await asyncio.sleep(1)
                    log = asyncio.create_task(self._show_log())
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            print(f"Stopping the job {self.name}.")
            try:
                async with self._http.post(f"{self._jobs}{self.name}/stop"):
                    for _ in range(_STOP_SECONDS):
                        if await self.status() not in RUNS:
                            break
                        await asyncio.sleep(1)
            except (aiohttp.ClientError, TimeoutError) as error:
                print(f"The job may still run: its server does not answer ({type(error).__name__}).")
            raise
        finally:
            log.cancel()
        raise UserError(
            f"Ray's job server at {self._jobs} has not answered for {_UNREACHABLE_SECONDS / 60:.0f} minutes. The job "
            f"{self.name} may be running; the same command follows it again."
        )

    async def _show_end(self, log: asyncio.Task[bool]) -> None:
        """Show the last lines, which say how the job ended, over a new connection if `log` does not get them."""
        await asyncio.wait([log], timeout=_GRACE_SECONDS)
        if not (log.done() and log.result()):
            log.cancel()
            await self._show_log()

    async def _show_log(self) -> bool:
        """Print what was not shown yet. Returns whether the server ended the connection, which it does after the job."""
        seen = 0
        try:
            url, silence = f"{self._jobs}{self.name}/logs/tail", aiohttp.ClientWSTimeout(ws_receive=SILENCE_SECONDS)
            async with self._http.ws_connect(url, timeout=silence, max_msg_size=0) as log:
                async for message in log:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        new = message.data[max(self._shown - seen, 0) :]
                        seen += len(message.data)
                        self._shown = max(self._shown, seen)
                        print(new, end="", flush=True)
                return log.close_code == aiohttp.WSCloseCode.OK
        except (aiohttp.ClientError, TimeoutError):
            return False
