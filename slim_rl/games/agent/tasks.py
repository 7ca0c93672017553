"""Tasks from a file of JSON lines, and the two kinds of agents: a coroutine, and a program."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from slim_rl.core.errors import UserError
from slim_rl.core.game import Purpose, Task, Taskset, seed_of
from slim_rl.games.agent.door import Door
from slim_rl.games.agent.game import SEAT, AgentGame
from slim_rl.games.agent.parameters import Parameters
from slim_rl.runtime.files import read_rows
from slim_rl.runtime.imports import function_at

HELD_OUT = 5
"""One task in so many is held out, where there is no file of its own for them."""
_TOLD = 2000  # characters of a program's output that an error shows
_GUARDED = """
{ [ ! -e /dev/fd/$0 ] || { read _ < /dev/fd/$0; kill -KILL 0; }; } > /dev/null 2>&1 &
"$@"
code=$?
kill $!; wait $!
exit $code
"""
"""Shell that runs a program, and ends it with its children when the other end of a pipe closes: when we are killed."""


class AgentFailed(Exception):
    """A program did not end well."""


class Agents(Taskset):
    """The tasks of an agent.

    Raises:
        UserError: the agent is neither a function nor a command, or there is no file of tasks.
    """

    seats = (SEAT,)
    parameters: Parameters

    def __init__(self, parameters: Parameters, seed: int, variant: str):
        super().__init__(parameters, seed, variant)
        self.name = f"agent:{variant}" if variant else "agent"
        if bool(variant) == bool(parameters.command):
            raise UserError(
                "An agent is a coroutine, agent:my_module:run, or a program, the game `agent` with a command; "
                f"games.{self.name} is {'both' if variant else 'neither'}."
            )
        if parameters.tasks is None:
            raise UserError(f"games.{self.name}.tasks is missing: a file of JSON lines, an object a line.")
        self._agent = partial(_function, function_at(variant)) if variant else partial(_program, parameters.command)
        self._door = Door()

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """At most `count`: no task comes twice. Raises UserError: a file is damaged, or has none for this purpose."""
        tasks = list(islice(self._tasks(purpose), count))
        if not tasks:
            raise UserError(f"games.{self.name}.tasks: {self.parameters.tasks} has no tasks to {purpose}.")
        yield from tasks

    def load(self, task: Task) -> AgentGame:
        if not isinstance(task.state["task"], dict):
            raise ValueError("its task is not a JSON object")
        return AgentGame(task, self.parameters, self._agent, self.name, self._door)

    def _tasks(self, purpose: Purpose) -> Iterator[Task]:
        held_out, own = purpose == "evaluate", self.parameters.eval_tasks
        path = own if held_out and own else self.parameters.tasks
        assert path is not None
        seen: set[str] = set()
        for number, task in read_rows(path):
            name = str(task.get("id", number)).replace("/", "-")
            if name in seen:
                raise UserError(f"games.{self.name}.tasks: {path}, line {number} has the id {name} again.")
            seen.add(name)
            if own or (seed_of("held out", name) % HELD_OUT == 0) == held_out:
                yield Task(f"{purpose}-{name}", "", {"task": task})


async def _function(run: Any, task: Mapping[str, Any], url: str, key: str) -> Any:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    # The loopback needs neither a proxy nor certificates, whose reading takes most of the client's start.
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    # The time limit is the episode's: by itself the client gives up where 256 of them take 5 s to connect.
    async with AsyncOpenAI(base_url=url, api_key=key, http_client=http, timeout=None) as client:
        return await run(task, client)


async def _program(command: tuple[str, ...], task: Mapping[str, Any], url: str, key: str) -> Any:
    """Run a program to its end; its children end with it. Raises AgentFailed."""
    surroundings = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "NO_PROXY": "127.0.0.1"}
    pipe = asyncio.subprocess.PIPE
    ours, other = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", _GUARDED, str(ours), *command,
            stdin=pipe, stdout=pipe, stderr=pipe, env=surroundings, start_new_session=True, pass_fds=[ours],
        )  # fmt: skip
        try:
            output, errors = await process.communicate(json.dumps(task).encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    finally:
        os.close(ours)
        os.close(other)
    lines = output.decode(errors="replace").strip().splitlines()
    if process.returncode == 0 and lines:
        with suppress(ValueError, RecursionError):
            return json.loads(lines[-1])
    said = (output + errors).decode(errors="replace").strip()
    raise AgentFailed(f"{command[0]} ended with {process.returncode} and no reward in its last line: {said[-_TOLD:]}")
