"""Games files, one task per line, read lazily; and the order in which several games are drawn."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slim_rl.core.errors import UserError
from slim_rl.core.game import Purpose, Task
from slim_rl.games import NamedGame, file_name
from slim_rl.rollout.rewards import check_label
from slim_rl.runtime.files import write_whole
from slim_rl.runtime.journal import read_lines

_COLUMNS = pa.schema(
    {**dict.fromkeys(("game_id", "prompt", "game_state", "ground_truth"), pa.string()), "optimal_score": pa.float64()}
)


def tasks_path(folder: Path, game: NamedGame, purpose: Purpose) -> Path:
    """The games file of a game below `folder`: `train/GAME.jsonl`."""
    return folder / purpose / f"{file_name(game.name)}.{game.parameters.format}"


def tasks_of(folder: Path, name: str) -> Iterator[Task]:
    """The tasks of the game `name` in all its games files below `folder`, not checked by the game.

    Raises:
        UserError: a file is damaged.
    """
    for path in sorted(folder.glob("*/*")):
        if path.stem == file_name(name):
            parquet = path.suffix == ".parquet"
            yield from map(_task, _parquet(path).to_pylist()) if parquet else read_lines(path, _task)


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write a games file, Parquet or JSONL by the ending of `path`; it appears by rename."""
    names = ("game_id", "prompt", "ground_truth", "optimal_score")
    rows = ({**{name: getattr(task, name) for name in names}, "game_state": dict(task.state)} for task in tasks)

    def write(part: Path) -> None:
        if path.suffix == ".parquet":
            flat = [{**row, "game_state": json.dumps(row["game_state"])} for row in rows]
            pq.write_table(pa.Table.from_pylist(flat, _COLUMNS), part)
            return
        with part.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")

    write_whole(path, write)


class TaskFile(Sequence[Task]):
    """The tasks of a games file. Of a JSONL file only the positions of its lines are in memory; each access reads one.

    Raises:
        UserError: the file is missing or empty, or a line is damaged; the sentence names file and line.
    """

    def __init__(self, path: Path, game: NamedGame):
        self._path, self._game = path, game
        if not path.is_file():
            raise UserError(f"There is no games file {path}. `dvc repro games` makes it.")
        self._places: list[int] = []
        self._table = _parquet(path) if path.suffix == ".parquet" else None
        longest: Task | None = None
        seen: set[str] = set()
        for number, (place, read) in enumerate(self._lines(), start=1):
            self._places.append(place)
            task = self._checked(number, read)
            if task.game_id in seen:
                raise self._damaged(number, f"the game {task.game_id} is in the file already")
            seen.add(task.game_id)
            if longest is None or len(task.prompt) > len(longest.prompt):
                longest = task
        if longest is None:
            raise UserError(f"The games file {path} is empty; at least one task is needed.")
        self.longest = longest
        """The first task with the longest prompt."""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if self._table is not None:
            return _task(*self._table.slice(number, 1).to_pylist())
        with self._path.open("rb") as file:
            file.seek(self._places[number])
            return _task(json.loads(file.readline()))

    def _lines(self) -> Iterator[tuple[int, Any]]:
        if self._table is not None:
            yield from enumerate(self._table.to_pylist())
            return
        with self._path.open("rb") as file:
            place = len(BOM_UTF8) if file.read(3) == BOM_UTF8 else 0
            file.seek(place)
            for line in file:
                if line.strip():
                    yield place, line
                place += len(line)

    def _checked(self, number: int, read: Any) -> Task:
        try:
            task = _task(read if isinstance(read, dict) else json.loads(read))
            self._game.taskset.check(task)
            check_label(self._game.parameters.reward_function, task)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise self._damaged(number, reason) from None
        return task

    def _damaged(self, number: int, reason: str) -> UserError:
        return UserError(f"{self._path}, line {number} is not a task: {reason[:300].removesuffix('.')}.")


def _parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}.") from None


def _task(row: Any) -> Task:
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    state = row["game_state"]
    state = json.loads(state) if isinstance(state, str) else state
    if not isinstance(state, dict):
        raise ValueError("its game_state is not a JSON object")
    state = {name: value for name, value in state.items() if value is not None}  # a table fills rows with null
    game_id, prompt = row["game_id"], row.get("prompt") or ""
    if not isinstance(game_id, str) or not game_id or "/" in game_id:
        raise ValueError(f"its game_id is {game_id!r}; it must be text, not empty and without a slash")
    if not isinstance(prompt, str):
        raise ValueError("its prompt is not text")
    (game_id + prompt).encode()  # an unpaired surrogate cannot be written to a shard
    return Task(game_id, prompt, state)


class Mixture:
    """The task of each training group: several games in the ratio of their weights.

    Within a game tasks come in order, again from the start when they run out.
    """

    def __init__(self, tasks: Mapping[str, Sequence[Task]], weights: Mapping[str, float]):
        self._tasks, self._order = tasks, draw(weights)
        self._drawn: list[tuple[str, int]] = []

    def __getitem__(self, number: int) -> tuple[str, Task]:
        """The game of group `number`, and its task."""
        self._drawn += islice(self._order, max(number + 1 - len(self._drawn), 0))
        name, place = self._drawn[number]
        return name, self._tasks[name][place % len(self._tasks[name])]


def draw(weights: Mapping[str, float]) -> Iterator[tuple[str, int]]:
    """Names in the ratio of their weights, without end: each time the name with the smallest share so far,
    relative to its weight. With each name comes how often it was drawn before."""
    counts = dict.fromkeys(weights, 0)
    while True:
        name = min(weights, key=lambda n: (counts[n] + 1) / weights[n])
        yield name, counts[name]
        counts[name] += 1
