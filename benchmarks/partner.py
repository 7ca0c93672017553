"""How much of the time an ideal client would need, and whether the limit holds in every minute.

    python -m benchmarks.partner throughput   # 200 dialogues at once, 200 ms latency
    python -m benchmarks.partner limit        # 600 requests a minute, three minutes and more

Against a server on this machine, in a process of its own. Beside it, OpenAI's client makes as many calls by itself.
"""

import argparse
import asyncio
import json
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
from slim_rl.rollout.table import Job
from slim_rl.seating import make_table, partner_service

from slim_rl.config import Config, PartnerConfig
from slim_rl.games.matching import generate_games, kind
from slim_rl.games.matching.shy import shy_rules
from slim_rl.rollout.collect import collect

ROOT = Path(__file__).parents[1]
LATENCY_SECONDS, AT_ONCE, EPISODES = 0.2, 200, 2000
LIMIT = 600


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("throughput", "limit"))
    measure: dict[str, Callable[[str], None]] = {"throughput": throughput, "limit": limit}
    os.environ.setdefault("OPENAI_API_KEY", "none")
    what = parser.parse_args().what
    latency = str(LATENCY_SECONDS)
    servers = {
        "throughput": ["-m", "benchmarks.partner_server", latency],
        "limit": ["fixtures/partner_server.py", "--latency", latency],
    }
    server = subprocess.Popen([sys.executable, *servers[what]], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        measure[what](server.stdout.readline().strip())
    finally:
        server.kill()


def play(url: str, episodes: int, at_once: int, **partner) -> tuple[list[int], float]:
    """Calls of each episode, and the seconds that all took."""
    values = dict(kind="chat", base_url=f"{url}/v1", always_accept=False, max_concurrent=at_once)
    config = Config(partner=PartnerConfig(**{**values, "max_tokens_per_minute": None, **partner}))
    seating = ("asks-4-table", "chat")
    table = make_table(config, kind(config), seating, {}, partner_service(config))
    games = generate_games(episodes, 0, config.board)
    jobs = [Job(f"e/{game['game_id']}", game, seating) for game in games]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        played = collect(
            jobs, table.play, Path(folder), at_once, "episodes", status=table.status, run=table.run
        )
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
    # The best there is: so many at once, each next dialogue in the seat that is free first.
    seats = np.zeros(AT_ONCE)
    for count in calls:
        seats[seats.argmin()] += count * LATENCY_SECONDS
    print(
        f"{what}: {sum(calls)} calls, {AT_ONCE} at once, {LATENCY_SECONDS * 1000:.0f} ms: {seconds:.2f} s, "
        f"ideal {seats.max():.2f} s: {seats.max() / seconds:.1%} of the ideal; "
        f"{cpu_seconds / sum(calls) * 1000:.2f} ms of a core for a call (load {os.getloadavg()[0]:.1f})"
    )


async def calls_alone(url: str, calls: list[int]) -> float:
    """Seconds that the same calls take without a game, by the client's plain `create`."""
    client = openai.AsyncOpenAI(
        base_url=f"{url}/v1", max_retries=0, http_client=openai.DefaultAioHttpClient()
    )
    messages = [{"role": "system", "content": shy_rules(False)}, {"role": "user", "content": "Hello?"}]
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
    with urllib.request.urlopen(f"{url}/counts") as reply:
        counts = json.load(reply)
    print(
        f"{sum(calls)} calls in {seconds:.0f} s with {LIMIT} requests a minute allowed: at most "
        f"{counts['most_in_a_minute']} in any minute, counted at the server as they came in"
    )


if __name__ == "__main__":
    main()
