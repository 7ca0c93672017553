"""The tasks of an environment, and its games."""

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field

from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.game import Purpose, Task, Taskset, seed_of
from slim_rl.games.openreward.client import Address, ServiceFailed, Session
from slim_rl.games.openreward.game import EnvironmentGame
from slim_rl.games.openreward.parameters import Parameters

SESSIONS_URL = "https://sessions.openreward.ai"
KEY = "OPENREWARD_API_KEY"
_AT_ONCE = 16
_MOST_TASKS = 10**7


class Environment(Taskset):
    """The taskset.

    Args:
        name: ORG/NAME of a hosted environment, or the URL of a server.
    """

    seats = EnvironmentGame.seats
    parameters: Parameters

    def __init__(self, parameters: Parameters, seed: int, name: str):
        super().__init__(parameters, seed)
        self._name = name
        self._is_server = name.startswith(("http://", "https://"))
        if not self._is_server and name.count("/") != 1:
            raise UserError(
                f"openreward:{name} is no environment; name it openreward:ORG/NAME, or openreward:http://HOST:PORT for "
                "a server of your own."
            )

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """Raises UserError: the server does not answer, or has no such environment or split."""
        try:
            with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
                tasks = thread.submit(asyncio.run, self._fetch(purpose, count)).result()
        except (GameFailed, OSError) as error:
            raise UserError(f"The tasks of openreward:{self._name} cannot be fetched: {error}.") from None
        if not tasks:
            raise UserError(f"openreward:{self._name} has no tasks left for {purpose}; see splits and num_samples.")
        return iter(tasks)

    def load(self, task: Task) -> EnvironmentGame:
        return EnvironmentGame(task, self.parameters, self._address())

    def check(self, task: Task) -> None:
        if not isinstance(task.state["task_spec"], Mapping):
            raise TypeError("its task_spec is not a JSON object")
        str(task.state["environment"])

    def _address(self) -> Address:
        variable = self.parameters.key_variable if self._is_server else KEY
        secrets = {
            name: _variable(given or name.upper(), f"the secret {name}")
            for name, given in self.parameters.secrets.items()
        }
        key = _variable(variable, "the key") if variable else None
        if self._is_server:
            return Address(self._name.rstrip("/"), None, key, secrets)
        return Address(SESSIONS_URL, self._name, key, secrets)

    async def _fetch(self, purpose: Purpose, count: int) -> list[Task]:
        """`num_samples` of each split in an order by the seed, all shuffled together, at most `count`."""
        name = "evaluation_splits" if purpose == "evaluate" else "splits"
        both = {*self.parameters.splits} & {*self.parameters.evaluation_splits}
        tasks: dict[str, Task] = {}
        async with Session(self._address()) as session:
            environment = await self._environment(session)
            replies = await session.ask("GET", f"/{environment}/splits", kind=list[_Split])
            splits = [split.name for split in replies]
            for split in getattr(self.parameters, name):
                if split not in splits:
                    raise UserError(
                        f"openreward:{self._name} has no split {split}; it has {', '.join(splits)}. Set {name}."
                    )
                listed = await _listed(session, environment, split)
                random.Random(seed_of(self.seed, self._name, environment, split)).shuffle(listed)
                if split in both:  # the first ones are held out
                    held_out = min(self.parameters.eval_count, len(listed) // 2)
                    listed = listed[:held_out] if purpose == "evaluate" else listed[held_out:]
                listed = listed[: min(self.parameters.num_samples or count, count)]
                for spec in await _specs(session, environment, split, listed):
                    task = self._task(environment, split, spec)
                    tasks.setdefault(task.game_id, task)
        drawn = list(tasks.values())
        random.Random(seed_of(self.seed, self._name, purpose)).shuffle(drawn)
        return drawn[:count]

    async def _environment(self, session: Session) -> str:
        names = await session.ask("GET", "/list_environments", kind=list[str])
        variant = self.parameters.variant
        if variant is None and len(names) == 1:
            return str(names[0])
        if variant is None or variant.lower() not in (name.lower() for name in names):
            problem = f"no {variant}" if variant else "several environments"
            raise UserError(f"openreward:{self._name} has {problem}; set variant to one of {', '.join(names)}.")
        return variant

    def _task(self, environment: str, split: str, spec: Any) -> Task:
        digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        state = {"environment": environment, "split": split, "task_spec": spec, "hash": digest}
        return Task(f"{split}-{digest}", f"[{self._name}:{split}:{digest}]", state)


class _Split(BaseModel):
    name: str


class _Reply(BaseModel):
    """What a request for tasks brings."""

    tasks: list[dict[str, Any]] | None = None
    num_tasks: int | None = Field(None, ge=0, le=_MOST_TASKS)
    task: dict[str, Any] | None = None


async def _listed(session: Session, environment: str, split: str) -> list[Any]:
    """The tasks of a split; their numbers on a server that only counts them."""
    try:
        return list(await _asked(session, environment, "tasks", {"split": split}))
    except ServiceFailed as error:
        if error.status != 400:
            raise
        return list(range(await _asked(session, environment, "num_tasks", {"split": split})))


async def _specs(session: Session, environment: str, split: str, listed: Sequence[Any]) -> Sequence[Any]:
    """The tasks themselves."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(task: Any) -> Any:
        if not isinstance(task, int):
            return task
        async with free:
            return await _asked(session, environment, "task", {"split": split, "index": task})

    return await asyncio.gather(*map(one, listed))


async def _asked(session: Session, environment: str, name: str, body: Any) -> Any:
    """The value `name` of the reply to the request of that name."""
    path = f"/{environment}/{name}"
    value = getattr(await session.ask("POST", path, body, kind=_Reply), name)
    if value is None:
        raise GameFailed(f"BadReply: {path} has no {name}")
    return value


def _variable(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UserError(f"The environment variable {name} is not set; {what} of an environment is read from it.")
    return value
