"""Environments of the Open Reward Standard: tasks, sessions, rewards, failures and whose they are."""

import asyncio
import json
import random
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import ValidationError

from slim_rl.config import Config
from slim_rl.core.errors import GameFailed, UserError
from slim_rl.core.game import Task
from slim_rl.core.message import ToolCall
from slim_rl.games import load_games
from slim_rl.games.openreward.client import Address, Connection, ServiceFailed, Session
from slim_rl.games.openreward.parameters import Parameters, episode_reward
from slim_rl.rollout.collect import collect
from tests.babbler import Caller
from tests.games.openreward.conftest import GAMES, Solver, game_at, request, seating, serving

SPOKEN = (
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": "3 * (4 - 1)"}}\n</tool_call>',
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1 / 0"}}\n</tool_call>',
    '<tool_call>\n{"name": "calculate", "arguments": {"sum": 7}}\n</tool_call>',
    '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>',
    '<tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call><tool_call>{</tool_call>',
    "7",
)


# Tasks


def test_tasks_are_drawn_by_the_seed_and_have_what_a_session_needs(served):
    once, again = (list(game_at(served.url).taskset.tasks("train", 40)) for _ in range(2))
    assert once == again and len({task.game_id for task in once}) == 40
    for task in once:
        assert task.state["environment"] == "calculator" and task.state["split"] == "train"
        assert task.prompt == f"[{served.url}:train:{task.state['hash']}]"
    fewer = list(game_at(served.url, num_samples=7).taskset.tasks("train", 40))
    assert {task.game_id for task in fewer} < {task.game_id for task in once} and len(fewer) == 7
    other = load_games({f"openreward:{served.url}": Parameters(min_reward=0, num_samples=7)}, 1)
    others = next(iter(other.values())).taskset.tasks("train", 40)
    assert {task.game_id for task in fewer} != {task.game_id for task in others}


def test_a_split_for_both_is_divided(served):
    game = game_at(served.url, evaluation_splits=("train",), eval_count=10)
    train, evaluate = ({t.game_id for t in game.taskset.tasks(p, n)} for p, n in (("train", 40), ("evaluate", 10)))
    assert (len(train), len(evaluate)) == (30, 10) and not train & evaluate


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"splits": ("exam",)}, "has no split exam; it has train, test. Set splits"),
        ({"variant": "chess"}, "has no chess; set variant to one of calculator"),
        ({"key_variable": "NOT_THERE"}, "The environment variable NOT_THERE is not set"),
        ({"secrets": {"openai_api_key": None}}, "The environment variable OPENAI_API_KEY is not set"),
    ],
)
def test_what_the_user_has_to_set_is_said(served, parameters, told, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=told):
        list(game_at(served.url, **parameters).taskset.tasks("train", 5))


def test_a_server_that_is_not_there_is_said_in_a_sentence():
    with pytest.raises(UserError, match=r"openreward:http://127.0.0.1:9 cannot be fetched"):
        list(game_at("http://127.0.0.1:9").taskset.tasks("train", 5))
    with pytest.raises(UserError, match="openreward:ORG/NAME"):
        game_at("calculator")


def test_where_rewards_may_be_negative_something_must_be_set():
    for parameters in ({}, {"min_reward": -1}):
        with pytest.raises(ValidationError, match="set nonterminal_reward"):
            Parameters(**parameters)
    Parameters(min_reward=0), Parameters(nonterminal_reward=-1)


# Rewards


def cookbook(rewards, finished, p):
    """OpenReward's cookbook, training/slime, in its own words: append, reduce, clamp."""
    values = rewards + [p.nonterminal_reward] * (not finished and p.nonterminal_reward is not None)
    how = {"sum": sum, "mean": lambda v: sum(v) / len(v), "max": max, "min": min}[p.reward_reduction]
    reward = how(values) if values else 0.0
    reward = max(p.min_reward, reward) if p.min_reward is not None else reward
    return min(p.max_reward, reward) if p.max_reward is not None else reward


def test_rewards_are_reduced_as_in_the_cookbook_but_no_reward_is_none():
    drawn, unrewarded = random.Random(0), 0
    for _ in range(1000):
        low, high, end = (drawn.choice([None, round(drawn.uniform(-2, 2), 2)]) for _ in range(3))
        how = drawn.choice(["sum", "mean", "max", "min"])
        p = Parameters.model_construct(min_reward=low, max_reward=high, nonterminal_reward=end, reward_reduction=how)
        given, finished = [drawn.uniform(-1, 1) for _ in range(drawn.randint(0, 3))], drawn.random() < 0.5
        reward = episode_reward(given, finished, p)
        if given or (not finished and end is not None):
            assert reward == cookbook(given, finished, p)
        else:
            assert reward is None  # the decided difference: the cookbook says 0.0
            unrewarded += 1
    assert unrewarded > 50


# Episodes


def test_an_episode_over_the_server_is_the_one_in_process(served, calculator, words):
    """Turns, tokens and rewards, whatever the policy says."""
    remote = game_at(served.url, max_turns=6)
    tasks = {task.state["hash"]: task for task in remote.taskset.tasks("train", 40)}
    for number, task in enumerate(tasks.values()):
        spec = task.state["task_spec"]
        own = Task(spec["game_id"], spec["prompt"], spec["game_state"])
        episodes = []
        for game, played in ((calculator, own), (remote, task)):
            engine = Solver(words) if number % 4 == 0 else Caller(words, number, SPOKEN)
            episodes.append(asyncio.run(seating(game, words, engine).play(request(game, played, number))))
        ours, theirs = (asdict(replace(e, game="", game_id="", metrics={})) for e in episodes)
        assert json.dumps(ours) == json.dumps(theirs)
        assert ours["status"] in ("completed", "truncated")
        same = ("turns", "calls", "calls.refused", "calls.unknown_tool", "calls.invalid_json")
        assert [episodes[0].metrics[name] for name in same] == [episodes[1].metrics[name] for name in same]
    assert served.counts()["open"] == []


def test_an_episode_without_a_reward_has_none(served, words):
    game = game_at(served.url, nonterminal_reward=None, min_reward=0, max_turns=2)
    task = next(game.taskset.tasks("train", 1))
    episode = asyncio.run(seating(game, words, Solver(words, calls=9)).play(request(game, task)))
    assert (episode.status, episode.rewards, episode.metrics["unrewarded"]) == ("truncated", {}, 1)


@pytest.mark.slow
def test_the_matching_game_with_its_partner_is_served(tmp_path, words):
    games = {
        "matching": {"size": 2, "p_agent": 0.5, "seating": ["policy", "scripted"], "max_turns": 6, "train_count": 8},
        **GAMES,
    }
    with serving(tmp_path, "--port", "0", games=games, program="stages.serve") as server:
        with pytest.raises(UserError, match="several environments; set variant to one of calculator, matching"):
            next(game_at(server.url).taskset.tasks("train", 1))
        game = game_at(server.url, "matching")
        task = next(game.taskset.tasks("train", 1))

        async def asks():
            loaded = game.taskset.load(task)
            first = await loaded.observe("solver")
            status = await loaded.run(ToolCall("say", {"text": "[message] What is the score of Ava Li for BLEU?"}))
            await loaded.close()
            return first, loaded.tools("solver"), status

        first, tools, (status, reply) = asyncio.run(asks())
        assert first[0].role == "user" and [tool.name for tool in tools] == ["say"]
        assert status == "ok" and reply


def test_calls_share_a_connection_also_where_a_reply_closes_after_its_last_event():
    connections = set()

    async def call(request):
        connections.add(request.transport.get_extra_info("peername"))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"event: task_id\ndata: 1\n\nevent: end\ndata: 7\n\n")
        await asyncio.sleep(0.05)
        await response.write_eof()
        return response

    async def calls():
        app = web.Application()
        app.router.add_post("/call", call)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = Address(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with Connection(address) as connection:
            told = [(await connection.stream("/call", {}))[1] for _ in range(3)]
        await runner.cleanup()
        return told

    assert asyncio.run(calls()) == [7, 7, 7]
    assert len(connections) == 1


# Failures


def play_all(game, tasks, words, calls=1, folder="rollouts", **options):
    requests = [request(game, tasks[n % len(tasks)], n) for n in range(options.pop("episodes"))]
    return collect(requests, seating(game, words, Solver(words, calls)).play, Path(folder), 32, **options)


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
    assert sum(e.status == "completed" for e in episodes) >= 97
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


def test_a_prompt_that_is_no_list_of_blocks_fails_the_episode_and_not_the_run():
    class Odd:
        async def ask(self, method, path, session):
            if path.endswith("/messages"):
                raise ServiceFailed("no such path", 404)
            return "Hello"

    async def prompt():
        session = object.__new__(Session)
        session._connection, session._path, session.sid = Odd(), "/sums", "1"
        return await session.prompt()

    with pytest.raises(GameFailed, match="BadReply: prompt"):
        asyncio.run(prompt())


# Keys


def test_the_secrets_of_an_environment_come_before_those_of_all():
    games = {"openreward:me/a": {"min_reward": 0, "secrets": {"judge": "MINE"}}, "openreward:me/b": {"min_reward": 0}}
    config = Config.model_validate({"secrets": {"judge": None, "search": "S"}, "games": {**games, "calculator": {}}})
    secrets = {name: getattr(game, "secrets", None) for name, game in config.games.items()}
    assert secrets["openreward:me/a"] == {"judge": "MINE", "search": "S"}
    assert secrets["openreward:me/b"] == {"judge": None, "search": "S"} and secrets["calculator"] is None


def test_a_key_goes_to_its_own_server_alone_and_into_no_file(served, tmp_path, words, monkeypatch, capfd):
    monkeypatch.setenv("OPENREWARD_API_KEY", "hosted-key-9f")
    monkeypatch.setenv("MY_KEY", "own-key-9f")
    monkeypatch.setenv("JUDGE", "judge-key-9f")
    served.fails(0.5)
    for folder, parameters in (("without", {}), ("with", {"key_variable": "MY_KEY", "secrets": {"judge": None}})):
        game = game_at(served.url, **parameters)
        play_all(game, list(game.taskset.tasks("train", 4)), words, folder=folder, episodes=4, title="episodes")
    headers = [{name.lower(): value for name, value in one.items()} for one in served.counts()["headers"]]
    assert {one.get("x-api-key") for one in headers} == {None, "own-key-9f"}
    assert all("x-secrets" in one for one in headers if "x-api-key" in one)
    assert not any("hosted-key" in json.dumps(one) for one in headers)
    told = capfd.readouterr()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(b"-key-9f" in path.read_bytes() for path in files)
    assert "-key-9f" not in told.out + told.err
