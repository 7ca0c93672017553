"""Games files: JSONL or Parquet, tasks or the seeds of tasks; and several games drawn by weight."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.games import game_parameters, load_games
from slim_rl.rollout.context import check_context
from slim_rl.rollout.tasks import Mixture, TaskFile, draw, tasks_path, write_tasks

GAMES = ["matching", "tictactoe", "kuhn", "textarena:Nim-v0"]


def game_of(name, seed=0, **parameters):
    return load_games({name: game_parameters(name, parameters)}, seed)[name]


def two_seats(name):
    return {} if name == "matching" else {"seating": ["policy", "policy"]}


def everything_read(game, task):
    loaded = game.taskset.load(task)
    return [loaded.read(seat) for seat in loaded.seats]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        *((name, two_seats(name)) for name in GAMES),
        ("matching", {"on_the_fly": True}),
        ("matching", {"selection": "dialop"}),
    ],
)
def test_jsonl_and_parquet_hold_the_same_tasks(tmp_path, name, parameters):
    game = game_of(name, **parameters)
    tasks = list(game.taskset.tasks("train", 5))
    for ending in ("jsonl", "parquet"):
        write_tasks(tmp_path / f"train.{ending}", tasks)
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    known = [(task.ground_truth, task.optimal_score) for task in tasks]
    assert [tuple(map(row.get, ("ground_truth", "optimal_score"))) for row in lines] == known
    assert [(row["ground_truth"], row["optimal_score"]) for row in rows] == known
    one, two = (TaskFile(tmp_path / f"train.{ending}", game) for ending in ("jsonl", "parquet"))
    assert list(one) == list(two) == tasks
    assert (len(one), one[3], one[-1], one[1:3]) == (5, tasks[3], tasks[4], tasks[1:3])
    assert [everything_read(game, task) for task in one] == [everything_read(game, task) for task in two]


def test_a_file_that_pandas_has_written_has_the_same_tasks(tmp_path):
    """It fills rows with null and may begin with a byte order mark."""
    game = game_of("kuhn", seating=["policy", "policy"])
    tasks = list(game.taskset.tasks("train", 3))
    write_tasks(tmp_path / "a.jsonl", tasks)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    filled = [{**row, "game_state": {**row["game_state"], "other": None}, "note": None} for row in rows]
    (tmp_path / "b.jsonl").write_text("\ufeff" + "\n\n".join(map(json.dumps, filled)), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(filled), tmp_path / "b.parquet")
    assert list(TaskFile(tmp_path / "b.jsonl", game)) == list(TaskFile(tmp_path / "b.parquet", game)) == tasks


def test_the_file_of_a_game_has_its_name_and_format(tmp_path):
    nim = game_of("textarena:Nim-v0", seating=["policy", "policy"], format="parquet")
    assert tasks_path(tmp_path, nim, "train") == tmp_path / "train/textarena-Nim-v0.parquet"
    assert tasks_path(tmp_path, game_of("matching"), "evaluate") == tmp_path / "evaluate/matching.jsonl"


def test_on_the_fly_a_task_is_a_seed_and_always_the_same_board():
    taskset = game_of("matching", on_the_fly=True).taskset
    series = {name: list(taskset.tasks(name, 40)) for name in ("train", "evaluate", "demonstrations")}
    for tasks in (series["train"], series["evaluate"]):
        assert all(set(task.state) == {"seed", "max_turns", "price"} and task.prompt == "" for task in tasks)

    def board(taskset, task):
        return json.dumps(taskset.load(task).board.to_game_state())

    boards = {task.game_id: board(taskset, task) for tasks in series.values() for task in tasks}
    assert len(boards) == len(set(boards.values())) == 120  # every task of every series has its own board
    again = game_of("matching", on_the_fly=True).taskset
    assert list(again.tasks("train", 40)) == series["train"]
    for task in series["train"][::-1]:
        assert board(again, task) == boards[task.game_id]
    other = game_of("matching", seed=1, on_the_fly=True).taskset
    assert not set(boards) & {task.game_id for task in other.tasks("train", 40)}
    assert list(taskset.tasks("train", 3)) == series["train"][:3]


def as_line(task):
    return {"game_id": task.game_id, "prompt": task.prompt, "game_state": dict(task.state)}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: "{not json", "line 2 is not a task"),
        (lambda line: json.dumps({"game_id": "x"}), "line 2 is not a task: game_state is missing"),
        (lambda line: json.dumps({**line, "game_state": {**line["game_state"], "mask1": [[1]]}}), "line 2"),
        (lambda line: json.dumps(line)[:-20], "line 2 is not a task"),
        (lambda line: "[1, 2]", "line 2 is not a task: it is not a JSON object"),
        (lambda line: "[" * 100_000, "line 2 is not a task"),
        (lambda line: json.dumps({**line, "game_id": "matching-3-stakes-0-0"}), "line 2 .* is in the file already"),
        (lambda line: json.dumps({**line, "game_id": 5}), "line 2 .* its game_id is 5; it must be text"),
        (lambda line: json.dumps({**line, "game_id": "a/b"}), "line 2 .* without a slash"),
        (lambda line: json.dumps({**line, "prompt": 5}), "line 2 .* its prompt is not text"),
        (lambda line: json.dumps({**line, "prompt": "\ud800"}), "line 2 is not a task"),
        (lambda line: json.dumps({**line, "game_id": "\ud800"}), "line 2 is not a task"),
        (lambda line: json.dumps({**line, "game_state": [1]}), "line 2 .* game_state is not a JSON object"),
    ],
)
def test_a_damaged_line_of_a_games_file_is_named(tmp_path, matching, tasks, damage, reason):
    path, lines = tmp_path / "train.jsonl", [as_line(task) for task in tasks[:3]]
    path.write_text("\n".join([json.dumps(lines[0]), damage(lines[1]), json.dumps(lines[2])]))
    with pytest.raises(UserError, match=reason) as error:
        TaskFile(path, matching)
    assert str(path) in str(error.value) and len(str(error.value)) < 600


def test_an_empty_or_missing_games_file(tmp_path, matching):
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(UserError, match="is empty; at least one task is needed"):
        TaskFile(tmp_path / "train.jsonl", matching)
    for missing in (tmp_path / "other.jsonl", tmp_path):
        with pytest.raises(UserError, match="There is no games file"):
            TaskFile(missing, matching)


def test_a_damaged_parquet_file_is_told_in_a_sentence(tmp_path):
    game, path = game_of("kuhn", seating=["policy", "policy"]), tmp_path / "train.parquet"
    write_tasks(path, game.taskset.tasks("train", 50))
    whole = path.read_bytes()
    for damage in (whole[:-20], b"", b"no parquet at all", whole[:40] + bytes(60) + whole[100:]):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"train\.parquet") as error:
            TaskFile(path, game)
        assert "\n" not in str(error.value)
    write_tasks(path, [*game.taskset.tasks("train", 2), Task("last", "", {"seed": -4})])
    with pytest.raises(UserError, match=r"train\.parquet, line 3 is not a task: its seed is -4"):
        TaskFile(path, game)


def test_the_longest_prompt_is_known_without_reading_the_file_again(tmp_path, matching, renderer, tasks, monkeypatch):
    path = tmp_path / "train.jsonl"
    write_tasks(path, [replace(task, prompt=task.prompt + " " * 99 * (n == 5)) for n, task in enumerate(tasks)])
    opened = TaskFile(path, matching)
    monkeypatch.delattr(TaskFile, "__getitem__")
    asyncio.run(check_context(matching, opened, renderer, 512, 32))
    assert opened.longest.game_id == tasks[5].game_id


def test_groups_play_several_games_in_the_ratio_of_their_weights():
    tasks = {name: [Task(f"{name}-{n}") for n in range(4)] for name in ("calls", "words")}
    mixture = Mixture(tasks, {"calls": 3.0, "words": 1.0})
    drawn = [mixture[number] for number in range(40)]
    assert Counter(name for name, *_ in drawn) == {"calls": 30, "words": 10}
    for number in range(4, 41, 4):  # every prefix has the ratio
        assert Counter(name for name, *_ in drawn[:number])["words"] == number // 4
    for name in tasks:  # in order, again from the start when they run out
        ids = [task.game_id for n, task in drawn if n == name]
        assert ids == [f"{name}-{i % 4}" for i in range(len(ids))]
    assert Mixture(tasks, {"calls": 3.0, "words": 1.0})[39] == drawn[39]  # whatever was asked for before
    assert list(islice(draw({"only": 0.1}), 3)) == [("only", 0), ("only", 1), ("only", 2)]
