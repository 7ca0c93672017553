"""Our games over the Open Reward Standard, so that other trainers can train on them; `python -m stages.serve`.

A game with tools offers its own, and its final message goes to the terminal tool `answer`. Any other game offers the
tool `say`, whose result is what the policy's seat reads next. The other seats are taken by the players that `seating`
names, if the game knows them. Splits are `train` and `test`.
"""

import asyncio
import json
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from slim_rl.core.errors import EpisodeFailed, GameFailed, UserError
from slim_rl.core.game import Game, Purpose, Task
from slim_rl.core.message import Message, Tool, ToolCall, said, text_of
from slim_rl.core.parameters import GameParameters
from slim_rl.core.player import Player
from slim_rl.core.tools import ToolGame
from slim_rl.games import NamedGame, file_name, load_games
from slim_rl.rollout.seating import Request, Seat, Seating

PURPOSES: dict[str, Purpose] = {"train": "train", "test": "evaluate"}
RESULT_SECONDS = 60.0
"""How long the result of a call can be fetched again."""
STALE_SECONDS = 900.0
"""A session without a sign of life for so long is closed."""
REAP_SECONDS = 5.0
"""How often stale sessions are looked for."""
_CHUNK = 4096
_UNLIMITED = 10**6
_LOG = logging.getLogger(__name__)


class Refused(Exception):
    """The caller's mistake: `ok: false` with a reason."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


class Body(BaseModel):
    """The JSON of a request; none needs all of it."""

    env_name: str | None = None
    split: str | None = None
    index: int | None = None
    start: int | None = None
    stop: int | None = None
    task_spec: dict[str, Any] | None = None
    name: str = ""
    input: dict[Any, Any] | None = None
    task_id: str | None = None


class Session(Player):
    """One episode, whose policy is on the other end of the line: a player whose turns come in calls."""

    def __init__(self, game: NamedGame, task: Task, seed: int):
        self.touched = _now()
        self._lock = asyncio.Lock()  # calls of one session run one after the other
        self._observations: asyncio.Queue[Sequence[Message]] = asyncio.Queue()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._prompt: Sequence[Message] | None = None
        self._seat: Seat
        seating = Seating({game.name: game}, {"policy": self._sit}, seed)
        request = Request(task.game_id, game.name, task, game.parameters.seating)
        self._playing = asyncio.create_task(seating.play(request))
        self._playing.add_done_callback(lambda _: self._observations.put_nowait(()))

    def _sit(self, seat: Seat) -> "Session":
        self._seat = seat
        return self

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        self._observations.put_nowait(observation)
        return await self._messages.get()

    async def prompt(self) -> Sequence[Message]:
        """What the policy reads first. Raises GameFailed."""
        async with self._lock:
            if self._prompt is None:
                self._prompt = await self._read()
            return self._prompt

    async def tools(self) -> dict[str, Any]:
        """What the policy may call. Raises GameFailed."""
        await self.prompt()
        return tools_of(self._seat.game, self._seat.name)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a call, as the standard has it. Raises GameFailed."""
        await self.prompt()
        async with self._lock:
            try:
                return {"ok": True, "output": await self._call(name, arguments)}
            except Refused as error:
                return {"ok": False, "error": str(error), "reason": error.reason}

    async def end(self) -> None:
        self._playing.cancel()
        await asyncio.wait([self._playing])

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self._playing.done():
            raise Refused("episode_finished", "The episode is finished.")
        message, game = self._turn(name, arguments), self._seat.game
        before = Counter(game.calls) if isinstance(game, ToolGame) else Counter()
        self._messages.put_nowait(message)
        text = text_of(await self._read())
        if isinstance(game, ToolGame) and (wrong := set(game.calls - before) - {"ok"}):
            reason = "not_found" if wrong == {"unknown_tool"} else "input_validation"
            raise Refused(reason, text.removeprefix("Error: "))
        episode = self._playing.result() if self._playing.done() else None
        reward, metrics = (episode.rewards.get(self._seat.name), episode.metrics) if episode else (None, None)
        return {"blocks": _blocks(text), "metadata": metrics, "reward": reward, "finished": episode is not None}

    def _turn(self, name: str, arguments: Mapping[str, Any]) -> Message:
        """A call as a message of the policy."""
        tools = self._seat.game.tools(self._seat.name)
        speaks, argument = ("answer", "message") if tools else ("say", "text")
        if name == speaks:
            if not isinstance(arguments.get(argument), str) or len(arguments) != 1:
                raise Refused("input_validation", f"{name} takes one argument, {argument}, which is text.")
            return said(arguments[argument])
        if not tools:
            raise Refused("not_found", f"There is no tool {name}.")
        return Message("assistant", "", (ToolCall(name, dict(arguments)),))

    async def _read(self) -> Sequence[Message]:
        """The next observation; after the end of the game the last one, which nobody answers."""
        observation = await self._observations.get()
        if not self._playing.done():
            return observation
        self._observations.put_nowait(())  # whoever reads next learns of the end, too
        if self._playing.cancelled():
            raise GameFailed("SessionGone: the session was deleted")
        if (episode := self._playing.result()).status == "failed":
            raise GameFailed(episode.error)
        return await self._seat.game.observe(self._seat.name)


class Server:
    """The HTTP application.

    Args:
        games: by name; see `served_games`.
        seed: of the players in the other seats.
    """

    def __init__(self, games: Mapping[str, NamedGame], seed: int = 0):
        self._games, self._seed = {file_name(name).lower(): game for name, game in games.items()}, seed
        self._tasks: dict[tuple[str, str], list[Task]] = {}
        self.sessions: dict[str, Session] = {}
        self._runs: dict[str, asyncio.Task[dict[str, Any]]] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors_as_json], client_max_size=2**24)
        app.add_routes(
            [
                web.get("/health", _healthy),
                web.get("/list_environments", self._environments),
                web.post("/create_session", self._create_session),
                web.post("/create", self._create),
                web.post("/ping", self._ping),
                web.post("/delete", self._delete),
                web.post("/delete_session", self._delete),
                web.get("/{env}/{what:splits|tools}", self._of_game),
                web.post("/{env}/{what:tasks|task_range|num_tasks|task}", self._of_game),
                web.get("/{env}/{what:task_tools|prompt|messages}", self._of_session),
                web.post("/{env}/call", self._call),
            ]
        )
        app.cleanup_ctx.append(self._reaping)
        return app

    async def _environments(self, request: web.Request) -> web.Response:
        return web.json_response(list(self._games))

    async def _create_session(self, request: web.Request) -> web.StreamResponse:
        return await stream(request, [("task_id", str(uuid.uuid4())), ("end", "")])

    async def _create(self, request: web.Request) -> web.Response:
        sid, body = _sid(request), await _body(request)
        if sid in self.sessions:
            raise web.HTTPBadRequest(text="Session already exists")
        name = body.env_name or next(iter(self._games))
        game = self._game(name)
        if (spec := body.task_spec) is None:
            task = self._task_at(name, body)
        else:
            try:
                task = Task(spec["game_id"], spec["prompt"], spec["game_state"])
                game.taskset.load(task)
            except (KeyError, TypeError, ValueError) as error:  # what `load` says of a damaged task
                raise web.HTTPBadRequest(text=f"Invalid task: {error!r}") from None
        self.sessions[sid] = Session(game, task, self._seed)
        return web.json_response({"sid": sid})

    async def _ping(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({"status": "ok"})

    async def _delete(self, request: web.Request) -> web.Response:
        sid = _sid(request)
        await self._close(sid)
        return web.json_response({"sid": sid})

    async def _of_game(self, request: web.Request) -> web.Response:
        """What a game is, and its tasks."""
        name, what = request.match_info["env"], request.match_info["what"]
        game, body = self._game(name), await _body(request) if request.method == "POST" else Body()
        answer: Any
        match what:
            case "splits":
                answer = [{"name": split, "type": split} for split in PURPOSES]
            case "tools":
                seat = game.taskset.seats[game.parameters.seating.index("policy")]
                answer = tools_of(game.taskset.load(self._all(name, "train")[0]), seat)
            case "num_tasks":
                answer = {"num_tasks": len(self._all(name, body.split))}
            case "task":
                answer = {"task": _spec(self._task_at(name, body)), "env_name": name}
            case _:
                tasks = self._all(name, body.split)[body.start : body.stop]
                answer = {"tasks": [_spec(task) for task in tasks], "env_name": name}
        return web.json_response(answer)

    async def _of_session(self, request: web.Request) -> web.Response:
        """What the policy may call, and what it reads first."""
        session, what = self._session(request), request.match_info["what"]
        if what == "task_tools":
            return web.json_response(await session.tools())
        prompt = await session.prompt()
        if what == "messages":
            return web.json_response([{"role": m.role, "blocks": _blocks(m.text)} for m in prompt])
        return web.json_response([block for message in prompt for block in _blocks(message.text)])

    async def _call(self, request: web.Request) -> web.StreamResponse:
        session, body = self._session(request), await _body(request)
        run = body.task_id
        if run is None:
            run = uuid.uuid4().hex
            self._runs[run] = calling = asyncio.create_task(session.call(body.name, body.input or {}))
            calling.add_done_callback(lambda _: calling.get_loop().call_later(RESULT_SECONDS, self._runs.pop, run))
        elif run not in self._runs:
            return await stream(request, [("error", "unknown task_id")])
        return await stream(request, [("task_id", run)], self._runs[run])

    async def _close(self, sid: str) -> None:
        if session := self.sessions.pop(sid, None):
            await session.end()

    def _session(self, request: web.Request) -> Session:
        session = self.sessions.get(_sid(request))
        if session is None:
            raise web.HTTPNotFound(text="Active environment not found")
        session.touched = _now()
        return session

    def _game(self, name: str) -> NamedGame:
        if name.lower() not in self._games:
            raise web.HTTPNotFound(text=f"unknown environment {name!r}")
        return self._games[name.lower()]

    def _all(self, name: str, split: str | None) -> list[Task]:
        game = self._game(name)
        if split not in PURPOSES:
            raise web.HTTPBadRequest(text="Invalid split")
        if (name.lower(), split) not in self._tasks:
            count = game.parameters.train_count if split == "train" else game.parameters.eval_count
            self._tasks[name.lower(), split] = list(islice(game.taskset.tasks(PURPOSES[split], count), count))
        return self._tasks[name.lower(), split]

    def _task_at(self, name: str, body: Body) -> Task:
        tasks = self._all(name, body.split)
        if body.index is None or not 0 <= body.index < len(tasks):
            raise web.HTTPBadRequest(text="Invalid index")
        return tasks[body.index]

    async def _reaping(self, app: web.Application) -> AsyncIterator[None]:
        async def reap() -> None:
            while True:
                await asyncio.sleep(REAP_SECONDS)
                for sid in [sid for sid, s in self.sessions.items() if _now() - s.touched > STALE_SECONDS]:
                    await self._close(sid)  # unless its client has closed it meanwhile

        reaping = asyncio.create_task(reap())
        yield
        reaping.cancel()
        for sid in list(self.sessions):
            await self._close(sid)


async def stream(
    request: web.Request, events: Sequence[tuple[str, str]], run: asyncio.Task[dict[str, Any]] | None = None
) -> web.StreamResponse:
    """Server-sent events, and then the result of `run` in chunks."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(event: str, data: str) -> None:
        await response.write(f"event: {event}\r\ndata: {data}\r\n\r\n".encode())

    for event, data in events:
        await send(event, data)
    if run is not None:
        while not run.done():
            await asyncio.wait([run], timeout=10)
            if not run.done():
                await response.write(b": ping\r\n\r\n")
        if error := run.exception():
            if not isinstance(error, EpisodeFailed):
                _LOG.error("A call failed", exc_info=error)
            await send("error", f"{type(error).__name__}: {error}".replace("\n", " ")[:_CHUNK])
        else:
            text = json.dumps(run.result())
            parts = [text[i : i + _CHUNK] for i in range(0, len(text), _CHUNK)]
            for n, part in enumerate(parts, start=1):
                await send("end" if n == len(parts) else "chunk", part)
    await response.write_eof()
    return response


@web.middleware
async def _errors_as_json(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors as the standard has them, `{"detail": ...}`. A fault of ours is left to aiohttp, which logs it."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return web.json_response({"detail": error.text}, status=error.status)
    except (EpisodeFailed, UserError) as error:
        return web.json_response({"detail": str(error)}, status=500)


async def _healthy(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _body(request: web.Request) -> Body:
    read = await request.read()
    try:
        return Body.model_validate(json.loads(read))
    except (ValueError, RecursionError) as error:
        raise web.HTTPUnprocessableEntity(text=f"Invalid request: {' '.join(str(error).split())}") from None


def _sid(request: web.Request) -> str:
    if not (sid := request.headers.get("X-Session-ID", "").strip()):
        raise web.HTTPBadRequest(text="X-Session-ID header is required")
    return sid


def _now() -> float:
    return asyncio.get_running_loop().time()


def _spec(task: Task) -> dict[str, Any]:
    return {"game_id": task.game_id, "prompt": task.prompt, "game_state": dict(task.state)}


def _blocks(text: str) -> list[dict[str, Any]]:
    return [{"text": text, "type": "text"}]


def tools_of(game: Game, seat: str) -> dict[str, Any]:
    """The tools of a seat: the game's own, and `answer` for its final message; or `say`."""
    tools = game.tools(seat)
    say = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    terminal = {"name": "answer", "arg": "message", "description": "Ends the episode."} if tools else None
    return {
        "tools": [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in tools or [Tool("say", "Say this and read the reply.", say)]
        ],
        "terminal_tool": terminal,
        "supports_score_group": False,
        "message_block_types": ["text"],
    }


def served_games(parameters: Mapping[str, GameParameters], seed: int) -> dict[str, NamedGame]:
    """The games as they are served. How long an episode with tools lasts is the client's to limit.

    Raises:
        UserError: a game cannot be served.
    """
    games = load_games(parameters, seed)
    for name, game in games.items():
        if game.parameters.adds_seats:
            raise UserError(f"games.{name} cannot be served: it may add seats, but a session has one.")
        others = [player for player in game.parameters.seating if player != "policy"]
        if len(others) != len(game.parameters.seating) - 1 or any(":" in player for player in others):
            raise UserError(
                f"games.{name}.seating must name policy once, and in the other seats players that the game knows."
            )
        reward = game.parameters.reward_function
        if reward is not None and reward.scope == "group":
            raise UserError(f"games.{name}.reward_function.scope must be episode: a server has no groups to judge.")
        if isinstance(game.taskset.load(next(iter(game.taskset.tasks("train", 1)))), ToolGame):
            games |= load_games({name: game.parameters.model_copy(update={"max_turns": _UNLIMITED})}, seed)
    return games


async def listen(app: web.Application, host: str, port: int) -> None:
    """Serve until cancelled; prints the address. Raises UserError if the port is taken."""
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        raise UserError(f"{host}:{port} cannot be listened to: {error.strerror}.") from None
    print(f"http://{host}:{runner.addresses[0][1]}", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
