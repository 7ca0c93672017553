"""The door: OpenAI's chat completions on the loopback, for the agents of many episodes.

Each episode has a key of its own. A completion that never reached its client is given again to the next equal request, and
so is one that a client says it asks for again; any other equal request is sampled anew.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from slim_rl.core.message import Message
from slim_rl.games.agent.wire import MODEL, Refusal, Request, chunks, completion, read_request

Answer = Callable[[Request], Awaitable[tuple[Message, Message]]]
"""One choice: what the client reads, and the turn of the model. Raises Refusal."""
MAX_BYTES = 8 * 2**20
"""The longest request."""


@dataclass(eq=False)
class _Reply:
    """A completion, done or under way."""

    digest: bytes
    """SHA-256 of the request."""
    task: asyncio.Task[dict[str, Any]]
    request: web.Request
    """The latest that waits for it."""
    delivered: bool = False

    @property
    def lost(self) -> bool:
        return not self.delivered and (self.request.transport is None or self.request.transport.is_closing())


@dataclass
class _Visitor:
    answer: Answer
    replies: list[_Reply] = field(default_factory=list)
    """All of the episode; its turns are limited."""


class Door:
    """A server that is there while somebody is inside. Its port is free for use by any process of this machine, so every
    request needs an episode's key."""

    def __init__(self) -> None:
        self._visitors: dict[str, _Visitor] = {}
        self._opening: asyncio.Task[tuple[web.AppRunner, str]] | None = None

    @asynccontextmanager
    async def let_in(self, answer: Answer) -> AsyncIterator[tuple[str, str]]:
        """The base URL and the key of an episode, whose requests go to `answer`."""
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._visitors[key] = _Visitor(answer)
        try:
            self._opening = self._opening or asyncio.create_task(self._open())
            _, url = await asyncio.shield(self._opening)
            yield url, key
        finally:
            for reply in self._visitors.pop(key).replies:
                reply.task.cancel()
            if not self._visitors and self._opening is not None:
                opening, self._opening = self._opening, None
                runner, _ = await opening
                await runner.cleanup()

    async def _open(self) -> tuple[web.AppRunner, str]:
        app = web.Application(middlewares=[_refusals], client_max_size=MAX_BYTES)
        app.add_routes([web.post("/v1/chat/completions", self._complete), web.get("/v1/models", self._models)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)  # a step's agents come all at once
        await site.start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    def _visitor(self, request: web.Request) -> _Visitor:
        key = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        visitor = self._visitors.get(key)
        if visitor is None:
            raise Refusal("The key is of no episode that is being played.", "invalid_api_key", status=401)
        return visitor

    async def _models(self, request: web.Request) -> web.Response:
        self._visitor(request)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "slim_rl"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        visitor, written = self._visitor(request), await request.read()
        try:
            asked = read_request(json.loads(written))
        except (ValueError, RecursionError):
            raise Refusal("The body is no JSON.") from None
        digest = hashlib.sha256(written).digest()
        equal = [reply for reply in visitor.replies if reply.digest == digest]
        retried = request.headers.get("x-stainless-retry-count", "0") != "0"
        reply = next((reply for reply in equal if reply.lost), equal[-1] if retried and equal else None)
        if reply is None:
            reply = _Reply(digest, asyncio.create_task(_choices(visitor.answer, asked)), request)
            visitor.replies.append(reply)
        reply.request = request
        try:
            whole = await asyncio.shield(reply.task)
        except Refusal:
            visitor.replies = [other for other in visitor.replies if other is not reply]
            raise
        response = await _write(request, asked, whole)
        reply.delivered = True
        return response


async def _choices(answer: Answer, asked: Request) -> dict[str, Any]:
    return completion(await asyncio.gather(*(answer(asked) for _ in range(asked.choices))))


async def _write(request: web.Request, asked: Request, whole: dict[str, Any]) -> web.StreamResponse:
    """Send a completion to the end. Raises ConnectionError: the client is gone."""
    if not asked.stream:
        response: web.StreamResponse = web.json_response(whole)
        await response.prepare(request)
    else:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for chunk in chunks(whole, asked.stream_usage):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client is gone")
    return response


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors in OpenAI's form. A fault of ours is left to aiohttp, which logs it."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return web.json_response(refusal.body, status=refusal.status)
    except web.HTTPException as error:
        text = (
            f"{error.reason}: {request.method} {request.path}. Here are POST /v1/chat/completions and GET /v1/models."
        )
        body = Refusal(text, "invalid_request", error.status).body
        return web.json_response(body, status=error.status)
