"""Calls to a service: the share of the time an ideal client would need, and whether the limit holds in every minute.

    python -m benchmarks.partner throughput   # 200 dialogues at once, 200 ms latency
    python -m benchmarks.partner limit        # 600 requests a minute, for more than three minutes

The server runs on this machine, in a process of its own. For comparison, OpenAI's client makes as many calls.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openai

from slim_rl.games import game_parameters, load_games
from slim_rl.players.config import ServiceConfig
from slim_rl.players.services import Services
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import Request, Seating, service_makers
from slim_rl.rollout.store import Store
from slim_rl.runtime.cli import argument_parser

ROOT = Path(__file__).parents[1]
GAME = "matching"
LATENCY_SECONDS, AT_ONCE, EPISODES = 0.2, 200, 2000
LIMIT = 600


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("throughput", "limit"))
    measure: dict[str, Callable[[str], None]] = {"throughput": throughput, "limit": limit}
    os.environ.setdefault("OPENAI_API_KEY", "none")
    what = parser.parse_args().what
    command = [sys.executable, "-m", "benchmarks.partner_server", str(LATENCY_SECONDS)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        measure[what](server.stdout.readline().strip())
    finally:
        server.kill()


def play(url: str, episodes: int, at_once: int, **limits) -> tuple[list[int], float]:
    """Calls of each episode, and the seconds that all took."""
    config = ServiceConfig(base_url=f"{url}/v1", **{"max_tokens_per_minute": None, "max_concurrent": at_once, **limits})
    game = load_games({GAME: game_parameters(GAME, {"always_accept": False})}, seed=0)[GAME]
    players = ("asks-4-table", "service:partner")
    services = Services({"partner": config}, "benchmark", folder=None)
    seating = Seating({GAME: game}, service_makers(set(players), services), seed=0)
    requests = [Request(f"e/{task.game_id}", GAME, task, players) for task in game.taskset.tasks("train", episodes)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()

        async def every() -> list:
            async with services:
                return await collect(
                    requests, seating.play, Store(Path(folder)), at_once, 1, "episodes", services.status
                )

        played = asyncio.run(every())
        seconds = time.monotonic() - started
    assert {episode.status for episode in played} == {"completed"}
    return [sum(turn.seat == "player-2" for turn in episode.turns) for episode in played], seconds


def throughput(url: str) -> None:
    cpu = time.process_time()
    calls, seconds = play(url, EPISODES, AT_ONCE, max_requests_per_minute=None)
    cpu = time.process_time() - cpu
    tell(f"{EPISODES} episodes", calls, seconds, cpu)
    cpu = time.process_time()
    seconds = asyncio.run(calls_alone(url, calls))
    tell("OpenAI's client alone", calls, seconds, time.process_time() - cpu)


def tell(what: str, calls: list[int], seconds: float, cpu_seconds: float) -> None:
    # The ideal: each next dialogue starts in the seat that is free first.
    seats = np.zeros(AT_ONCE)
    for count in calls:
        seats[seats.argmin()] += count * LATENCY_SECONDS
    print(
        f"{what}: {sum(calls)} calls, {AT_ONCE} at once, {LATENCY_SECONDS * 1000:.0f} ms: {seconds:.2f} s, "
        f"ideal {seats.max():.2f} s: {seats.max() / seconds:.1%} of the ideal; "
        f"{cpu_seconds / sum(calls) * 1000:.2f} ms of a core for a call (load {os.getloadavg()[0]:.1f})"
    )


async def calls_alone(url: str, calls: list[int]) -> float:
    """Seconds that as many calls take without a game, by the client's `create`."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", max_retries=0, http_client=openai.DefaultAioHttpClient())
    messages = [{"role": "system", "content": "Be shy. " * 100}, {"role": "user", "content": "Hello?"}]
    free = asyncio.Semaphore(AT_ONCE)

    async def one(count: int) -> None:
        async with free:
            for _ in range(count):
                await client.chat.completions.create(model="gpt-4.1", messages=messages, max_tokens=120)

    started = time.monotonic()
    async with client, asyncio.TaskGroup() as group:
        for count in calls:
            group.create_task(one(count))
    return time.monotonic() - started


def limit(url: str) -> None:
    calls, seconds = play(url, 420, AT_ONCE, max_requests_per_minute=LIMIT)
    with urllib.request.urlopen(url) as reply:
        most = int(reply.read())
    print(
        f"{sum(calls)} calls in {seconds:.0f} s with {LIMIT} requests a minute allowed: at most {most} in any minute, "
        "counted at the server as they came in"
    )


if __name__ == "__main__":
    main()
