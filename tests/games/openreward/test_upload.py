"""Trajectories arrive once and in order, whatever the server and the machine do."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

import flows.upload
from flows.upload import key_for, upload
from slim_rl.core.episode import Episode, Turn
from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.core.message import Message, ToolCall, heard, said
from slim_rl.core.parameters import GameParameters
from slim_rl.rollout.shards import write_shard
from slim_rl.rollout.tasks import tasks_path, write_tasks
from slim_rl.runtime.files import write_text
from tests.games.openreward.conftest import ROOT


class Stub(BaseHTTPRequestHandler):
    """OpenReward's side: keeps the first event of each id. `before` sees the number of a post, and may return a status."""

    def do_POST(self):
        stub = self.server
        stub.posts += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        stub.keys.add(self.headers.get("x-api-key"))
        status = stub.status(stub.posts)
        if status == 200:
            for event in body["events"]:
                stub.events.setdefault(event["eventId"], event)
        stub.arrived(stub.posts)
        try:
            self.send_response(status)
            self.end_headers()
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def stub():
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as stub:
        stub.events, stub.posts, stub.keys = {}, 0, set()
        stub.status, stub.arrived = lambda post: 200, lambda post: None
        stub.names = lambda: [e["rolloutName"].split("/")[-1] for e in stub.events.values() if "rolloutName" in e]
        stub.url = f"http://127.0.0.1:{stub.server_port}"
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        yield stub
        stub.shutdown()


@pytest.fixture
def shards(tmp_path):
    calls = ToolCall("calculate", {"expression": "1 + 1"}, raw="{"), ToolCall("", status="invalid_json", raw="{")
    turns = [
        Turn("solver", heard("What is it?"), Message("assistant", "I call.", calls)),
        Turn("solver", (Message("tool", "my-key-9f"), Message("tool", "Error")), said("853")),
    ]
    seating, rewards = {"author": "scripted", "solver": "policy"}, {"author": 0.5, "solver": -1.0}
    for number in range(3):
        failed = Episode(f"e{number}-failed", "g", "openreward:me/sums", status="failed", error="gone")
        played = [
            Episode(f"e{number}-{n}", "g", "openreward:me/sums", seating, turns=turns, rewards=rewards)
            for n in range(4)
        ]
        write_shard(tmp_path / f"rollouts/step-{number}/00000.parquet", [*played, failed])
    return tmp_path / "rollouts"


EVERY = [f"e{number}-{n}" for number in range(3) for n in range(4)]


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_trajectory_says_what_was_said_called_and_earned(stub, shards, tmp_path, purpose, format):
    game: Any = SimpleNamespace(name="openreward:me/sums", parameters=GameParameters(format=format))
    task = Task("g", state={"split": "test", "task_spec": {"a": 1}})
    write_tasks(tasks_path(tmp_path / "data/games", game, purpose), [task])  # as the stage `games` does
    assert upload("run", shards, stub.url, "my-key-9f") == 12
    head, *messages = list(stub.events.values())[:8]
    assert (head["environment"], head["split"], head["task_spec"]) == ("me/sums", "test", {"a": 1})
    assert [(m["index"], m["type"], m.get("callId"), m["reward"], m["isFinished"]) for m in messages] == [
        (0, "user_message", None, None, False),
        (1, "assistant_message", None, None, False),
        (2, "tool_call", "0-0", None, False),
        (3, "tool_call", "0-1", None, False),
        (4, "tool_result", "0-0", None, False),
        (5, "tool_result", "0-1", None, False),
        (6, "assistant_message", None, -1.0, True),  # the policy's reward, wherever it sits
    ]
    assert (messages[2]["content"], messages[4]["content"]) == ('{"expression": "1 + 1"}', "[key]")
    assert "my-key-9f" not in json.dumps(list(stub.events.values())) and stub.keys == {"my-key-9f"}
    files = [path for path in (tmp_path / ".work").rglob("*") if path.is_file()]
    assert files and not any(b"my-key" in path.read_bytes() for path in files)


def test_a_server_that_fails_half_way_gets_each_trajectory_once_and_in_order(stub, shards, monkeypatch):
    monkeypatch.setattr(flows.upload, "FIRST_WAIT_SECONDS", 0.001)
    stub.status = lambda post: 503 if 5 <= post <= 10 or post % 4 == 0 else 200
    with pytest.raises(UserError, match="503"):
        upload("run", shards, stub.url)
    assert 0 < len(stub.names()) < 12
    upload("run", shards, stub.url)
    posts = stub.posts
    assert upload("run", shards, stub.url) == 0 and stub.posts == posts
    assert stub.names() == EVERY and len(stub.events) == 12 * 8


def test_of_an_episode_whose_group_was_judged_the_judged_one_is_uploaded(stub, tmp_path):
    played = Episode("e", "g", "game", {"solver": "policy"}, turns=[Turn("solver", heard("?"), said("853"))])
    for number, rewards in enumerate(({"solver": 0.0}, {"solver": 1.0})):
        write_shard(tmp_path / f"rollouts/{number:05d}.parquet", [replace(played, rewards=rewards)])
    assert upload("run", tmp_path / "rollouts", stub.url) == 1
    assert [event["reward"] for event in stub.events.values() if event.get("isFinished")] == [1.0]


def test_another_training_and_another_game_are_uploaded_too(stub, tmp_path):
    """Each training has the same ids, and so may the held-out tasks of two games."""
    for hour, (count, names) in enumerate([(2, 2), (2, 4)]):
        for game in ("chess", "kuhn"):
            write_shard(tmp_path / f"rollouts/{game}/00000.parquet", [Episode("train/0/0/0", "g", game)])
        write_text(tmp_path / "rollouts/began.txt", f"2026-11-28T0{hour}:00:00+00:00\n")
        assert upload("run", tmp_path / "rollouts", stub.url) == count
        assert upload("run", tmp_path / "rollouts", stub.url) == 0
        assert len({event["rolloutName"] for event in stub.events.values()}) == len(stub.events) == names


def test_an_upload_that_is_killed_half_way_goes_on(stub, shards):
    command = [sys.executable, "-m", "flows.upload", "--run", "r", "--url", stub.url, "--episodes", str(shards)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    stub.arrived = lambda post: post == 6 and process.send_signal(signal.SIGKILL)  # before the answer
    assert process.wait(60) == -signal.SIGKILL
    assert stub.names() == EVERY[:6]
    assert upload("r", shards, stub.url) == 7, "the sixth is sent again, with the same ids"
    assert stub.names() == EVERY and len(stub.events) == 12 * 8


def test_openrewards_key_goes_to_openreward_alone(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "k")
    assert key_for("https://api.openreward.ai", None) == "k"
    assert key_for("http://127.0.0.1:1", None) is None
    with pytest.raises(UserError, match="MINE"):
        key_for("http://127.0.0.1:1", "MINE")
