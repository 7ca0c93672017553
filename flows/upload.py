"""Upload trajectories to OpenReward, from the shards of episodes, after the rollout and independent of it.

    python -m flows.upload --run NAME [--episodes data/rollouts]
    prefect deployment run 'upload/openreward'

Each trajectory is uploaded once, in the order of the shards. Its name is when its training began, its game and the
episode's id, because other trainings and games have the same ids. The ids of its events follow from this name and the
run's, so what is sent again after an interruption is the same event; and a journal lists what has arrived, so the same
command continues where it stopped. Failed episodes are left out. The key OPENREWARD_API_KEY goes to OpenReward alone; for
another address name its variable.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from prefect import flow, get_run_logger
from prefect.states import Failed, State
from tqdm import tqdm

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.errors import UserError
from slim_rl.rollout.shards import began, read_last_attempts, shards
from slim_rl.rollout.tasks import tasks_of
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.code import work_root
from slim_rl.runtime.journal import Journal, read_lines
from slim_rl.runtime.retry import retry

API_URL, KEY = "https://api.openreward.ai", "OPENREWARD_API_KEY"
GAMES = Path("data/games")
TRIES, FIRST_WAIT_SECONDS = 6, 0.25
"""Tries of a batch of events, and the first wait between two."""
_BATCH_BYTES = 900_000
_TYPES = {
    "system": "system_message", "user": "user_message", "assistant": "assistant_message", "tool": "tool_result",
}  # fmt: skip


@flow(name="upload", retries=4, retry_delay_seconds=60)
def upload_trajectories(
    run: str = "slim-rl", episodes: str = "data/rollouts", url: str = API_URL, key_variable: str | None = None
) -> State | None:
    """Upload what has not been uploaded yet.

    Args:
        run: its name at OpenReward.
        episodes: a folder of shards.
        key_variable: the environment variable with the key of another address than OpenReward's.
    """
    log = get_run_logger()
    try:
        log.info(f"{upload(run, Path(episodes), url, key_for(url, key_variable))} trajectories uploaded.")
    except UserError as error:
        log.error(str(error))
        return Failed(message=str(error))
    return None


def upload(run: str, folder: Path, url: str = API_URL, key: str | None = None) -> int:
    """Upload what has not been uploaded yet; returns the number of trajectories.

    Raises:
        UserError: there are no shards, or the server does not take them; what has arrived is noted.
    """
    if not shards(folder):
        raise UserError(f"There are no shards of episodes in {folder}; name their folder with --episodes.")
    path = work_root() / "uploaded" / f"{uuid.uuid5(uuid.NAMESPACE_URL, f'{url} {run}')}.jsonl"
    uploaded = {line["episode"] for line in read_lines(path)}
    journal = Journal(path)
    training = began(folder).isoformat()
    named = ((f"{training}/{e.game}/{e.episode_id}", e) for e in read_last_attempts(folder))
    try:
        return asyncio.run(_upload(run, named, url, key, uploaded, journal))
    finally:
        journal.close()


async def _upload(
    run: str, named: Iterator[tuple[str, Episode]], url: str, key: str | None, uploaded: set[str], journal: Journal
) -> int:
    states: dict[str, dict[str, Mapping[str, Any]]] = {}
    count = 0
    headers = {"x-api-key": key} if key else {}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=60)) as http:
        for name, episode in tqdm(named, desc="upload", unit="episode"):
            if name in uploaded or episode.status not in ("completed", "truncated"):
                continue
            game = episode.game
            if game not in states:
                states[game] = {task.game_id: task.state for task in tasks_of(GAMES, game)}
            events = trajectory(run, name, episode, states[game].get(episode.game_id, {}), int(time.time() * 1000))
            for batch in _batches(_without(events, key)):
                await _post(http, f"{url}/v1/rollouts", batch)
            journal.append({"episode": name})
            uploaded.add(name)
            count += 1
    return count


def trajectory(
    run: str, name: str, episode: Episode, state: Mapping[str, Any], milliseconds: int
) -> list[dict[str, Any]]:
    """The events of one episode: its head, then its messages in order.

    Args:
        name: of the trajectory; no other one of the run has it.
        state: of its task; empty if it is not known.
        milliseconds: the time of the events.
    """
    head = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{run}/{name}"))
    seat = next((s for s, player in episode.seating.items() if player == "policy"), next(iter(episode.rewards), ""))
    events: list[dict[str, Any]] = [
        {
            "eventType": "rollout",
            "eventId": head,
            "timestamp": milliseconds,
            "runName": run,
            "rolloutName": name,
            "environment": episode.game.partition(":")[2] or episode.game,
            "split": state.get("split", episode.series or "train"),
            "metadata": {"step": episode.step, "status": episode.status, **episode.metrics},
            "task_spec": state.get("task_spec", {"game_id": episode.game_id}),
        }
    ]
    messages = list(_messages(episode.turns))
    for index, message in enumerate(messages):
        last = index == len(messages) - 1
        events.append(
            {
                "eventType": "message",
                "eventId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{run}/{name}/{index}")),
                "rolloutEventId": head,
                "timestamp": milliseconds,
                "index": index,
                **message,
                "reward": episode.rewards.get(seat) if last else None,
                "isFinished": last and episode.status == "completed",
            }
        )
    return events


def _messages(turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
    """A tool's result has the id of its call; results come in the order of the calls."""
    waiting: dict[str, list[str]] = {}
    for number, turn in enumerate(turns):
        ids = waiting.get(turn.seat, [])
        for message in turn.observation:
            call_id = {"callId": ids.pop(0)} if message.role == "tool" and ids else {}
            yield {"type": _TYPES[message.role], "content": message.text, **call_id}
        calls = turn.message.tool_calls
        if turn.message.text or not calls:
            yield {"type": "assistant_message", "content": turn.message.text}
        waiting[turn.seat] = [f"{number}-{place}" for place in range(len(calls))]
        for call, own_id in zip(calls, waiting[turn.seat], strict=True):
            content = json.dumps(call.arguments) if call.status == "ok" else call.raw
            yield {"type": "tool_call", "name": call.name, "content": content, "callId": own_id}


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
    async def once() -> None:
        async with http.post(url, json={"events": events}, allow_redirects=False) as answer:
            if answer.status >= 300:
                raise aiohttp.ClientResponseError(answer.request_info, (), status=answer.status)

    def passing(error: Exception) -> bool:
        if isinstance(error, aiohttp.ClientResponseError):
            return error.status >= 500 or error.status == 429
        return isinstance(error, aiohttp.ClientError | TimeoutError)

    try:
        await retry(once, passing, tries=TRIES, first_seconds=FIRST_WAIT_SECONDS)
    except (aiohttp.ClientError, TimeoutError) as error:
        status = isinstance(error, aiohttp.ClientResponseError) and error.status
        failure = f"it answered {status}" if status else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{url} does not take the trajectories: {failure}. The same command continues where it stopped."
        ) from None


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
    options = parser.parse_args()
    with told_in_a_sentence():
        key = key_for(options.url, options.key_variable)
        print(f"{upload(options.run, options.episodes, options.url, key)} trajectories uploaded.")


if __name__ == "__main__":
    main()
