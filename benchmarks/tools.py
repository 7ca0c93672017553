"""Tool calls over HTTP: what our client, and the loop of OpenReward's cookbook, leave of a server's calls per second.

    python -m benchmarks.tools [--latency SECONDS]

256 dialogues at once on our own server, in a process of its own; each call takes so many seconds there. Every turn is a
call that gives a page of 100 words, and the last one ends the episode. The turns are scripted, so no model is measured.
Four clients play the same tasks in turn, three times; the table has the medians, and processor time of the client alone,
which is what to compare where other work shares the cores.

    bare      sends the requests of an episode and reads the replies; it knows no tokens
    adapter   our game of an environment, `slim_rl.games.openreward`, without a policy: sessions, journals, whose fault
    ours      all of a training's rollout: rendering, parsing, games, session journals, shards on disk
    cookbook  the loop of its training/slime/generate.py (commit f9580a3), written anew: the dialogue is a text, to which
              turns are added; each turn encodes the prefix, the whole text (for the limit of tokens), the end of the turn
              and the result. SGLang then gets the text and encodes it once more, which is not counted. Its requests are
              the bare client's, and it writes nothing to disk.
"""

import asyncio
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import aiohttp
import yaml

from benchmarks.latency import CALL, DEPTHS, DIALOGUES, RUNS, SAMPLES, dialogues, play_all, small_words
from slim_rl.core.game import Game, Task
from slim_rl.core.message import Message, ToolCall
from slim_rl.games import NamedGame, game_parameters, load_games
from slim_rl.runtime.cli import argument_parser

ROOT = Path(__file__).parents[1]
ENVIRONMENT = "benchmarks.latency"
PREFIX = "\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Words:
    """The tokenizer of all clients; counts the tokens that it encodes."""

    def __init__(self):
        self.tokenizer = small_words()
        self.encoded, self._encode = 0, self.tokenizer.encode
        self.tokenizer.encode = self.encode

    def encode(self, text: str, **options) -> list[int]:
        ids = self._encode(text, **options)
        self.encoded += len(ids)
        return ids


@contextlib.contextmanager
def serving(latency: float, depth: int) -> Iterator[str]:
    """The address of our server."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "served.yaml"
        given = {"latency_seconds": latency, "depth": depth, "train_count": DIALOGUES // SAMPLES}
        path.write_text(yaml.safe_dump({"games": {ENVIRONMENT: given}}))
        command = [sys.executable, "-m", "slim_rl.games.openreward.server", "--port", "0", "--parameters", str(path)]
        server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()
            server.wait()


def environment(url: str, depth: int) -> tuple[NamedGame, list[Task]]:
    """The server's environment as a game of ours, and the task of each dialogue."""
    name = f"openreward:{url}"
    game = load_games({name: game_parameters(name, {"nonterminal_reward": 0.0, "max_turns": depth + 1})}, seed=0)[name]
    return game, dialogues(game)


def adapter(url: str, depth: int, words: Words) -> None:
    game, tasks = environment(url, depth)

    async def dialogue(task: Task) -> None:
        played = cast(Game, game.taskset.load(task))
        while played.turn is not None:
            await played.observe("solver")
            await played.step(Message("assistant", "", (ToolCall("read", {}),)))
        await played.close()

    async def run() -> None:
        await asyncio.gather(*map(dialogue, tasks))

    asyncio.run(run())


def ours(url: str, depth: int, words: Words) -> None:
    game, tasks = environment(url, depth)
    play_all(game, tasks, words.tokenizer)


class Requests:
    """The requests of one dialogue, with nothing around them."""

    def __init__(self, http: aiohttp.ClientSession, environment: str, game_id: str):
        self._http, self._environment, self._headers = http, environment, {}
        self._spec = {"game_id": game_id, "prompt": "", "game_state": {}}

    async def _ask(self, method: str, path: str, body: object = None) -> bytes:
        async with self._http.request(method, path, json=body, headers=self._headers) as response:
            assert response.status == 200
            return await response.read()

    async def begin(self) -> tuple[str, str]:
        """The tools and the prompt."""
        told = await self._ask("POST", "/create_session", {})
        self._headers = {"X-Session-ID": told.split(b"data: ")[1].split()[0].decode()}
        await self._ask("POST", "/create", {"env_name": self._environment, "task_spec": self._spec})
        tools = json.loads(await self._ask("GET", f"/{self._environment}/task_tools"))["tools"]
        [prompt] = json.loads(await self._ask("GET", f"/{self._environment}/messages"))
        return "\n".join(map(json.dumps, tools)), prompt["blocks"][0]["text"]

    async def call(self, name: str, arguments: dict) -> dict:
        told = await self._ask("POST", f"/{self._environment}/call", {"name": name, "input": arguments})
        return json.loads(told.rpartition(b"data: ")[2])["output"]

    async def end(self) -> None:
        await self._ask("POST", "/delete")
        await self._ask("POST", "/delete_session")


async def bare(requests: Requests, words: Words) -> None:
    await requests.begin()
    while not (await requests.call("read", {}))["finished"]:
        pass
    await requests.end()


async def cookbook(requests: Requests, words: Words) -> None:
    tools, prompt = await requests.begin()
    system = f"You act in an environment. Its tools:\n<tools>\n{tools}\n</tools>\nWrite calls as JSON in <tool_call>."
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>"
    words.encode(text, add_special_tokens=False)
    ids, finished = [], False

    def append(part: str) -> None:
        nonlocal text
        text += part
        ids.extend(words.encode(part, add_special_tokens=False))

    while not finished:
        append(PREFIX)
        words.encode(text, add_special_tokens=False)
        text += CALL  # SGLang gives the text and its tokens
        call = json.loads(CALL.partition("<tool_call>")[2].partition("</tool_call>")[0])
        append("<|im_end|>")
        output = await requests.call(call["name"], call["arguments"])
        read, finished = "".join(block["text"] for block in output["blocks"]), output["finished"]
        append(f"\n<|im_start|>user\n<tool_response>\n{read}\n</tool_response><|im_end|>")
    await requests.end()


def all_at_once(dialogue: Callable[[Requests, Words], Awaitable[None]], url: str, words: Words) -> None:
    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=DIALOGUES)
        async with aiohttp.ClientSession(url, connector=connector) as http, asyncio.TaskGroup() as group:
            for number in range(DIALOGUES):
                requests = Requests(http, ENVIRONMENT, f"reading-{number // SAMPLES}")
                group.create_task(dialogue(requests, words))

    asyncio.run(run())


CLIENTS: dict[str, Callable[[str, int, Words], None]] = {
    "bare": lambda url, depth, words: all_at_once(bare, url, words),
    "adapter": adapter,
    "ours": ours,
    "cookbook": lambda url, depth, words: all_at_once(cookbook, url, words),
}


def measure(url: str, latency: float, depth: int, runs: int = RUNS) -> None:
    """Print a row for each client."""
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in CLIENTS}
    for _ in range(runs):
        for name, play in CLIENTS.items():
            words = Words()
            gc.collect()
            gc.freeze()  # what was imported is not collected again
            started, cpu = time.perf_counter(), time.process_time()
            play(url, depth, words)
            found[name].append((time.perf_counter() - started, time.process_time() - cpu, words.encoded))
    calls = DIALOGUES * depth
    for name, rows in found.items():
        seconds, cpu, encoded = (statistics.median(column) for column in zip(*rows, strict=True))
        of_bare = statistics.median(b[0] / own[0] for b, own in zip(found["bare"], rows, strict=True))
        ideal = f"{seconds / (latency * depth):.2f}" if latency else ""
        print(
            f"{latency:>9g} {depth:>5} {name:>8} {calls / seconds:>7,.0f} {of_bare:>7.1%} {ideal:>7} "
            f"{1000 * cpu / calls:>11.2f} {encoded / calls:>11,.0f}",
            flush=True,
        )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--latency", type=float, default=0.0, help="of a call, in seconds")
    latency = parser.parse_args().latency
    print("latency s turns   client calls/s of bare x ideal CPU ms/call tokens/turn")
    for depth in DEPTHS:
        with serving(latency, depth) as url, tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            measure(url, latency, depth)


if __name__ == "__main__":
    main()
