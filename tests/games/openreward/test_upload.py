"""Trajectories arrive once and in order, whatever the server and the machine do."""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flows.upload import key_for, upload
from slim_rl.core.episode import Episode, Turn
from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, ToolCall, heard, said
from slim_rl.rollout.shards import write_shard
from tests.games.openreward.conftest import ROOT


class Stub:
    """OpenReward's side: keeps the first of each event id, and fails from time to time."""

    def __init__(self):
        self.events, self.posts, self.keys, self.refuse, self.kill = {}, 0, set(), lambda post: False, None
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                stub.posts += 1
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                stub.keys.add(self.headers.get("x-api-key"))
                status = 503 if stub.refuse(stub.posts) else 200
                if status == 200:
                    for event in body["events"]:
                        stub.events.setdefault(event["eventId"], event)
                if stub.kill and stub.posts == stub.kill[0]:
                    os.kill(stub.kill[1](), signal.SIGKILL)
                try:
                    self.send_response(status)
                    self.end_headers()
                except OSError:
                    pass

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def names(self):
        return [event["rolloutName"] for event in self.events.values() if event["eventType"] == "rollout"]


@pytest.fixture
def stub():
    stub = Stub()
    yield stub
    stub.server.shutdown()
    stub.server.server_close()


def episode(name, text="853"):
    call = ToolCall("calculate", {"expression": "1 + 1"}, raw='{"name": "calculate"}')
    turns = [
        Turn("solver", heard("What is it?"), Message("assistant", "I call.", (call, ToolCall("", status="invalid_json", raw="{")))),
        Turn("solver", (Message("tool", text), Message("tool", "Error")), said("853")),
    ]  # fmt: skip
    return Episode(name, "g", "openreward:me/sums", {"solver": "policy"}, turns=turns, rewards={"solver": 1.0})


@pytest.fixture
def shards(tmp_path):
    for number in range(3):
        failed = Episode(f"e{number}-failed", "g", "openreward:me/sums", status="failed", error="gone")
        played = [episode(f"e{number}-{n}", "my-key-9f") for n in range(4)]
        write_shard(tmp_path / f"rollouts/step-{number}/00000.parquet", [*played, failed])
    return tmp_path / "rollouts"


EVERY = [f"e{number}-{n}" for number in range(3) for n in range(4)]


def test_a_trajectory_says_what_was_said_called_and_earned(stub, shards, tmp_path):
    (tmp_path / "data/games/openreward-me-sums").mkdir(parents=True)
    line = {"game_id": "g", "game_state": {"split": "test", "task_spec": {"a": 1}}}
    (tmp_path / "data/games/openreward-me-sums/train.jsonl").write_text(json.dumps(line) + "\n")
    assert upload("run", shards, stub.url, "my-key-9f") == 12
    head, *messages = [e for e in stub.events.values() if "e0-0" in (e.get("rolloutName"), "e0-0")][:7]
    assert (head["environment"], head["split"], head["task_spec"]) == ("me/sums", "test", {"a": 1})
    kinds = [(m["index"], m["type"], m.get("callId"), m["reward"], m["isFinished"]) for m in messages]
    assert kinds == [
        (0, "user_message", None, None, False),
        (1, "assistant_message", None, None, False),
        (2, "tool_call", "0-0", None, False),
        (3, "tool_call", "0-1", None, False),
        (4, "tool_result", "0-0", None, False),
        (5, "tool_result", "0-1", None, False),
    ]
    assert json.loads(messages[2]["content"]) == {"expression": "1 + 1"}
    last = max((e for e in stub.events.values() if e["eventType"] == "message"), key=lambda e: e["index"])
    assert (last["content"], last["reward"], last["isFinished"]) == ("853", 1.0, True)
    assert "my-key-9f" not in json.dumps(list(stub.events.values())) and stub.keys == {"my-key-9f"}
    files = [path for path in (tmp_path / ".work").rglob("*") if path.is_file()]
    assert files and not any(b"my-key" in path.read_bytes() for path in files)


def test_the_reward_is_the_policys_wherever_it_sits(stub, tmp_path):
    turns = [Turn("solver", heard("What is it?"), said("853"))]
    seating, rewards = {"author": "scripted", "solver": "policy"}, {"author": 1.0, "solver": -1.0}
    played = Episode("e", "g", "prediction", seating, turns=turns, rewards=rewards)
    write_shard(tmp_path / "rollouts/00000.parquet", [played])
    upload("run", tmp_path / "rollouts", stub.url, "my-key-9f")
    assert [e["reward"] for e in stub.events.values() if e.get("isFinished")] == [-1.0]


def test_a_server_that_fails_half_way_gets_each_trajectory_once_and_in_order(stub, shards, monkeypatch):
    monkeypatch.setattr("flows.upload.FIRST_WAIT_SECONDS", 0.001)
    stub.refuse = lambda post: 5 <= post <= 10 or post % 4 == 0
    with pytest.raises(UserError, match=r"does not take the trajectories: it answered 503. The same command continues"):
        upload("run", shards, stub.url)
    assert 0 < len(stub.names()) < 12
    upload("run", shards, stub.url)
    assert stub.names() == EVERY
    posts = stub.posts
    assert upload("run", shards, stub.url) == 0 and stub.posts == posts
    assert len(stub.events) == 12 * 8


def test_an_upload_that_is_killed_half_way_goes_on(stub, shards):
    command = [sys.executable, "-m", "flows.upload", "--run", "r", "--url", stub.url]
    process = subprocess.Popen(
        [*command, "--episodes", str(shards)], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    stub.kill = 6, lambda: process.pid  # after it has arrived, before the answer
    assert process.wait(60) == -signal.SIGKILL
    assert stub.names() == EVERY[:6]
    assert upload("r", shards, stub.url) == 7, "the sixth is sent again, with the same ids"
    assert stub.names() == EVERY and len(stub.events) == 12 * 8


def test_openrewards_key_goes_to_openreward_alone(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "k")
    assert key_for("https://api.openreward.ai", None) == "k"
    assert key_for("http://127.0.0.1:1", None) is None
    with pytest.raises(UserError, match="MINE is not set"):
        key_for("http://127.0.0.1:1", "MINE")
