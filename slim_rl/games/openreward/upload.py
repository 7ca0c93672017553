"""Upload trajectories to OpenReward, from the shards of episodes, after the rollout and independent of it.

    python -m slim_rl.games.openreward.upload --run NAME [--episodes data/rollouts]

Each trajectory is uploaded once, in the order of the shards. The ids of its events follow from the run's name and the
episode's id, so what is sent again after an interruption is the same event; and a journal lists what has arrived, so the
same command continues where it stopped. Failed episodes are left out. The key OPENREWARD_API_KEY goes to OpenReward
alone; for another address name its variable.
"""

import asyncio
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from slim_rl.core.errors import UserError
from slim_rl.games import file_name
from slim_rl.games.openreward.tasks import KEY
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.journal import Journal, read_lines
from slim_rl.runtime.work import work_root

API_URL = "https://api.openreward.ai"
GAMES = Path("data/games")
_COLUMNS = ("episode_id", "game_id", "game", "series", "step", "status", "turns", "seating", "rewards", "metrics")
_BATCH_BYTES = 900_000
_TRIES = 6
_PAUSE_SECONDS = 0.1  # before the second try; then three times as long each time
_TYPES = {"system": "system_message", "user": "user_message", "tool": "tool_result"}


def upload(run: str, episodes: Path, url: str = API_URL, key: str | None = None) -> int:
    """Upload what has not been uploaded yet; returns the number of trajectories.

    Raises:
        UserError: there are no shards, or the server does not take them; what has arrived is noted.
    """
    shards = sorted(episodes.rglob("*.parquet"))
    if not shards:
        raise UserError(f"There are no shards of episodes in {episodes}; name their folder with --episodes.")
    path = work_root() / "openreward/uploaded" / f"{uuid.uuid5(uuid.NAMESPACE_URL, f'{url} {run}')}.jsonl"
    done = {line["episode"] for line in read_lines(path)}
    journal = Journal(path)
    try:
        return asyncio.run(_upload_all(run, shards, url, key, done, journal))
    finally:
        journal.close()


async def _upload_all(
    run: str, shards: Sequence[Path], url: str, key: str | None, done: set[str], journal: Journal
) -> int:
    specs, sent = _Specs(), 0
    headers = {"x-api-key": key} if key else {}
    limit = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(headers=headers, timeout=limit) as http:
        for shard in tqdm(shards, desc="upload", unit="shard"):
            for row in _rows(shard):
                if row["episode_id"] in done or row["status"] not in ("completed", "truncated"):
                    continue
                events = trajectory(run, row, specs.of(row), int(shard.stat().st_mtime * 1000))
                for batch in _batches(_without(events, key)):
                    await _post(http, f"{url}/v1/rollouts", batch)
                journal.append({"episode": row["episode_id"]})
                done.add(row["episode_id"])
                sent += 1
    return sent


def trajectory(run: str, row: Mapping[str, Any], task: Mapping[str, Any], timestamp: int) -> list[dict[str, Any]]:
    """The events of one episode: its head, then its messages in order.

    Args:
        row: of a shard.
        task: the state of its task in the games file; empty if it is not known.
        timestamp: in milliseconds.
    """
    name = f"{run}/{row['episode_id']}"
    head = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
    game, rewards = row["game"], dict(row["rewards"])
    seat = next((seat for seat, who in row["seating"] if who == "policy"), next(iter(rewards), None))
    events: list[dict[str, Any]] = [
        {
            "eventType": "rollout",
            "eventId": head,
            "timestamp": timestamp,
            "runName": run,
            "rolloutName": row["episode_id"],
            "environment": game.partition(":")[2] or game,
            "split": task.get("split", row["series"] or "train"),
            "metadata": {"step": row["step"], "status": row["status"], **dict(row["metrics"])},
            "task_spec": task.get("task_spec", {"game_id": row["game_id"]}),
        }
    ]
    messages = list(_messages(row["turns"]))
    for index, message in enumerate(messages):
        last = index == len(messages) - 1
        events.append(
            {
                "eventType": "message",
                "eventId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{index}")),
                "rolloutEventId": head,
                "timestamp": timestamp,
                "index": index,
                **message,
                "reward": rewards.get(seat) if last else None,
                "isFinished": last and row["status"] == "completed",
            }
        )
    return events


def _messages(turns: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A tool's result has the id of its call; results come in the order of the calls."""
    waiting: dict[str, list[str]] = {}
    for number, turn in enumerate(turns):
        seat, calls = turn["seat"], json.loads(turn["message"]["tool_calls"] or "[]")
        for heard in turn["observation"]:
            ids = waiting.get(seat, [])
            own = {"callId": ids.pop(0)} if heard["role"] == "tool" and ids else {}
            yield {"type": _TYPES[heard["role"]], "content": heard["text"], **own}
        if turn["message"]["text"] or not calls:
            yield {"type": "assistant_message", "content": turn["message"]["text"]}
        waiting[seat] = [f"{number}-{place}" for place in range(len(calls))]
        for call, own_id in zip(calls, waiting[seat], strict=True):
            written = json.dumps(call["arguments"]) if call["status"] == "ok" else call["raw"]
            yield {"type": "tool_call", "name": call["name"], "content": written, "callId": own_id}


def _without(events: list[dict[str, Any]], key: str | None) -> list[dict[str, Any]]:
    """The events without the key, should a tool have printed it."""
    return json.loads(json.dumps(events).replace(json.dumps(key)[1:-1], "[key]")) if key else events


def _batches(events: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for event in events:
        length = len(json.dumps(event))
        if batch and size + length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += length
    yield batch


async def _post(http: aiohttp.ClientSession, url: str, events: Sequence[dict[str, Any]]) -> None:
    for attempt in range(_TRIES):
        try:
            async with http.post(url, json={"events": events}, allow_redirects=False) as answer:
                if answer.status < 300:
                    return
                failure = f"it answered {answer.status}"
                if answer.status < 500 and answer.status != 429:
                    break
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = f"{type(error).__name__}: {error}"
        if attempt + 1 < _TRIES:
            await asyncio.sleep(_PAUSE_SECONDS * 3**attempt)
    raise UserError(f"{url} does not take the trajectories: {failure}. The same command continues where it stopped.")


def _rows(shard: Path) -> Iterator[dict[str, Any]]:
    try:
        file = pq.ParquetFile(shard)
        for batch in file.iter_batches(64, columns=list(_COLUMNS)):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{shard} cannot be read as a shard of episodes: {str(error).splitlines()[0]}") from None


class _Specs:
    """The states of tasks, from games files in JSONL, which are read when their game first occurs."""

    def __init__(self) -> None:
        self._read: dict[str, dict[str, Mapping[str, Any]]] = {}

    def of(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        game = file_name(row["game"])
        if game not in self._read:
            lines = (line for path in sorted((GAMES / game).glob("*.jsonl")) for line in read_lines(path))
            self._read[game] = {line["game_id"]: line["game_state"] for line in lines}
        return self._read[game].get(row["game_id"], {})


def key_for(url: str, variable: str | None) -> str | None:
    """The key for an address: OpenReward's own only for OpenReward.

    Raises:
        UserError: its environment variable is not set.
    """
    name = variable or (KEY if url == API_URL else None)
    if name is None:
        return None
    if not os.environ.get(name):
        raise UserError(f"The environment variable {name} is not set; the upload needs its key.")
    return os.environ[name]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--run", required=True, help="name of the run, as it is shown there")
    parser.add_argument("--episodes", type=Path, default=Path("data/rollouts"), help="folder of shards")
    parser.add_argument("--url", default=API_URL)
    parser.add_argument("--key-variable", help="environment variable with the key of another address")
    given = parser.parse_args()
    with told_in_a_sentence():
        key = key_for(given.url, given.key_variable)
        print(f"{upload(given.run, given.episodes, given.url, key)} trajectories uploaded.")


if __name__ == "__main__":
    main()
