"""The tasks of an environment, and its games."""

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.game import Purpose, Task, seed_of
from slim_rl.games.openreward.client import Address, Connection, Limits, ServiceFailed, delete, new_session_id
from slim_rl.games.openreward.game import EnvironmentGame
from slim_rl.games.openreward.parameters import Parameters
from slim_rl.games.openreward.sessions import OpenSessions

SESSIONS_URL = "https://sessions.openreward.ai"
KEY = "OPENREWARD_API_KEY"
_AT_ONCE = 16


class Environment:
    """The taskset.

    Args:
        name: ORG/NAME of a hosted environment, or the URL of a server.
    """

    seats, study = EnvironmentGame.seats, "accuracy"

    def __init__(self, parameters: Parameters, seed: int, name: str):
        self._parameters, self._seed, self._name = parameters, seed, name
        self._is_server = name.startswith(("http://", "https://"))
        if not self._is_server and name.count("/") != 1:
            raise UserError(
                f"openreward:{name} is no environment; name it openreward:ORG/NAME, or openreward:http://HOST:PORT for "
                "a server of your own."
            )
        self._sessions = OpenSessions(name if self._is_server else SESSIONS_URL)

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """Raises UserError: the server does not answer, or has no such environment or split."""
        try:
            found = asyncio.run(self._fetch(purpose, count))
        except (GameFailed, OSError) as error:
            raise UserError(f"The tasks of openreward:{self._name} cannot be fetched: {error}.") from None
        if not found:
            raise UserError(f"openreward:{self._name} has no tasks left for {purpose}; see splits and num_samples.")
        return iter(found)

    def load(self, task: Task) -> EnvironmentGame:
        return EnvironmentGame(task, self._parameters, self._address(), self._sessions)

    def check(self, task: Task) -> None:
        if not isinstance(task.state["task_spec"], Mapping):
            raise TypeError("its task_spec is not a JSON object")
        str(task.state["environment"])

    def _address(self) -> Address:
        variable = self._parameters.key_variable if self._is_server else KEY
        secrets = {
            name: _variable(given or name.upper(), f"the secret {name}")
            for name, given in self._parameters.secrets.items()
        }
        key = _variable(variable, "the key") if variable else None
        if self._is_server:
            return Address(self._name.rstrip("/"), None, key, secrets)
        return Address(SESSIONS_URL, self._name, key, secrets)

    async def _fetch(self, purpose: Purpose, count: int) -> list[Task]:
        given = self._parameters
        async with Connection(self._address(), Limits(given.start_seconds, given.silence_seconds)) as connection:
            sid = await new_session_id(connection)  # hosted environments answer in a session alone
            try:
                listed = _Listed(connection, sid, await self._variant(connection, sid))
                splits = await listed.splits()
                wanted = given.evaluation_splits if purpose == "evaluate" else given.splits
                if unknown := [split for split in wanted if split not in splits]:
                    name = "evaluation_splits" if purpose == "evaluate" else "splits"
                    raise UserError(
                        f"openreward:{self._name} has no split {unknown[0]}; it has {', '.join(splits)}. Set {name}."
                    )
                return await self._drawn(listed, wanted, purpose, count)
            finally:
                await delete(connection, sid)

    async def _variant(self, connection: Connection, sid: str) -> str:
        names = [str(name) for name in await connection.ask("GET", "/list_environments", session=sid)]
        wanted = self._parameters.variant
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted is None or wanted.lower() not in (name.lower() for name in names):
            told = f"no {wanted}" if wanted else "several environments"
            raise UserError(f"openreward:{self._name} has {told}; set variant to one of {', '.join(names)}.")
        return wanted

    async def _drawn(self, listed: "_Listed", splits: Sequence[str], purpose: Purpose, count: int) -> list[Task]:
        """`num_samples` of each split in an order by the seed, all shuffled together, at most `count`."""
        both = {*self._parameters.splits} & {*self._parameters.evaluation_splits}
        found: dict[str, Task] = {}
        for split in splits:
            every = await listed.indices(split)
            random.Random(seed_of(self._seed, self._name, listed.environment, split)).shuffle(every)
            if split in both:  # the first ones are held out
                held_out = min(self._parameters.eval_count, len(every) // 2)
                every = every[:held_out] if purpose == "evaluate" else every[held_out:]
            for spec in await listed.specs(split, every[: min(self._parameters.num_samples or count, count)]):
                task = self._task(listed.environment, split, spec)
                found.setdefault(task.game_id, task)
        tasks = list(found.values())
        random.Random(seed_of(self._seed, self._name, purpose)).shuffle(tasks)
        return tasks[:count]

    def _task(self, environment: str, split: str, spec: Mapping[str, Any]) -> Task:
        digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        state = {"environment": environment, "split": split, "task_spec": spec, "hash": digest}
        return Task(f"{split}-{digest}", f"[{self._name}:{split}:{digest}]", state)


class _Listed:
    """What a server tells of an environment without creating it."""

    def __init__(self, connection: Connection, sid: str, environment: str):
        self._connection, self._sid, self.environment = connection, sid, environment
        self._tasks: dict[str, list[Any]] = {}

    async def splits(self) -> list[str]:
        return [split["name"] for split in await self._ask("GET", "splits")]

    async def indices(self, split: str) -> list[int]:
        """The numbers of its tasks. Some servers list the tasks, others only count them."""
        try:
            self._tasks[split] = (await self._ask("POST", "tasks", {"split": split}))["tasks"]
            return list(range(len(self._tasks[split])))
        except ServiceFailed as error:
            if error.status != 400:
                raise
            return list(range((await self._ask("POST", "num_tasks", {"split": split}))["num_tasks"]))

    async def specs(self, split: str, numbers: Sequence[int]) -> list[Any]:
        if split in self._tasks:
            return [self._tasks[split][number] for number in numbers]
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> Any:
            async with free:
                return (await self._ask("POST", "task", {"split": split, "index": number}))["task"]

        return await asyncio.gather(*map(one, numbers))

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return await self._connection.ask(method, f"/{self.environment}/{path}", body, self._sid)


def _variable(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UserError(f"The environment variable {name} is not set; {what} of an environment is read from it.")
    return value
