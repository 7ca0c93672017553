"""Episodes on disk: Parquet shards, each written as a whole."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from slim_rl.core.episode import Episode, TokenTrace, Turn
from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, ToolCall
from slim_rl.runtime.files import write_whole

BILLS = "bills.json"
BEGAN, MACHINE = "began.txt", "machine.txt"
"""Beside the shards of a training: when the first one was written."""
HELD_OUT_CSV = "held_out.csv"
"""Beside the shards of a training: its evaluations on held-out tasks, a row a step."""
_TEXT, _NUMBERS = pa.string(), pa.map_(pa.string(), pa.float64())
_MESSAGE = pa.struct({"role": _TEXT, "text": _TEXT, "tool_calls": _TEXT})  # calls as JSON; empty without any
_TURN = pa.struct({"seat": _TEXT, "observation": pa.list_(_MESSAGE), "message": _MESSAGE})
_TOKENS = {"token_ids": pa.int32(), "loss_mask": pa.int8(), "logprobs": pa.float32()}
_TRACE = pa.struct({"seat": _TEXT, **{name: pa.list_(kind) for name, kind in _TOKENS.items()}})
SCHEMA = pa.schema(
    {
        **dict.fromkeys(("episode_id", "game_id", "game"), _TEXT),
        "seating": pa.map_(_TEXT, _TEXT),
        **dict.fromkeys(("series", "arm"), _TEXT),
        "step": pa.int32(),
        **dict.fromkeys(("status", "error", "dropped"), _TEXT),
        "turns": pa.list_(_TURN),
        "rewards": _NUMBERS,
        "metrics": _NUMBERS,
        "traces": pa.list_(_TRACE),
    }
)


def write_shard(path: Path, episodes: Sequence[Episode]) -> None:
    """Write `episodes` to `path`; the file appears by rename.

    Raises:
        UserError: the disk is full or the folder cannot be written; nothing half-written stays.
    """
    table = pa.Table.from_pylist([row_of(episode) for episode in episodes], SCHEMA)
    write_whole(path, lambda part: pq.write_table(table, part, compression="zstd", write_page_checksum=True))


def shards(folder: Path) -> list[Path]:
    """All shards below `folder`, in order; unfinished ones are hidden files and do not count."""
    return sorted(path for path in Path(folder).rglob("*.parquet") if not path.name.startswith("."))


def read_episodes(folder: Path) -> Iterator[Episode]:
    """All episodes below `folder`, tokens included, a shard at a time.

    Raises:
        UserError: a file is no shard.
    """
    for path in shards(folder):
        yield from _read(path)


def read_last_attempts(folder: Path) -> Iterator[Episode]:
    """The episodes below `folder` that count, as in `read_frame`: of several attempts the last that did not fail.

    Raises:
        UserError: a file is no shard.
    """
    paths = shards(folder)
    last: dict[tuple[str, str], tuple[bool, int, int]] = {}
    for number, path in enumerate(paths):
        for place, row in enumerate(_rows(path, ["game", "episode_id", "status"])):
            key, attempt = (row["game"], row["episode_id"]), (row["status"] != "failed", number, place)
            last[key] = max(last.get(key, attempt), attempt)
    places = {(number, place) for _, number, place in last.values()}
    for number, path in enumerate(paths):
        yield from (episode for place, episode in enumerate(_read(path)) if (number, place) in places)


def _read(path: Path) -> list[Episode]:
    with _reading(path):
        rows = pq.read_table(path, schema=SCHEMA, page_checksum_verification=True).to_pylist()
        return list(map(episode_of, rows))


def row_of(episode: Episode) -> dict[str, Any]:
    """`episode` as plain values, in the columns of `SCHEMA`."""
    return {
        **vars(episode),  # asdict would copy every token
        "turns": [
            {
                "seat": turn.seat,
                "observation": list(map(_message_row, turn.observation)),
                "message": _message_row(turn.message),
            }
            for turn in episode.turns
        ],
        "seating": list(episode.seating.items()),
        "rewards": list(episode.rewards.items()),
        "metrics": list(episode.metrics.items()),
        "traces": [{"seat": seat, **vars(trace)} for seat, trace in episode.traces.items()],
    }


def episode_of(row: dict[str, Any]) -> Episode:
    """The episode that `row_of` made into `row`."""
    values = {**row, **{name: dict(row[name]) for name in ("seating", "rewards", "metrics")}}
    values["traces"] = {trace.pop("seat"): TokenTrace(**trace) for trace in row["traces"]}
    values["turns"] = [
        Turn(turn["seat"], tuple(map(_message, turn["observation"])), _message(turn["message"]))
        for turn in row["turns"]
    ]
    return Episode(**values)


def _message_row(message: Message) -> dict[str, Any]:
    calls = json.dumps([vars(call) for call in message.tool_calls]) if message.tool_calls else ""
    return {"role": message.role, "text": message.text, "tool_calls": calls}


def _message(row: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in json.loads(row["tool_calls"] or "[]"))
    return Message(row["role"], row["text"], calls)


def began(folder: Path) -> datetime:
    """When the first shard below `folder` was written. A published training says so: DVC renews the times of its files."""
    if (folder / BEGAN).exists():
        return datetime.fromisoformat((folder / BEGAN).read_text(encoding="utf-8").strip())
    return datetime.fromtimestamp(min(path.stat().st_mtime for path in shards(folder)), UTC)


def count_failures(folder: Path) -> int:
    """Failed attempts below `folder`, also of episodes that later succeeded."""
    return sum(status == "failed" for _, status in statuses(folder))


def statuses(folder: Path) -> Iterator[tuple[str, str]]:
    """Id and status of each attempt at an episode below `folder`. Raises UserError: a file is no shard."""
    for path in shards(folder):
        for row in _rows(path, ["episode_id", "status"]):
            yield row["episode_id"], row["status"]


def read_frame(folder: Path) -> pd.DataFrame:
    """All episodes below `folder` without their dialogues, one per row.

    Of several attempts at an episode one counts: the last that did not fail.

    Columns: `episode_id`, `game_id`, `game`, `series`, `arm`, `step`, `status`, `error`; `seat.SEAT`, the player's name;
    `reward.SEAT`; every metric by its name, or `NAME.metric` if a column has that name; and `shard`, the path of the file.
    Values are missing where an episode does not have them.

    Raises:
        UserError: a file is no shard.
    """
    frames = [_numbers(path).assign(shard=str(path)) for path in shards(folder)]
    if not frames:
        return pd.DataFrame()
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.iloc[rows["status"].ne("failed").argsort(kind="stable")]  # shards are read by name, not by age
    return rows.drop_duplicates("episode_id", keep="last", ignore_index=True)


def _numbers(path: Path) -> pd.DataFrame:
    plain = ["episode_id", "game_id", "game", "series", "arm", "step", "status", "error"]
    rows = _rows(path, [*plain, "seating", "rewards", "metrics"])
    seats = pd.DataFrame([{f"seat.{seat}": who for seat, who in row["seating"]} for row in rows])
    rewards = pd.DataFrame([{f"reward.{seat}": reward for seat, reward in row["rewards"]} for row in rows])
    frame = pd.concat([pd.DataFrame(rows, columns=plain), seats, rewards], axis=1)
    metrics = pd.DataFrame([dict(row["metrics"]) for row in rows])
    return pd.concat([frame, metrics.rename(columns=lambda name: f"{name}.metric" if name in frame else name)], axis=1)


def read_dialogues(path: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The id of each episode of a shard, and its turns as (seat, text), tool calls included."""
    columns = ["episode_id", *(f"turns.list.element.{name}" for name in ("seat", "message"))]
    for row in _rows(path, columns):
        yield row["episode_id"], [(turn["seat"], _message(turn["message"]).written) for turn in row["turns"]]


def read_some(path: Path, ids: Collection[str]) -> list[Episode]:
    """The episodes of a shard with these ids, without their tokens."""
    rows = _rows(path, [name for name in SCHEMA.names if name != "traces"])
    return [episode_of({**row, "traces": []}) for row in rows if row["episode_id"] in ids]


def _rows(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    """These columns of a shard. Raises UserError: the file is none."""
    with _reading(path):
        rows = pq.ParquetFile(path, page_checksum_verification=True).read(columns, use_threads=False).to_pylist()
        if missing := {name.partition(".")[0] for name in columns} - set(*rows[:1]):
            raise KeyError(f"it has no {', '.join(missing)}")
        return rows


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises UserError where a file is no whole shard."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is gone: a run under way has put it together with others. Read again.") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"{path} cannot be read as a shard of episodes: {reason}. Remove it, and the same command plays its episodes "
            "again; replies of services are kept and cost nothing."
        ) from None
