"""The Open Reward Standard over HTTP: one connection, and one session of an environment.

Whose fault a failure is:

    the policy's       `ok: false`                                     BadCall: told, the episode goes on
    the environment's  an `error` event                                GameFailed: the episode is played again
    the service's      5xx, 404 or 410 of a session, no connection     GameFailed
    the user's         401, 403, an unknown environment or split       UserError

A tool is called once. Before the server has named the run (`task_id`) nobody knows whether it ran, so a failed call is
not repeated; with the name, the same run is picked up again.
"""

import asyncio
import base64
import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.message import Message, Tool
from slim_rl.core.tools import BadCall

PING_SECONDS = 10.0
"""A server reaps sessions that are silent for 900 s."""
_TRIES = 5
"""Of a request that may be repeated."""
_PAUSE_SECONDS = 0.1  # before the first repetition; it doubles
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


class Limits(NamedTuple):
    """In seconds; see `Parameters`."""

    start: float
    silence: float


class Output(NamedTuple):
    """The result of a tool."""

    text: str
    reward: float | None
    finished: bool


class Terminal(NamedTuple):
    """The tool that is given a message without a call."""

    name: str
    argument: str | None


class ServiceFailed(GameFailed):
    """The server gave no answer, or one that is no success; `status` is that of HTTP, 0 without an answer."""

    def __init__(self, told: str, status: int = 0):
        super().__init__(told)
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

    def __init__(self, address: Address, limits: Limits):
        self.address, self._limits = address, limits
        headers = {"X-API-Key": address.key} if address.key else {}
        if address.deployment:
            headers["X-Deployment"] = address.deployment
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.silence, sock_read=limits.silence)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=_LINE_BYTES)

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON that answers a request which may be repeated.

        Raises:
            GameFailed, UserError
        """
        sent = {**(headers or {}), **({"X-Session-ID": session} if session else {})}

        async def once() -> Any:
            request = self._http.request(
                method, self.address.url + path, json=body, headers=sent, allow_redirects=False
            )
            async with request as response:
                await _check(response)
                return await response.json(content_type=None)

        pause, tries, started = _PAUSE_SECONDS, 1, time.monotonic()
        while True:
            try:
                return await once()
            except _Refused as error:
                riding_out = error.starting and time.monotonic() - started < self._limits.start
                if not riding_out and (error.status not in _PASSING or tries >= _TRIES):
                    raise self._failure(error) from None
            except (aiohttp.ClientError, TimeoutError) as error:
                if tries >= _TRIES:
                    raise self._failure(error) from None
            except ValueError as error:
                raise GameFailed(f"BadReply: {path} of {self.address} answered no JSON: {error}") from None
            await asyncio.sleep(pause)
            pause, tries = min(2 * pause, 5.0), tries + 1

    async def stream(
        self, path: str, body: Any, session: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[str | None, Any]:
        """A run that is started once: its `task_id`, and the joined `chunk` and `end` events as JSON.

        Raises:
            GameFailed, UserError
        """
        headers = {**(headers or {}), **({"X-Session-ID": session} if session else {})}
        run: str | None = None
        pause, tries, started = _PAUSE_SECONDS, 1, time.monotonic()
        while True:
            sent = body if run is None else {**body, "task_id": run}
            parts: list[str] = []
            failure: Exception
            try:
                request = self._http.post(self.address.url + path, json=sent, headers=headers, allow_redirects=False)
                async with request as response:
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
                                result = json.loads("".join(parts) or "null")
                                await _drain(response)
                                return run, result
                failure = aiohttp.ClientPayloadError("the reply was cut")
            except _Refused as error:
                starting = error.starting and time.monotonic() - started < self._limits.start
                if not starting and (run is None or error.status not in _PASSING or tries >= _TRIES):
                    raise self._failure(error) from None
                failure = error
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = error
            except ValueError as error:  # no JSON, or a line without end
                raise GameFailed(f"BadReply: {path} of {self.address}: {error}") from None
            if not isinstance(failure, _Refused) and (run is None or tries >= _TRIES):
                raise self._failure(failure) from None
            await asyncio.sleep(pause)
            pause, tries = min(2 * pause, 5.0), tries + 1

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, _Refused):
            if error.status in (401, 403):
                return UserError(f"{self.address} refuses the key, or needs one ({error}). Set it in the environment.")
            name = "SessionGone" if error.status in (404, 410) else "ServiceFailed"
            return ServiceFailed(f"{name}: {self.address} answered {error}", error.status)
        told = str(error) or f"no sign of life for {self._limits.silence:g} s"
        return ServiceFailed(f"{type(error).__name__}: {self.address}: {told[:300]}")


class Session:
    """One episode's session; see `start`."""

    def __init__(self, connection: Connection, environment: str, sid: str):
        self._connection, self._path, self.sid = connection, f"/{environment}", sid
        self._pinging = asyncio.create_task(self._ping())

    async def tools(self) -> tuple[tuple[Tool, ...], Terminal | None]:
        """The tools of the task, and the one that takes a message without a call."""
        try:
            told = await self._connection.ask("GET", f"{self._path}/task_tools", session=self.sid)
            tools = tuple(
                Tool(
                    tool["name"], tool["description"], tool.get("input_schema") or {"type": "object", "properties": {}}
                )
                for tool in told["tools"]
            )
            last = told.get("terminal_tool")
            return tools, Terminal(last["name"], last.get("arg")) if last else None
        except (KeyError, TypeError, AttributeError) as error:
            raise GameFailed(f"BadReply: task_tools: {error!r}") from None

    async def prompt(self) -> list[Message]:
        """What the policy reads first."""
        try:
            # `/messages` is newer than the standard; a server without it may redirect it or know it as no path.
            told = await self._connection.ask("GET", f"{self._path}/messages", session=self.sid)
            return [Message(m["role"], _text(m["blocks"])) for m in told if m["role"] in ("system", "user")]
        except ServiceFailed as error:
            if not error.gone:
                raise
        except (KeyError, TypeError) as error:
            raise GameFailed(f"BadReply: messages: {error!r}") from None
        told = await self._connection.ask("GET", f"{self._path}/prompt", session=self.sid)
        try:
            return [Message("user", _text(told))]
        except (KeyError, TypeError) as error:
            raise GameFailed(f"BadReply: prompt: {error!r}") from None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Output:
        """Call a tool, once.

        Raises:
            BadCall: the environment refuses the arguments.
            GameFailed, UserError
        """
        body = {"name": name, "input": dict(arguments)}
        _, told = await self._connection.stream(f"{self._path}/call", body, self.sid)
        try:
            if not told["ok"]:
                raise BadCall(str(told["error"]))
            output = told["output"]
            reward = output.get("reward")
            if reward is not None and not math.isfinite(reward):
                raise GameFailed(f"BadReply: the reward {reward}")
            given = None if reward is None else float(reward)
            return Output(_text(output["blocks"]), given, bool(output["finished"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise GameFailed(f"BadReply: call: {error!r}") from None

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
    sid, _ = await connection.stream("/create_session", {}, headers=_secrets(connection.address))
    if not sid:
        raise GameFailed(f"BadReply: {connection.address} gave no session id")
    return sid


async def start(connection: Connection, sid: str, environment: str, task: Mapping[str, Any]) -> Session:
    """Create the environment of a task in the session `sid`. Raises GameFailed, UserError."""
    body = {"env_name": environment, "task_spec": dict(task)}
    try:
        await connection.ask("POST", "/create", body, sid, _secrets(connection.address))
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


def _secrets(address: Address) -> dict[str, str]:
    """The header that carries the secrets of an environment."""
    if not address.secrets:
        return {}
    values = {name: {"value": value} for name, value in address.secrets.items()}
    return {"X-Secrets": base64.b64encode(json.dumps(values).encode()).decode()}


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
    event = ""
    data: list[str] = []
    async for raw in response.content:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if event:
                yield event, "\n".join(data)
            event, data = "", []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                event = value
            elif name == "data":
                data.append(value)


def _text(blocks: list[Any]) -> str:
    """The text of blocks. An image is told as such: this model reads text alone."""
    return "".join(block["text"] if block["type"] == "text" else f"[{block['type']}]" for block in blocks)
