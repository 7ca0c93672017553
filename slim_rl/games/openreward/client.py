"""The Open Reward Standard over HTTP: one session on a server, and the environment of a task in it.

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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, Self

import aiohttp
from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from slim_rl.core.errors import GameFailed, UserError
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
_PASSING, _GONE = (429, 502, 503, 504), (404, 410)
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


class Terminal(BaseModel):
    """The tool that gets a message without a call."""

    name: str = Field(min_length=1)
    argument: str | None = Field(None, alias="arg")


class ServiceFailed(GameFailed):
    """The server gave no answer, or one that is no success; `status` is that of HTTP, 0 without an answer."""

    def __init__(self, reason: str, status: int = 0, starting: bool = False):
        super().__init__(reason)
        self.status, self.starting = status, starting

    @property
    def gone(self) -> bool:
        """The server does not know the session or the path."""
        return self.status in _GONE


class Session:
    """A session on a server, over a connection of its own. A context manager that opens and closes it.

    Its key goes to this server alone: redirections are not followed. Everything here raises GameFailed and UserError.
    """

    def __init__(self, address: Address):
        self.address = address
        headers = {"X-API-Key": address.key} if address.key else {}
        if address.deployment:
            headers["X-Deployment"] = address.deployment
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=_LINE_BYTES)
        self._sid: str | None = None
        self._environment = ""
        self._pinging: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin the session. A hosted environment answers nothing without one."""
        self._sid, _ = await self._stream("/create_session", {})
        if not self._sid:
            raise GameFailed(f"BadReply: {self.address} gave no session id")
        self._pinging = asyncio.create_task(self._ping())

    async def start(self, environment: str, task: Mapping[str, Any]) -> None:
        """Create the environment of a task."""
        self._environment = f"/{environment}"
        try:
            await self.ask("POST", "/create", {"env_name": environment, "task_spec": dict(task)})
        except GameFailed as error:
            if "Session already exists" not in str(error):  # the first try reached it, and its answer was lost
                raise

    async def tools(self) -> tuple[tuple[Tool, ...], Terminal | None]:
        """The tools of the task, and the one that takes a message without a call."""
        reply: _Tools = await self.ask("GET", f"{self._environment}/task_tools", kind=_Tools)
        empty = {"type": "object", "properties": {}}
        tools = tuple(Tool(tool.name, tool.description, tool.input_schema or empty) for tool in reply.tools)
        return tools, reply.terminal_tool

    async def prompt(self) -> list[Message]:
        """What the policy reads first."""
        try:
            # `/messages` is newer than the standard; a server without it may redirect it or know it as no path.
            messages = await self.ask("GET", f"{self._environment}/messages", kind=list[_Message])
        except ServiceFailed as error:
            if not error.gone:
                raise
            blocks = await self.ask("GET", f"{self._environment}/prompt", kind=list[_Block])
            return [Message("user", _text(blocks))]
        read = [_message(message) for message in messages]
        if not read or read[-1].role != "user":
            raise UserError(f"{self.address} opens with messages that end with no user's turn.")
        return read

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Output:
        """Call a tool, once. Raises BadCall, too, if the environment refuses the arguments."""
        body = {"name": name, "input": dict(arguments)}
        _, reply = await self._stream(f"{self._environment}/call", body, kind=_Done | _Bad)
        if isinstance(reply, _Bad):
            raise BadCall(reply.error)
        return Output(_text(reply.output.blocks), reply.output.reward, reply.output.finished)

    async def close(self) -> None:
        """Delete the session, if it is not gone already, and close the connection."""
        async with self._http:
            if self._pinging:
                self._pinging.cancel()
                with suppress(asyncio.CancelledError):
                    await self._pinging
            for path in ("/delete", "/delete_session") if self._sid else ():
                try:
                    await self.ask("POST", path)
                except ServiceFailed as error:
                    if not error.gone:
                        raise

    async def ask(self, method: str, path: str, body: Any = None, kind: Any = Any) -> Any:
        """The JSON of this kind that answers a request which may be repeated."""

        async def once() -> Any:
            async with self._request(method, path, body) as response:
                return _read(kind, path, await response.read())

        return await self._repeated(once, lambda: True)

    async def _stream(self, path: str, body: Any, kind: Any = Any) -> tuple[str | None, Any]:
        """A run that is started once: its `task_id`, and the joined `chunk` and `end` events as JSON of this kind."""
        run: str | None = None

        async def once() -> Any:
            nonlocal run
            parts: list[str] = []
            request = self._request("POST", path, {**body, "task_id": run} if run else body)
            async with request as response, aclosing(_events(response)) as events:
                async for event, data in events:
                    if event == "task_id":
                        run = data.strip()
                    elif event == "error":
                        raise GameFailed(f"ToolFailed: {data[:300] or 'an exception in the environment'}")
                    elif event in ("chunk", "end"):
                        parts.append(data)
                    if event == "end":
                        result = _read(kind, path, "".join(parts) or "null")
                        await _drain(response)
                        return result
            raise aiohttp.ClientPayloadError("the reply was cut")

        result = await self._repeated(once, lambda: run is not None)
        return run, result

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A reply that is a success."""
        headers = {"X-Session-ID": self._sid} if self._sid else {}
        if self.address.secrets and path in ("/create_session", "/create"):
            values = {name: {"value": value} for name, value in self.address.secrets.items()}
            headers["X-Secrets"] = base64.b64encode(json.dumps(values).encode()).decode()
        url = self.address.url + path
        async with self._http.request(method, url, json=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise await self._refusal(response)
            yield response

    async def _refusal(self, response: aiohttp.ClientResponse) -> UserError | ServiceFailed:
        status, detail = response.status, await response.text()
        with suppress(ValueError, AttributeError):
            detail = str(json.loads(detail).get("detail", detail))
        if 300 <= status < 400:
            detail = f"a redirection, which is not followed; {detail}"
        answer = f"{status} {detail}".strip()[:300]
        if status in (401, 403):
            return UserError(f"{self.address} refuses the key, or needs one ({answer}). Set it in the environment.")
        name = "SessionGone" if status in _GONE else "ServiceFailed"
        starting = response.headers.get("X-Backend-State") == "starting"
        return ServiceFailed(f"{name}: {self.address} answered {answer}", status, starting)

    async def _repeated(self, once: Callable[[], Awaitable[Any]], repeatable: Callable[[], bool]) -> Any:
        def passing(error: Exception) -> bool:
            if isinstance(error, ServiceFailed):
                return repeatable() and error.status in _PASSING and not error.starting
            return repeatable() and isinstance(error, aiohttp.ClientError | TimeoutError)

        def starting(error: Exception) -> bool:
            return isinstance(error, ServiceFailed) and error.starting

        try:
            return await retry(
                lambda: retry(once, passing, tries=_TRIES, first_seconds=0.1, longest_seconds=5.0),
                starting,
                seconds=START_SECONDS,
                longest_seconds=5.0,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or f"no sign of life for {SILENCE_SECONDS:g} s"
            raise ServiceFailed(f"{type(error).__name__}: {self.address}: {reason[:300]}") from None

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            with suppress(GameFailed, UserError):  # the next call will tell
                await self.ask("POST", "/ping")


class _Block(BaseModel):
    type: str
    text: str | None = None


class _Message(BaseModel):
    role: str
    blocks: list[_Block]


class _Tool(BaseModel):
    name: str = Field(min_length=1)
    description: str
    input_schema: dict[str, Any] | None = None


class _Tools(BaseModel):
    tools: list[_Tool]
    terminal_tool: Terminal | None = None


class _Output(BaseModel):
    blocks: list[_Block]
    reward: FiniteFloat | None = None
    finished: bool


class _Done(BaseModel):
    ok: Literal[True]
    output: _Output


class _Bad(BaseModel):
    ok: Literal[False]
    error: str


_reader = cache(TypeAdapter)


def _read(kind: Any, what: str, text: str | bytes) -> Any:
    try:
        return _reader(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (what, *first["loc"])))
        raise GameFailed(f"BadReply: {place[:100]}: {first['msg'][:200]}") from None


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the end of a stream, because a connection is used again only after a reply that was read to its end."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            await response.read()


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, str]]:
    """Server-sent events as (event, data); comments are left out."""
    event, data = "", list[str]()
    while True:
        try:
            raw = await response.content.readline()
        except ValueError as error:
            raise GameFailed(f"BadReply: a line of a stream is too long: {error}") from None
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


def _message(message: _Message) -> Message:
    role: Any = {"developer": "system"}.get(message.role, message.role)
    if role not in ("system", "user", "assistant"):
        raise UserError(f"The environment opens with a message of the role {role[:50]!r}, which cannot be played here.")
    return Message(role, _text(message.blocks))


def _text(blocks: Sequence[_Block]) -> str:
    """The text of blocks. An image is only named: this model reads text alone. Raises UserError: one is of another kind."""
    for block in blocks:
        if block.type != "image" and (block.type != "text" or block.text is None):
            raise UserError(
                f"The environment sent a block of the type {block.type[:50]!r}, which cannot be played here."
            )
    return "".join(block.text or "" if block.type == "text" else "[image]" for block in blocks)
