"""A server of our games as a process of its own, and a policy that plays them."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml

from slim_rl.engines.engine import Generation
from slim_rl.games import game_parameters, load_games
from slim_rl.games.openreward import client
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.runtime.process import end
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer

ROOT = Path(__file__).parents[3]
GAMES = {"calculator": {"train_count": 40, "eval_count": 10}}


@contextlib.contextmanager
def serving(folder, *options, games=GAMES, program="fixtures.environment_server"):
    """The address of a server; `.counts()` tells what it has done."""
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump({"games": games}))
    command = [sys.executable, "-m", program, "--parameters", str(path), *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        url = process.stdout.readline().strip()
        assert url, "the server did not start"
        yield SimpleNamespace(
            url=url,
            counts=lambda: httpx.get(f"{url}/counts").json(),
            fails=lambda share, *kinds: httpx.post(
                f"{url}/start-over", json={"share": share, **({"kinds": kinds} if kinds else {})}
            ).raise_for_status(),
        )
    finally:
        end(process, 2)
        process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def served(server):
    server.fails(0)
    return server


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own_and_impatient(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.5)


def game_at(url, variant=None, **parameters):
    """The environment of a server as a game of ours."""
    name = f"openreward:{url}"
    given = {"nonterminal_reward": 0.0, "variant": variant, "train_count": 40, **parameters}
    return load_games({name: game_parameters(name, given)}, 0)[name]


@pytest.fixture(scope="session")
def calculator():
    return load_games({"calculator": game_parameters("calculator", {**GAMES["calculator"], "max_turns": 6})}, 0)[
        "calculator"
    ]


@pytest.fixture(scope="session")
def words(calculator):
    shown = [calculator.taskset.demonstrate(t, "solver") for t in calculator.taskset.tasks("demonstrations", 40)]
    return small_tokenizer(chat_corpus(shown))


class Solver:
    """An engine that gives the sum to the tool `calls` times, each time written differently, and repeats the result."""

    max_context_tokens = 20_000

    def __init__(self, words, calls=1):
        self._words, self._calls = words, calls

    async def generate(self, input_ids, sampling):
        read = self._words.decode(input_ids, skip_special_tokens=False)
        results = read.split("<tool_response>\n")[1:]
        text = results[-1].partition("\n</tool_response>")[0] if results else ""
        if len(results) < self._calls:
            expression = read.rpartition("What is ")[2].partition("?")[0] + " + 0" * len(results)
            text = f'<tool_call>\n{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
        ids = [*self._words.encode(text, add_special_tokens=False), sampling.stop_token_ids[0]]
        return Generation(ids, [-0.5] * len(ids), "stop")

    def release(self, session):
        pass


def seating(game, words, engine):
    rules = PolicyRules(Renderer(words, thinking=False), max_turn_tokens=300, temperature=1.0)
    return Seating({game.name: game}, {"policy": rules.maker(engine)}, seed=0)


def request(game, task, number=0):
    return Request(f"e/{number}", game.name, task, ("policy",))
