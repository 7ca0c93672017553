"""Environments of the Open Reward Standard: tasks, sessions, rewards, failures and whose they are."""

import asyncio
import json
import logging
import re
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from operator import methodcaller
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from slim_rl.config import Config
from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.game import Task
from slim_rl.core.message import ToolCall
from slim_rl.games import game_parameters, load_games
from slim_rl.games.openreward.client import Address, Session
from slim_rl.games.openreward.parameters import Parameters, episode_reward
from slim_rl.rollout import serve
from slim_rl.rollout.collect import collect
from slim_rl.rollout.serve import Server, served_games
from slim_rl.rollout.store import Store
from tests.babbler import Caller
from tests.echo import EchoGame
from tests.games.openreward.conftest import GAMES, Solver, game_at, request, seating, serving

SESSION = {"headers": {"X-Session-ID": "s"}}
SPOKEN = (
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": "3 * (4 - 1)"}}\n</tool_call>',
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1 / 0"}}\n</tool_call>',
    '<tool_call>\n{"name": "calculate", "arguments": {"sum": 7}}\n</tool_call>',
    '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>',
    '<tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call><tool_call>{</tool_call>',
    "7",
)


def test_tasks_are_drawn_by_the_seed_and_listed_also_inside_an_event_loop(served):
    async def inside_a_loop():
        return list(game_at(served.url).taskset.tasks("train", 40))

    tasks = list(game_at(served.url).taskset.tasks("train", 40))
    assert tasks == asyncio.run(inside_a_loop()) and len({task.game_id for task in tasks}) == 40
    for task in tasks:
        assert task.state["environment"] == "calculator" and task.state["split"] == "train"
        assert task.prompt == f"[{served.url}:train:{task.state['hash']}]"
    few, others = (
        {task.game_id for task in load_games(parameters, seed)[name].taskset.tasks("train", 40)}
        for name in [f"openreward:{served.url}"]
        for parameters in [{name: Parameters(min_reward=0, num_samples=7)}]
        for seed in (0, 1)
    )
    assert few < {task.game_id for task in tasks} and len(few) == 7 and few != others


def test_a_split_for_both_is_divided(served):
    game = game_at(served.url, evaluation_splits=("train",), eval_count=10)
    train, evaluate = ({t.game_id for t in game.taskset.tasks(p, n)} for p, n in (("train", 40), ("evaluate", 10)))
    assert (len(train), len(evaluate)) == (30, 10) and not train & evaluate


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"splits": ("exam",)}, "exam.* train, test.* splits"),
        ({"variant": "chess"}, "chess.* variant .*calculator"),
        ({"key_variable": "NOT_THERE"}, "NOT_THERE"),
        ({"secrets": {"openai_api_key": None}}, "OPENAI_API_KEY"),
        ({"url": "http://127.0.0.1:9"}, "openreward:http://127.0.0.1:9 "),
        ({"url": "calculator"}, "openreward:ORG/NAME"),
    ],
)
def test_a_mistake_of_the_user_is_said_with_the_parameter(served, parameters, names, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=names):
        list(game_at(**{"url": served.url, **parameters}).taskset.tasks("train", 5))


def test_where_rewards_may_be_negative_something_must_be_set():
    for parameters in ({}, {"min_reward": -1}):
        with pytest.raises(ValidationError, match="nonterminal_reward"):
            Parameters(**parameters)


@pytest.mark.parametrize(
    ("rewards", "finished", "parameters", "expected"),
    [
        ([0.5, -1.0, 0.25], True, {}, -0.25),
        ([0.5, -1.0, 0.25], True, {"reward_reduction": "max"}, 0.5),
        ([0.5, -1.0, 0.25], False, {"reward_reduction": "min", "nonterminal_reward": -2.0}, -2.0),
        ([0.5, 0.25], False, {"reward_reduction": "mean", "nonterminal_reward": 0.0}, 0.25),
        ([0.5], True, {"nonterminal_reward": -2.0}, 0.5),
        ([3.0], True, {"max_reward": 1.0}, 1.0),
        ([-3.0], True, {"min_reward": 0.0}, 0.0),
        ([], False, {"nonterminal_reward": -0.5}, -0.5),
        ([], False, {"min_reward": 0.0}, None),  # here the cookbook says 0.0
        ([], True, {"nonterminal_reward": 1.0}, None),
    ],
)
def test_rewards_are_reduced_as_in_openrewards_cookbook_but_no_reward_is_none(rewards, finished, parameters, expected):
    assert episode_reward(rewards, finished, Parameters.model_construct(**parameters)) == expected


def test_an_episode_over_the_server_is_the_one_in_process(served, calculator, words):
    """Turns, tokens and rewards, whatever the policy says."""
    remote = game_at(served.url, max_turns=6)
    for number, task in enumerate(remote.taskset.tasks("train", 40)):
        spec, episodes = task.state["task_spec"], []
        own = Task(spec["game_id"], spec["prompt"], spec["game_state"])
        for game, played in ((calculator, own), (remote, task)):
            engine = Solver(words) if number % 4 == 0 else Caller(words, number, SPOKEN)
            episodes.append(asyncio.run(seating(game, words, engine).play(request(game, played, number))))
        here, there = (asdict(replace(e, game="", game_id="", metrics={})) for e in episodes)
        assert json.dumps(here) == json.dumps(there)
        assert here["status"] in ("completed", "truncated")
        same = ("turn_count", "calls", "calls.refused", "calls.unknown_tool", "calls.invalid_json")
        assert [episodes[0].metrics[name] for name in same] == [episodes[1].metrics[name] for name in same]
    assert served.counts()["open"] == []


def test_an_episode_without_a_reward_has_none(served, words):
    game = game_at(served.url, nonterminal_reward=None, min_reward=0, max_turns=2)
    task = next(game.taskset.tasks("train", 1))
    episode = asyncio.run(seating(game, words, Solver(words, calls=9)).play(request(game, task)))
    assert (episode.status, episode.rewards, episode.metrics["unrewarded"]) == ("truncated", {}, 1)


@pytest.mark.slow
def test_the_matching_game_with_its_partner_is_served(tmp_path):
    parameters = {"size": 2, "p_agent": 0.5, "seating": ["policy", "scripted"], "max_turns": 6, "train_count": 8}
    with serving(tmp_path, "--port", "0", games={"matching": parameters, **GAMES}, program="stages.serve") as server:
        with pytest.raises(UserError, match=r"variant .*calculator, matching"):
            next(game_at(server.url).taskset.tasks("train", 1))
        game = game_at(server.url, "matching")

        async def asks():
            loaded = game.taskset.load(next(game.taskset.tasks("train", 1)))
            first = await loaded.observe("solver")
            said = ("[message] What is the score of Ava Li for BLEU?", *["[message] Hello."] * 5)
            replies = [await loaded.run(ToolCall("say", {"text": text})) for text in said]
            await loaded.close()
            return first, loaded.tools("solver"), replies, loaded.turn

        first, tools, replies, turn = asyncio.run(asks())
        assert first[0].role == "user" and [tool.name for tool in tools] == ["say"]
        assert all(status == "ok" and text for status, text in replies[:2])
        assert replies[-1][0] == "refused" and turn is None, "six turns of both seats end the game"


@pytest.mark.parametrize(
    ("name", "parameters", "refused"),
    [
        (
            "tests.echo",
            {"reward_function": {"function": "exact_match", "scope": "group"}},
            r"games\.tests\.echo\.reward_function\.scope must be episode",
        ),
        ("agent", {"tasks": "tasks.jsonl", "command": ("true",)}, r"games\.agent cannot be served"),
    ],
)
def test_a_game_that_cannot_be_served_is_refused_in_a_sentence(name, parameters, refused):
    Path("tasks.jsonl").write_text('{"question": "2 + 2?"}\n')
    with pytest.raises(UserError, match=refused):
        served_games({name: game_parameters(name, parameters)}, 0)


def test_a_bug_of_ours_is_logged_and_called_no_invalid_request(calculator, caplog, monkeypatch):
    # Libraries that other tests have loaded into this process disable loggers, or raise their levels.
    logging.disable(logging.NOTSET)
    for name in ("aiohttp", "aiohttp.server"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        caplog.set_level(logging.ERROR, logger=name)

    class Broken:
        seats = calculator.taskset.seats

        def tasks(self, purpose, count):
            raise AttributeError("a bug")

    async def statuses(*bodies):
        async with TestClient(TestServer(Server({"g": calculator._replace(taskset=Broken())}).app())) as client:
            return [(await client.post("/g/tasks", data=body)).status for body in bodies]

    damaged = [b"{", b"[]", b'{"split": 3}', b'{"split": "exam"}', b"[" * 100_000]
    assert asyncio.run(statuses(*damaged)) == [422, 422, 422, 400, 422] and not caplog.records
    assert asyncio.run(statuses(b'{"split": "train"}')) == [500]
    assert "AttributeError: a bug" in caplog.text


async def asked(client, path, body=None):
    """The text that a session of the game `tests.echo` is answered."""
    ask = client.get if body is None else client.post
    async with asyncio.timeout(60), await ask(path, **SESSION, **({} if body is None else {"json": body})) as answer:
        return await answer.text()


@asynccontextmanager
async def a_session(**parameters):
    """A client of a server of ours, and the server; the client has a session at the game `tests.echo`."""
    server = Server(load_games({"tests.echo": game_parameters("tests.echo", parameters)}, 0))
    async with TestClient(TestServer(server.app())) as client:
        await asked(client, "/create", {"env_name": "tests.echo", "split": "train", "index": 0})
        yield client, server


def test_each_request_to_a_session_that_failed_before_its_prompt_is_told_why(monkeypatch):
    async def break_down(game, seat):
        raise GameFailed("BadGateway: the tool server is gone")

    async def requests():
        async with a_session() as (client, _):
            prompts = [await asked(client, "/tests.echo/prompt") for _ in range(2)]
            return *prompts, await asked(client, "/tests.echo/call", {"name": "look", "input": {}})

    monkeypatch.setattr(EchoGame, "observe", break_down)
    assert all("BadGateway: the tool server is gone" in answer for answer in asyncio.run(requests()))


def test_all_that_wait_for_a_session_learn_that_it_was_deleted(monkeypatch):
    async def wait(game, seat):
        await asyncio.Event().wait()

    async def requests():
        async with a_session() as (client, server):
            session = server.sessions["s"]
            waiting = [asyncio.create_task(session.prompt()) for _ in range(2)]
            await asyncio.sleep(0)  # both have begun
            await asked(client, "/delete", {})
            async with asyncio.timeout(60):
                return await asyncio.gather(*waiting, return_exceptions=True)

    monkeypatch.setattr(EchoGame, "observe", wait)
    assert [str(error) for error in asyncio.run(requests())] == ["SessionGone: the session was deleted"] * 2


def test_the_result_of_a_call_that_took_long_can_be_fetched(monkeypatch):
    monkeypatch.setattr(serve, "RESULT_SECONDS", 0)
    let_go = asyncio.Event()

    async def wait(game, call):
        await let_go.wait()
        return "The word is river."

    async def fetched():
        async with a_session() as (client, _), asyncio.timeout(60):
            path, body = "/tests.echo/call", {"name": "look", "input": {}}
            async with client.post(path, json=body, **SESSION) as begun:
                await begun.content.readline()
                run = (await begun.content.readline()).decode().removeprefix("data: ").strip()
            await asked(client, "/ping", {})
            async with client.post(path, json={"task_id": run}, **SESSION) as again:
                await again.content.readline()
                let_go.set()
                return await again.text()

    monkeypatch.setattr(EchoGame, "call", wait)
    assert "The word is river." in asyncio.run(fetched())


def test_stale_sessions_are_closed_also_when_a_client_deletes_one_of_them_meanwhile(monkeypatch):
    monkeypatch.setattr(serve, "STALE_SECONDS", -1)
    monkeypatch.setattr(serve, "REAP_SECONDS", 0)
    closing, let_go = asyncio.Event(), asyncio.Event()

    class Stale:
        touched = 0

        async def end(self):
            closing.set()
            await let_go.wait()

    async def left():
        server = Server({})
        async with TestClient(TestServer(server.app())) as client, asyncio.timeout(60):
            server.sessions |= {"r": Stale(), "s": Stale()}
            await closing.wait()
            deleting = asyncio.create_task(asked(client, "/delete", {}))
            while "s" in server.sessions:
                await asyncio.sleep(0)
            let_go.set()
            await deleting
            server.sessions["later"] = Stale()
            while server.sessions:
                await asyncio.sleep(0)

    asyncio.run(left())


# Failures


BEGUN = "event: task_id\ndata: 1\n\nevent: end\ndata:\n\n"


@asynccontextmanager
async def answering(**replies):
    """The address of a server that answers its paths so."""

    async def answer(request):
        path = request.path.rpartition("/")[2]
        reply = replies.get(path)
        if path == "create_session":
            return web.Response(text=BEGUN)
        return await reply(request) if callable(reply) else web.json_response(reply)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def talk(talking, **replies):
    """What `talking` says of a session on such a server."""

    async def run():
        async with answering(**replies) as url, Session(Address(url)) as session:
            await session.start("sums", {})
            return await talking(session)

    return asyncio.run(run())


def test_a_server_that_only_counts_its_tasks_is_asked_for_those_that_are_drawn():
    asked = []

    async def refuse(request):
        raise web.HTTPBadRequest

    async def task(request):
        asked.append((await request.json())["index"])
        return web.json_response({"task": {"number": asked[-1]}})

    async def tasks():
        known = {"list_environments": ["sums"], "splits": [{"name": "train"}], "num_tasks": {"num_tasks": 40}}
        async with answering(**known, tasks=refuse, task=task) as url:
            return await asyncio.to_thread(lambda: list(game_at(url).taskset.tasks("train", 3)))

    assert sorted(task.state["task_spec"]["number"] for task in asyncio.run(tasks())) == sorted(asked)
    assert len(set(asked)) == 3


def test_calls_share_a_connection_also_where_a_reply_closes_after_its_last_event():
    connections = set()
    result = json.dumps({"ok": True, "output": {"blocks": texts("7"), "finished": False}})

    async def call(request):
        connections.add(request.transport.get_extra_info("peername"))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"event: task_id\ndata: 1\n\nevent: end\ndata: {result}\n\n".encode())
        await asyncio.sleep(0.05)
        await response.write_eof()
        return response

    async def calls(session):
        return [(await session.call("add", {})).text for _ in range(3)]

    assert talk(calls, call=call) == ["7", "7", "7"]
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("method", "replies"),
    [
        ("prompt", {"messages": {"a": 1}}),
        ("prompt", {"messages": [{"role": "user", "blocks": [3]}]}),
        ("prompt", {"messages": [{"role": "user", "blocks": "Hi"}]}),
        ("prompt", {"messages": [{"role": "user"}]}),
        ("prompt", {"messages": None}),
        ("tools", {"task_tools": [1]}),
        ("tools", {"task_tools": {"tools": [{"name": "a"}]}}),
        ("tools", {"task_tools": {"tools": [{"name": {}, "description": "A"}]}}),
        ("tools", {"task_tools": {"tools": [{"name": "a", "description": "A", "input_schema": [1]}]}}),
        ("tools", {"task_tools": None}),
    ],
)
def test_a_damaged_reply_fails_the_episode_and_not_the_run(method, replies):
    with pytest.raises(GameFailed, match="BadReply"):
        talk(methodcaller(method), **replies)


def texts(*texts):
    return [{"type": "text", "text": text, "detail": None} for text in texts]


def opening_with(messages):
    return talk(Session.prompt, messages=messages)


def test_an_opening_with_turns_of_an_assistant_is_read_as_it_is():
    said = [("system", ["Be", " kind."]), ("user", ["Hi"]), ("assistant", ["Hello."]), ("user", ["2 + 2?"])]
    read = opening_with([{"role": role, "blocks": texts(*blocks)} for role, blocks in said])
    assert [(message.role, message.text) for message in read] == [(role, "".join(blocks)) for role, blocks in said]
    assert (
        opening_with([{"role": "developer", "blocks": texts("A")}, {"role": "user", "blocks": []}])[0].role == "system"
    )
    images = [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]
    assert opening_with([{"role": "user", "blocks": texts("What is it? ") + images}])[0].text == "What is it? [image]"


USER = {"role": "user", "blocks": texts("Hi")}
CALL = {"type": "tool_use", "id": "1", "name": "calculate", "input": {}}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "blocks": [CALL]}, USER],
        [USER, {"role": "assistant", "blocks": texts("I look.")}],
        [USER, {"role": "tool", "blocks": texts("4")}, USER],
        [{"role": "user", "blocks": [{"type": "tool_result", "tool_use_id": "1", "content": "4"}]}],
        [{"role": "user", "blocks": [{"type": "audio", "data": ""}]}],
        [{"role": "user", "blocks": [{"type": "document", "text": "A book."}]}],
        [{"role": "user", "blocks": [{"type": "thinking", "thinking": "Hm"}]}],
        [{"role": "system", "blocks": texts("Be kind.")}],
        [{"role": "critic", "blocks": texts("Bad.")}, USER],
        [],
    ],
)
def test_an_opening_that_cannot_be_played_as_it_is_is_refused(messages):
    with pytest.raises(UserError, match=r"cannot be played here|end with no user's turn"):
        opening_with(messages)


def play_all(game, tasks, words, folder="rollouts", **options):
    requests = [request(game, tasks[n % len(tasks)], n) for n in range(options.pop("episodes"))]
    play = seating(game, words, Solver(words)).play
    return asyncio.run(collect(requests, play, Store(Path(folder)), 32, **options))


@pytest.mark.slow
def test_100_episodes_on_a_server_that_fails_on_purpose(served, words):
    game = game_at(served.url)
    tasks = list(game.taskset.tasks("train", 40))
    served.fails(0.3)
    episodes = play_all(game, tasks, words, episodes=100, tries=3)
    counts = served.counts()
    assert len(counts["faults"]) == 9, "every kind of failure happened"
    # On a slow machine a call may time out again and again until an episode fails. No episode gets a wrong reward.
    assert {(e.status, *e.rewards.values()) for e in episodes} <= {("completed", 1.0), ("failed",)}
    assert set(counts["rewards"].values()) == {1.0}, "the server gave nothing else"
    for ran in counts["ran"].values():
        assert len(ran) == len({json.dumps(one) for one in ran}), "a tool ran twice"
    assert counts["open"] == []


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("502 before", "ServiceFailed: .* 502"),
        ("502 after", "ServiceFailed: .* 502"),
        ("cut before", "Client|ServerDisconnected"),
        ("error", "ToolFailed: ValueError: the tool broke"),
        ("410", "SessionGone: .* 410"),
        ("hang", "Timeout"),
        ("reaped", "SessionGone: .* 404"),
        ("cut after", None),
    ],
)
def test_a_failure_is_the_environments_and_never_a_reward(served, words, kind, error):
    game = game_at(served.url)
    task = next(game.taskset.tasks("train", 1))
    served.fails(1, kind)
    episode = asyncio.run(seating(game, words, Solver(words)).play(request(game, task)))
    counts = served.counts()
    assert counts["open"] == []
    if error is None:  # the run had a name, so it is picked up again
        assert (episode.status, episode.rewards) == ("completed", {"solver": 1.0})
        assert [len(ran) for ran in counts["ran"].values()] == [2]
    else:
        assert (episode.status, episode.rewards, episode.traces) == ("failed", {}, {})
        assert re.search(error, episode.error), episode.error
        assert sum(map(len, counts["ran"].values())) <= 1


# Keys


def test_the_secrets_of_an_environment_come_before_those_of_all():
    games = {"openreward:me/a": {"min_reward": 0, "secrets": {"judge": "MINE"}}, "openreward:me/b": {"min_reward": 0}}
    config = Config.model_validate({"secrets": {"judge": None, "search": "S"}, "games": {**games, "calculator": {}}})
    secrets = {name: getattr(game, "secrets", None) for name, game in config.games.items()}
    assert secrets["openreward:me/a"] == {"judge": "MINE", "search": "S"}
    assert secrets["openreward:me/b"] == {"judge": None, "search": "S"} and secrets["calculator"] is None


def test_a_key_goes_to_its_own_server_alone_and_into_no_file(served, tmp_path, words, monkeypatch, capfd):
    for variable, key in (("OPENREWARD_API_KEY", "hosted"), ("MY_KEY", "own"), ("JUDGE", "judge")):
        monkeypatch.setenv(variable, f"{key}-key-9f")
    served.fails(0.5)
    for folder, parameters in (("without", {}), ("with", {"key_variable": "MY_KEY", "secrets": {"judge": None}})):
        game = game_at(served.url, **parameters)
        play_all(game, list(game.taskset.tasks("train", 4)), words, folder, episodes=4, title="episodes")
    headers = [{name.lower(): value for name, value in one.items()} for one in served.counts()["headers"]]
    assert {one.get("x-api-key") for one in headers} == {None, "own-key-9f"}
    assert all("x-secrets" in one for one in headers if "x-api-key" in one)
    assert not any("hosted-key" in json.dumps(one) for one in headers)
    output = capfd.readouterr()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(b"-key-9f" in path.read_bytes() for path in files)
    assert "-key-9f" not in output.out + output.err
