"""Episodes on disk: Parquet shards, each written as a whole."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
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
_NUMBERS = pa.map_(pa.string(), pa.float64())
_MESSAGE = {
    "role": pa.string(),
    "text": pa.string(),
    "tool_calls": pa.string(),  # JSON; empty without any
}
SCHEMA = pa.schema(
    {
        "episode_id": pa.string(),
        "game_id": pa.string(),
        "game": pa.string(),
        "seating": pa.map_(pa.string(), pa.string()),
        "series": pa.string(),
        "arm": pa.string(),
        "step": pa.int32(),
        "status": pa.string(),
        "error": pa.string(),
        "dropped": pa.string(),
        "turns": pa.list_(
            pa.struct(
                {"seat": pa.string(), "observation": pa.list_(pa.struct(_MESSAGE)), "message": pa.struct(_MESSAGE)}
            )
        ),
        "rewards": _NUMBERS,
        "metrics": _NUMBERS,
        "traces": pa.list_(
            pa.struct(
                {
                    "seat": pa.string(),
                    "token_ids": pa.list_(pa.int32()),
                    "loss_mask": pa.list_(pa.int8()),
                    "logprobs": pa.list_(pa.float32()),
                }
            )
        ),
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
        with _reading(path):
            rows = pq.read_table(path, schema=SCHEMA, page_checksum_verification=True).to_pylist()
            episodes = list(map(episode_of, rows))
        yield from episodes


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
    values = {
        **row,
        "dropped": row.get("dropped") or "",
        **{name: dict(row[name]) for name in ("seating", "rewards", "metrics")},
    }
    values["traces"] = {trace.pop("seat"): TokenTrace(**trace) for trace in row["traces"]}
    values["turns"] = [
        Turn(turn["seat"], tuple(map(_message, turn["observation"])), _message(turn["message"]))
        for turn in row["turns"]
    ]
    return Episode(**values)


def _message_row(message: Message) -> dict[str, Any]:
    calls = message.tool_calls
    return {
        "role": message.role,
        "text": message.text,
        "tool_calls": json.dumps([vars(call) for call in calls]) if calls else "",
    }


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
        table = Shard(path).read(["episode_id", "status"])
        yield from zip(table["episode_id"].to_pylist(), table["status"].to_pylist(), strict=True)


def read_frame(folder: Path) -> pd.DataFrame:
    """All episodes below `folder` without their dialogues, one per row; see `Shard.numbers`.

    Of several attempts at an episode one counts: the last that did not fail. The column `shard` has the path of its file.
    """
    return latest([Shard(path).numbers().assign(shard=str(path)) for path in shards(folder)])


def latest(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames of several shards as one, with one row of each `episode_id`: the last that did not fail, if there is one."""
    if not frames:
        return pd.DataFrame()
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.iloc[rows["status"].ne("failed").argsort(kind="stable")]  # shards are read by name, not by age
    return rows.drop_duplicates("episode_id", keep="last", ignore_index=True)


class Shard:
    """One shard, read by columns: for millions of episodes.

    Raises:
        UserError: the file is no shard.
    """

    def __init__(self, path: Path):
        self._path = path
        with _reading(path):
            self._file = pq.ParquetFile(path, read_dictionary=_STRINGS, page_checksum_verification=True)

    def numbers(self) -> pd.DataFrame:
        """One row per episode, without its dialogue.

        Columns: `episode_id`, `game_id`, `game`, `series`, `arm`, `step`, `status`, `error`; `seat.SEAT`, the
        player's name; `reward.SEAT`; and every metric by its name, or `NAME.metric` if a column has that
        name. Values are missing where an episode does not have them.
        """
        plain = ["episode_id", "game_id", "game", "series", "arm", "step", "status", "error"]
        table = self.read([*plain, "seating", "rewards", "metrics"])
        columns: dict[str, Any] = {f"seat.{seat}": who for seat, who in _by_key(table["seating"], None).items()}
        columns |= {f"reward.{seat}": values for seat, values in _by_key(table["rewards"]).items()}
        columns |= _by_key(table["metrics"])
        by_row = {"how": "left", "left_index": True, "right_index": True}  # join(suffixes=) is pandas 3's
        return table.select(plain).to_pandas().merge(pd.DataFrame(columns), **by_row, suffixes=("", ".metric"))

    def dialogues(self) -> Iterator[tuple[list[str], list[str]]]:
        """Seats and messages of the turns of each episode, as text.

        Equal strings are one object, so a cache by text is fast.
        """
        turns = self.read([f"turns.list.element.{name}" for name in ("seat", "message")])["turns"].combine_chunks()
        seats, said = _texts(turns.values.field("seat")), _written(turns.values.field("message"))
        for start, end in pairwise(turns.offsets.to_pylist()):
            yield seats[start:end], said[start:end]

    def episodes(self, ids: Collection[str]) -> list[Episode]:
        """The episodes with these ids, without their tokens."""
        table = self.read([name for name in SCHEMA.names if name != "traces"])
        chosen = table.filter(pc.is_in(table["episode_id"], pa.array(ids, pa.string())))
        return [episode_of({**row, "traces": []}) for row in chosen.to_pylist()]

    def sampled_tokens(self) -> np.ndarray:
        """Tokens that the policy sampled in each episode, (episodes,)."""
        traces = self.read(["traces.list.element.loss_mask"])["traces"].combine_chunks()
        masks = traces.values.field("loss_mask")
        before = np.concatenate([[0], np.cumsum(masks.values.to_numpy())])
        return np.diff(before[masks.offsets.to_numpy()[traces.offsets.to_numpy()]])

    def read(self, columns: list[str]) -> pa.Table:
        with _reading(self._path):
            table = self._file.read(columns, use_threads=False)
            if missing := {name.partition(".")[0] for name in columns} - set(table.column_names):
                raise KeyError(f"it has no {', '.join(missing)}")
            return table


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


_STRINGS = [
    "turns.list.element.seat",
    *(f"turns.list.element.message.{name}" for name in ("text", "tool_calls")),
]


def _texts(column: pa.Array) -> list[str]:
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    return [words[i] for i in encoded.indices.to_numpy(zero_copy_only=False).tolist()]


def _written(messages: pa.StructArray) -> list[str]:
    """`Message.written` of each."""
    texts, calls = _texts(messages.field("text")), _texts(messages.field("tool_calls"))
    return [
        text if not call else "\n".join(filter(None, (text, *(c["raw"] for c in json.loads(call)))))
        for text, call in zip(texts, calls, strict=True)
    ]


def _by_key(column: pa.ChunkedArray, missing: float | None = np.nan) -> dict[str, np.ndarray]:
    """A column of maps as one array (rows,) for each key, `missing` where a row does not have it."""
    maps = column.combine_chunks()
    rows = np.repeat(np.arange(len(maps)), np.diff(maps.offsets.to_numpy()))
    keys = maps.keys.dictionary_encode()
    indices, values = keys.indices.to_numpy(), maps.items.to_numpy(zero_copy_only=False)
    columns = {}
    for number, key in enumerate(keys.dictionary.to_pylist()):
        here = indices == number
        columns[key] = np.full(len(maps), missing, dtype=None if missing is not None else object)
        columns[key][rows[here]] = values[here]
    return columns
