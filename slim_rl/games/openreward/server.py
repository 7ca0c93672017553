"""Serve the games of a params.yaml over the Open Reward Standard, so that other trainers can train on them.

    python -m slim_rl.games.openreward.server --parameters conf/calculator.yaml --port 8080

A game with tools has its own; the final message goes to the terminal tool `answer`. Any other game has the tool `say`,
whose result is what the policy's seat reads next. The other seats are taken by the players that `seating` names, if the
game knows them. Splits are `train` and `test`.

There is no authentication: listen to other machines only in a network you trust.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import yaml
from aiohttp import web
from pydantic import ValidationError

from slim_rl.core.errors import EpisodeFailed, UserError
from slim_rl.core.game import HasPlayers, Purpose, Task, as_game, is_text_game, seed_of
from slim_rl.core.message import Message, Tool, ToolCall, said, text_of
from slim_rl.core.player import Player, TextSeat
from slim_rl.core.tools import ToolGame
from slim_rl.games import NamedGame, file_name, game_parameters, load_games
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence

PURPOSES: dict[str, Purpose] = {"train": "train", "test": "evaluate"}
CHUNK = 4096
KEPT_SECONDS = 60.0
"""How long the result of a call can be fetched again."""
STALE_SECONDS = 900.0
"""A session without a sign of life for so long is closed."""
_ANSWER, _SAY = "answer", "say"
_UNLIMITED = 10**6


class Refused(Exception):
    """The caller's mistake: `ok: false` with a reason."""

    def __init__(self, reason: str, told: str):
        super().__init__(told)
        self.reason = reason


class Seat:
    """The policy's seat in one game, to be played by calls."""

    def __init__(self, of: NamedGame, task: Task):
        names = of.parameters.seating
        loaded = of.taskset.load(task)
        self._seat = of.taskset.seats[names.index("policy")]
        self._game = as_game(loaded)
        self._tools = isinstance(loaded, ToolGame)
        self._others: dict[str, Player] = {}
        for seat, name in zip(of.taskset.seats, names, strict=True):
            if seat != self._seat:
                assert isinstance(of.taskset, HasPlayers)
                player = of.taskset.player(name, loaded, seat, seed_of(task.game_id, seat))
                self._others[seat] = TextSeat(player) if is_text_game(loaded) else player
        self._read: list[Message] | None = None

    async def prompt(self) -> list[Message]:
        if self._read is None:
            self._read = await self._next()
        return self._read

    def tools(self) -> dict[str, Any]:
        say = Tool(_SAY, "Say this and read the reply.", _one_text("text"))
        own = self._game.tools(self._seat) if self._tools else (say,)
        tools = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in own]
        last = {"name": _ANSWER, "arg": "message", "description": "Ends the episode."} if self._tools else None
        return {"tools": tools, "terminal_tool": last, "supports_score_group": False, "message_block_types": ["text"]}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The output of a call. Raises Refused."""
        await self.prompt()
        if self._game.turn is None:
            raise Refused("episode_finished", "The episode is finished.")
        if self._tools and name != _ANSWER:
            status, text = await cast(ToolGame, self._game).run(ToolCall(name, dict(arguments)))
            if status != "ok":
                raise Refused("not_found" if status == "unknown_tool" else "input_validation", text)
            return self._output(text)
        argument = "message" if self._tools else "text"
        if name not in (_ANSWER if self._tools else _SAY,):
            raise Refused("not_found", f"There is no tool {name}.")
        if not isinstance(arguments.get(argument), str) or len(arguments) != 1:
            raise Refused("input_validation", f"{name} takes one argument, {argument}, which is text.")
        await self._game.step(said(arguments[argument]))
        return self._output(text_of(await self._next()))

    async def close(self) -> None:
        await self._game.close()

    async def _next(self) -> list[Message]:
        """Let the others play until it is the policy's turn. What it reads then, or at the end."""
        while (turn := self._game.turn) in self._others:
            player = self._others[cast(str, turn)]
            await self._game.step(await player.respond(tuple(await self._game.observe(cast(str, turn)))))
        return [] if self._tools and self._game.turn is None else list(await self._game.observe(self._seat))

    def _output(self, text: str) -> dict[str, Any]:
        finished = self._game.turn is None
        reward = (self._game.rewards() or {}).get(self._seat) if finished else None
        metrics = dict(self._game.metrics()) if finished else None
        return {"blocks": [_block(text)], "metadata": metrics, "reward": reward, "finished": finished}


@dataclass
class Session:
    environment: str
    seat: Seat
    touched: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Calls of one session run one after the other."""


class Server:
    """The HTTP application, over the games of one set of parameters.

    Args:
        games: by name, with the policy in one seat and players that the game knows in the others.
    """

    def __init__(self, games: Mapping[str, NamedGame]):
        self._games = {file_name(name).lower(): game for name, game in games.items()}
        self._tasks: dict[tuple[str, str], list[Task]] = {}
        self.sessions: dict[str, Session] = {}
        self._runs: dict[str, asyncio.Task[dict[str, Any]]] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_as_json], client_max_size=2**24)
        app.add_routes(
            [
                web.get("/health", _healthy),
                web.get("/list_environments", self._environments),
                web.post("/create_session", self._create_session),
                web.post("/create", self._create),
                web.post("/ping", self._ping),
                web.post("/delete", self._delete),
                web.post("/delete_session", self._delete),
                web.get("/{env}/splits", self._splits),
                web.post("/{env}/tasks", self._list_tasks),
                web.post("/{env}/num_tasks", self._count_tasks),
                web.post("/{env}/task", self._one_task),
                web.post("/{env}/task_range", self._range_of_tasks),
                web.get("/{env}/tools", self._tools),
                web.get("/{env}/task_tools", self._task_tools),
                web.get("/{env}/prompt", self._prompt),
                web.get("/{env}/messages", self._messages),
                web.post("/{env}/call", self._call),
            ]
        )
        app.cleanup_ctx.append(self._reaping)
        return app

    async def _environments(self, request: web.Request) -> web.Response:
        return web.json_response(list(self._games))

    async def _create_session(self, request: web.Request) -> web.StreamResponse:
        return await _stream(request, [("task_id", str(uuid.uuid4())), ("end", "")])

    async def _create(self, request: web.Request) -> web.Response:
        sid, given = _sid(request), await request.json()
        if sid in self.sessions:
            raise web.HTTPBadRequest(text="Session already exists")
        name = given.get("env_name") or next(iter(self._games))
        game = self._game(name)
        if (spec := given.get("task_spec")) is None:
            spec = self._spec(self._task_at(name, given.get("split"), given.get("index")))
        try:
            task = Task(spec["game_id"], spec["prompt"], spec["game_state"])
            seat = Seat(game, task)
        except (KeyError, TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"Invalid task: {error!r}") from None
        self.sessions[sid] = Session(name.lower(), seat, _now())
        return web.json_response({"sid": sid})

    async def _ping(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({"status": "ok"})

    async def _delete(self, request: web.Request) -> web.Response:
        sid = _sid(request)
        if session := self.sessions.pop(sid, None):
            await session.seat.close()
        return web.json_response({"sid": sid})

    async def _splits(self, request: web.Request) -> web.Response:
        self._game(request.match_info["env"])
        return web.json_response([{"name": split, "type": split} for split in PURPOSES])

    async def _list_tasks(self, request: web.Request) -> web.Response:
        name, given = request.match_info["env"], await request.json()
        specs = [self._spec(task) for task in self._all(name, given.get("split"))]
        return web.json_response({"tasks": specs, "env_name": name})

    async def _count_tasks(self, request: web.Request) -> web.Response:
        given = await request.json()
        return web.json_response({"num_tasks": len(self._all(request.match_info["env"], given.get("split")))})

    async def _one_task(self, request: web.Request) -> web.Response:
        name, given = request.match_info["env"], await request.json()
        task = self._task_at(name, given.get("split"), given.get("index"))
        return web.json_response({"task": self._spec(task), "env_name": name})

    async def _range_of_tasks(self, request: web.Request) -> web.Response:
        name, given = request.match_info["env"], await request.json()
        tasks = self._all(name, given.get("split"))[given.get("start") : given.get("stop")]
        return web.json_response({"tasks": [self._spec(task) for task in tasks], "env_name": name})

    async def _tools(self, request: web.Request) -> web.Response:
        name = request.match_info["env"]
        return web.json_response(Seat(self._game(name), self._all(name, "train")[0]).tools())

    async def _task_tools(self, request: web.Request) -> web.Response:
        return web.json_response(self._session(request).seat.tools())

    async def _messages(self, request: web.Request) -> web.Response:
        read = await self._session(request).seat.prompt()
        return web.json_response([{"role": m.role, "blocks": [_block(m.text)]} for m in read])

    async def _prompt(self, request: web.Request) -> web.Response:
        return web.json_response([_block(m.text) for m in await self._session(request).seat.prompt()])

    async def _call(self, request: web.Request) -> web.StreamResponse:
        session, given = self._session(request), await request.json()
        run = given.get("task_id")
        if run is None:
            run = uuid.uuid4().hex
            self._runs[run] = asyncio.create_task(_answer(session, given["name"], given["input"]))
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._runs.pop, run, None)
        elif run not in self._runs:
            return await _stream(request, [("error", "unknown task_id")])
        return await _stream(request, [("task_id", run)], self._runs[run])

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

    def _all(self, name: str, split: Any) -> list[Task]:
        game = self._game(name)
        if split not in PURPOSES:
            raise web.HTTPBadRequest(text="Invalid split")
        if (name.lower(), split) not in self._tasks:
            given = game.parameters
            count = given.train_count if split == "train" else given.eval_count
            self._tasks[name.lower(), split] = list(islice(game.taskset.tasks(PURPOSES[split], count), count))
        return self._tasks[name.lower(), split]

    def _task_at(self, name: str, split: Any, index: Any) -> Task:
        tasks = self._all(name, split)
        if not isinstance(index, int) or not 0 <= index < len(tasks):
            raise web.HTTPBadRequest(text="Invalid index")
        return tasks[index]

    @staticmethod
    def _spec(task: Task) -> dict[str, Any]:
        return {"game_id": task.game_id, "prompt": task.prompt, "game_state": dict(task.state)}

    async def _reaping(self, app: web.Application) -> AsyncIterator[None]:
        async def reap() -> None:
            while True:
                await asyncio.sleep(5)
                for sid in [sid for sid, s in self.sessions.items() if _now() - s.touched > STALE_SECONDS]:
                    await self.sessions.pop(sid).seat.close()

        reaping = asyncio.create_task(reap())
        yield
        reaping.cancel()
        for session in self.sessions.values():
            await session.seat.close()


async def _answer(session: Session, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    async with session.lock:
        try:
            return {"ok": True, "output": await session.seat.call(name, arguments)}
        except Refused as error:
            return {"ok": False, "error": str(error), "reason": error.reason}


async def _stream(
    request: web.Request, events: list[tuple[str, str]], run: asyncio.Task[dict[str, Any]] | None = None
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
            await send("error", f"{type(error).__name__}: {error}".replace("\n", " ")[:CHUNK])
        else:
            text = json.dumps(run.result())
            parts = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)]
            for n, part in enumerate(parts, start=1):
                await send("end" if n == len(parts) else "chunk", part)
    await response.write_eof()
    return response


@web.middleware
async def _as_json(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors as the standard has them: `{"detail": ...}`."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return web.json_response({"detail": error.text}, status=error.status)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return web.json_response({"detail": f"Invalid request: {error!r}"}, status=422)
    except EpisodeFailed as error:
        return web.json_response({"detail": str(error)}, status=500)


async def _healthy(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def _sid(request: web.Request) -> str:
    if not (sid := request.headers.get("X-Session-ID", "").strip()):
        raise web.HTTPBadRequest(text="X-Session-ID header is required")
    return sid


def _now() -> float:
    return asyncio.get_running_loop().time()


def _block(text: str) -> dict[str, Any]:
    return {"text": text, "type": "text"}


def _one_text(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def served_games(path: Path) -> dict[str, NamedGame]:
    """The games of a file of parameters, as they are served: how long an episode lasts is the client's to limit, except
    where it is a rule of the game.

    Raises:
        UserError: the file is no set of parameters, or a game cannot be served.
    """
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        parameters = {name: game_parameters(name, values) for name, values in given["games"].items()}
        games = load_games(parameters, int(given.get("seed", 0)))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}.") from None
    except (KeyError, TypeError, AttributeError, ValidationError, ValueError) as error:
        raise UserError(f"{path} has no valid section games: {' '.join(str(error).split())}.") from None
    for name, game in games.items():
        others = [player for player in game.parameters.seating if player != "policy"]
        if len(others) != len(game.parameters.seating) - 1:
            raise UserError(f"games.{name}.seating must name policy once; the other seats are played by the server.")
        if (others and not isinstance(game.taskset, HasPlayers)) or any(":" in player for player in others):
            raise UserError(f"games.{name}.seating names {', '.join(others)}, which the server cannot play.")
        first = next(iter(game.taskset.tasks("train", 1)))
        if isinstance(game.taskset.load(first), ToolGame):
            unlimited = game.parameters.model_copy(update={"max_turns": _UNLIMITED})
            games |= load_games({name: unlimited}, int(given.get("seed", 0)))
    return games


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--parameters", type=Path, default=Path("params.yaml"), help="with a section games")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    given = parser.parse_args()
    with told_in_a_sentence():
        asyncio.run(_serve(Server(served_games(given.parameters)).app(), given.host, given.port))


async def _serve(app: web.Application, host: str, port: int) -> None:
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


if __name__ == "__main__":
    main()
