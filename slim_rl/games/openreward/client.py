"""The Open Reward Standard over HTTP: one connection, and one session of an environment.

Whose fault a failure is:

    the policy's       `ok: false`                                     BadCall: it is told, and the episode goes on
    the environment's  an `error` event                                GameFailed: the episode is played again
    the service's      5xx, 404 or 410 of a session, no connection     GameFailed
    the user's         401, 403, an unknown environment or split       UserError

A tool is called once. Before the server has named the run (`task_id`) nobody knows whether it ran, so a failed call is
not repeated; with the name, the same run is picked up again.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from slim_rl.core.errors import GameFailed, UserError, finite
from slim_rl.core.message import Message, Tool
from slim_rl.core.tools import BadCall
from slim_rl.runtime.retry import retry

START_SECONDS = 600.0
"""A server may say for so long that the environment is still starting."""
SILENCE_SECONDS = 30.0
"""A request without a sign of life for so long has failed."""
PING_SECONDS = 10.0
"""A server closes sessions that are silent for 900 s, also those of a killed client."""
_TRIES = 5
_PASSING = (429, 502, 503, 504)
_LINE_BYTES = 2**22
_DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Address:
    """Where an environment is, and what opens it."""

    url: str
    deployment: str | None = None
    """ORG/NAME of a hosted environment."""
    key: str | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.url} ({self.deployment})" if self.deployment else self.url


class Output(NamedTuple):
    """The result of a tool."""

    text: str
    reward: float | None
    finished: bool


class Terminal(NamedTuple):
    """The tool that gets a message without a call."""

    name: str
    argument: str | None


class ServiceFailed(GameFailed):
    """The server gave no answer, or one that is no success; `status` is that of HTTP, 0 without an answer."""

    def __init__(self, reason: str, status: int = 0):
        super().__init__(reason)
        self.status = status

    @property
    def gone(self) -> bool:
        """The server does not know the session or the path."""
        return self.status in (404, 410)


class _Refused(Exception):
    """An HTTP status that is no success."""

    def __init__(self, status: int, detail: str, starting: bool):
        super().__init__(f"{status} {detail}".strip()[:300])
        self.status, self.starting = status, starting


class Connection:
    """An HTTP connection to a server; an async context manager. Its key goes to this server alone: redirections are
    not followed."""

    def __init__(self, address: Address):
        self.address = address
        headers = {"X-API-Key": address.key} if address.key else {}
        if address.deployment:
            headers["X-Deployment"] = address.deployment
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=_LINE_BYTES)

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, method: str, path: str, body: Any = None, session: str | None = None) -> Any:
        """The JSON that answers a request which may be repeated.

        Raises:
            GameFailed, UserError
        """

        async def once() -> Any:
            async with self._request(method, path, body, session) as response:
                await _check(response)
                text = await response.text()
            with reading(path):
                return json.loads(text)

        return await self._repeated(path, once, lambda: True)

    async def stream(self, path: str, body: Any, session: str | None = None) -> tuple[str | None, Any]:
        """A run that is started once: its `task_id`, and the joined `chunk` and `end` events as JSON.

        Raises:
            GameFailed, UserError
        """
        run: str | None = None

        async def once() -> Any:
            nonlocal run
            parts: list[str] = []
            async with self._request("POST", path, {**body, "task_id": run} if run else body, session) as response:
                await _check(response)
                async with aclosing(_events(response)) as events:
                    async for event, data in events:
                        if event == "task_id":
                            run = data.strip()
                        elif event == "error":
                            raise GameFailed(f"ToolFailed: {data[:300] or 'an exception in the environment'}")
                        elif event in ("chunk", "end"):
                            parts.append(data)
                        if event == "end":
                            with reading(path):
                                result = json.loads("".join(parts) or "null")
                            await _drain(response)
                            return result
            raise aiohttp.ClientPayloadError("the reply was cut")

        result = await self._repeated(path, once, lambda: run is not None)
        return run, result

    def _request(self, method: str, path: str, body: Any, session: str | None) -> Any:
        headers = {"X-Session-ID": session} if session else {}
        if self.address.secrets and path in ("/create_session", "/create"):
            values = {name: {"value": value} for name, value in self.address.secrets.items()}
            headers["X-Secrets"] = base64.b64encode(json.dumps(values).encode()).decode()
        return self._http.request(method, self.address.url + path, json=body, headers=headers, allow_redirects=False)

    async def _repeated(self, path: str, once: Callable[[], Awaitable[Any]], repeatable: Callable[[], bool]) -> Any:
        def passing(error: Exception) -> bool:
            if isinstance(error, _Refused):
                return repeatable() and error.status in _PASSING and not error.starting
            return repeatable() and isinstance(error, aiohttp.ClientError | TimeoutError)

        def starting(error: Exception) -> bool:
            return isinstance(error, _Refused) and error.starting

        try:
            return await retry(
                lambda: retry(once, passing, tries=_TRIES, first_seconds=0.1, longest_seconds=5.0),
                starting,
                seconds=START_SECONDS,
                longest_seconds=5.0,
            )
        except (_Refused, aiohttp.ClientError, TimeoutError) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, _Refused):
            if error.status in (401, 403):
                return UserError(f"{self.address} refuses the key, or needs one ({error}). Set it in the environment.")
            name = "SessionGone" if error.status in (404, 410) else "ServiceFailed"
            return ServiceFailed(f"{name}: {self.address} answered {error}", error.status)
        reason = str(error) or f"no sign of life for {SILENCE_SECONDS:g} s"
        return ServiceFailed(f"{type(error).__name__}: {self.address}: {reason[:300]}")


class Session:
    """One episode's session; see `start`."""

    def __init__(self, connection: Connection, environment: str, sid: str):
        self._connection, self._path, self.sid = connection, f"/{environment}", sid
        self._pinging = asyncio.create_task(self._ping())

    async def tools(self) -> tuple[tuple[Tool, ...], Terminal | None]:
        """The tools of the task, and the one that takes a message without a call."""
        reply = await self._connection.ask("GET", f"{self._path}/task_tools", session=self.sid)
        empty = {"type": "object", "properties": {}}
        with reading("task_tools"):
            tools = tuple(Tool(t["name"], t["description"], t.get("input_schema") or empty) for t in reply["tools"])
            last = reply.get("terminal_tool")
            return tools, Terminal(last["name"], last.get("arg")) if last else None

    async def prompt(self) -> list[Message]:
        """What the policy reads first."""
        try:
            # `/messages` is newer than the standard; a server without it may redirect it or know it as no path.
            messages = await self._connection.ask("GET", f"{self._path}/messages", session=self.sid)
        except ServiceFailed as error:
            if not error.gone:
                raise
        else:
            with reading("messages"):
                read = [_message(message) for message in messages]
                if not read or read[-1].role != "user":
                    raise UserError(f"{self._connection.address} opens with messages that end with no user's turn.")
                return read
        blocks = await self._connection.ask("GET", f"{self._path}/prompt", session=self.sid)
        with reading("prompt"):
            return [Message("user", _text(blocks))]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Output:
        """Call a tool, once.

        Raises:
            BadCall: the environment refuses the arguments.
            GameFailed, UserError
        """
        body = {"name": name, "input": dict(arguments)}
        _, reply = await self._connection.stream(f"{self._path}/call", body, self.sid)
        with reading("call"):
            if not _flag(reply["ok"]):
                raise BadCall(str(reply["error"]))
            output = reply["output"]
            reward = None if output.get("reward") is None else finite(output["reward"])
            return Output(_text(output["blocks"]), reward, _flag(output["finished"]))

    async def close(self) -> None:
        """Delete the session. Raises GameFailed if the server does not answer."""
        self._pinging.cancel()
        with suppress(asyncio.CancelledError):
            await self._pinging
        await delete(self._connection, self.sid)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            with suppress(GameFailed, UserError):  # the next call will tell
                await self._connection.ask("POST", "/ping", session=self.sid)


async def new_session_id(connection: Connection) -> str:
    """The id of a session, in which `start` creates the environment. Raises GameFailed, UserError."""
    sid, _ = await connection.stream("/create_session", {})
    if not sid:
        raise GameFailed(f"BadReply: {connection.address} gave no session id")
    return sid


async def start(connection: Connection, sid: str, environment: str, task: Mapping[str, Any]) -> Session:
    """Create the environment of a task in the session `sid`. Raises GameFailed, UserError."""
    try:
        await connection.ask("POST", "/create", {"env_name": environment, "task_spec": dict(task)}, sid)
    except GameFailed as error:
        if "Session already exists" not in str(error):  # the first try reached it, and its answer was lost
            raise
    return Session(connection, environment, sid)


async def delete(connection: Connection, sid: str) -> None:
    """Delete a session; one that is gone already is deleted. Raises GameFailed, UserError."""
    for path in ("/delete", "/delete_session"):
        try:
            await connection.ask("POST", path, session=sid)
        except ServiceFailed as error:
            if not error.gone:
                raise


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Around what reads a server's JSON, and nothing else."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise GameFailed(f"BadReply: {what}: {error!r}") from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = await response.text()
    with suppress(ValueError, AttributeError):
        text = str(json.loads(text).get("detail", text))
    if 300 <= response.status < 400:
        text = f"a redirection, which is not followed; {text}"
    raise _Refused(response.status, text, response.headers.get("X-Backend-State") == "starting")


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the end of a stream, because a connection is used again only after a reply that was read to its end."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            await response.read()


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, str]]:
    """Server-sent events as (event, data); comments are left out."""
    event, data = "", list[str]()
    while True:
        with reading("a line of a stream"):  # which may be too long
            raw = await response.content.readline()
        if not raw:
            return
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        name, _, value = line.partition(":")
        if not line:
            if event:
                yield event, "\n".join(data)
            event, data = "", []
        elif name == "event":
            event = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))


def _message(message: Mapping[str, Any]) -> Message:
    role = {"developer": "system"}.get(message["role"], message["role"])
    if role not in ("system", "user", "assistant"):
        raise UserError(f"The environment opens with a message of the role {role!r}, which cannot be played here.")
    return Message(role, _text(message["blocks"]))


def _text(blocks: Sequence[Any]) -> str:
    """The text of blocks. An image is only named: this model reads text alone. Raises UserError: one is of another kind."""
    if isinstance(blocks, str):
        raise TypeError("text in place of blocks")
    for block in blocks:
        if block["type"] not in ("text", "image") or (block["type"] == "text" and not isinstance(block["text"], str)):
            raise UserError(f"The environment sent a block of the type {block['type']!r}, which cannot be played here.")
    return "".join(block["text"] if block["type"] == "text" else "[image]" for block in blocks)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value
