"""Our server and our client against `ors-sdk` and `openreward`, which live in an environment of their own:

python3.11 -m venv sdks && sdks/bin/pip install ors-sdk==0.1.0 openreward==0.1.167
SDK_PYTHON=sdks/bin/python pytest -m sdk
"""

import asyncio
import json
import os
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from slim_rl.core.message import ToolCall, said
from slim_rl.runtime.process import end, wait_until
from tests.games.openreward.conftest import game_at

PYTHON = os.path.abspath(os.environ["SDK_PYTHON"]) if "SDK_PYTHON" in os.environ else None
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
pytestmark = [pytest.mark.sdk, pytest.mark.skipif(PYTHON is None, reason="SDK_PYTHON is not set; see the module")]


@pytest.mark.parametrize("sdk", ["ors", "openreward"])
def test_an_official_client_plays_our_server(served, sdk):
    command = [PYTHON, str(HERE / "sdk_client.py"), sdk, served.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["splits"], seen["count"], seen["tools"]) == (["train", "test"], 40, ["calculate"])
    assert "divides by zero" in seen["refused"] and seen["prompt"].startswith("What is ")
    assert (seen["reward before"], seen["reward"], seen["finished"]) == (None, 1.0, True)
    assert served.counts()["open"] == []


def test_our_client_plays_a_server_written_with_openreward(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", (tmp_path / "log").open("w")
    command = [PYTHON, str(HERE / "sdk_server.py"), str(port)]
    process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True)
    try:
        assert wait_until(lambda: answers(url), 60), (tmp_path / "log").read_text()[-2000:]
        game = game_at(url)
        assert len(list(game.taskset.tasks("train", 5))) == 5
        task = next(game.taskset.tasks("train", 5))
        number = task.state["task_spec"]["number"]
        episode = asyncio.run(played(game, task, number))
        assert episode == {
            "prompt": "Which number from 1 to 5?", "tools": ["guess"], "wrong": ("ok", "wrong"), "right": ("ok", "right"),
            "refused": "refused", "over": None, "rewards": {"solver": pytest.approx(-0.5 + 0.25 + 1)},
        }  # fmt: skip
    finally:
        end(process, 2)
        log.close()


async def played(game, task, number):
    one, seen = game.taskset.load(task), {}
    seen["prompt"] = (await one.observe("solver"))[0].text
    seen["tools"] = [tool.name for tool in one.tools("solver")]
    seen["wrong"] = await one.run(ToolCall("guess", {"number": number % 5 + 1}))
    seen["right"] = await one.run(ToolCall("guess", {"number": number}))
    seen["refused"] = (await one.run(ToolCall("guess", {"number": "seven"})))[0]
    await one.step(said(str(number)))
    seen["over"], seen["rewards"] = one.turn, dict(one.rewards())
    await one.close()
    return seen


def answers(url):
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
