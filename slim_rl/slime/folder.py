"""The folder of a run: what SLIME and the hooks read there, and the checkpoints that SLIME leaves."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from slim_rl.core.game import Task
from slim_rl.rollout.tasks import Mixture
from slim_rl.runtime.files import write_text
from slim_rl.slime.parameters import RunParameters

PARAMETERS, HOOKS = "parameters.json", "hooks.yaml"
TRAIN, HELD_OUT = "train.jsonl", "held_out.jsonl"
_ROOM_FOR_FILTERED = 4
"""Tasks written for each group that the run trains on, since filters drop groups. After the last SLIME starts over."""
Tasks = Mapping[str, Sequence[Task]]
"""By the names of the games."""


def prepare(parameters: RunParameters, train: Tasks, held_out: Tasks, folder: Path) -> None:
    """Write the parameters and the tasks."""
    parameters.write(folder / PARAMETERS)
    write_text(folder / HOOKS, yaml.safe_dump({"slim_rl_folder": str(folder), "slim_rl_home": os.getcwd()}))
    weights = {name: game.weight for name, game in parameters.games.items()}
    needed = parameters.train.steps * parameters.train.games_per_step * _ROOM_FOR_FILTERED
    evaluated = (task_line(name, task) for name in held_out for task in held_out[name])
    for name, lines in ((TRAIN, _mixed(train, weights, needed)), (HELD_OUT, evaluated)):
        write_text(folder / name, "".join(json.dumps(line) + "\n" for line in lines))


def task_line(game: str, task: Task) -> dict[str, Any]:
    """A task for SLIME's data source and `slim_rl.slime.samples`."""
    metadata = {"task": {"game": game, "state": dict(task.state)}}
    return {"prompt": task.prompt, "game_id": task.game_id, "metadata": metadata}


def _mixed(tasks: Tasks, weights: Mapping[str, float], needed: int) -> Iterator[dict[str, Any]]:
    """The games in the ratio of their weights, until every task has come or there are `needed`."""
    mixture = Mixture(tasks, weights)
    missing = {name: len(of_game) for name, of_game in tasks.items()}
    for number in range(needed):
        if all(count <= 0 for count in missing.values()):
            return
        name, task = mixture[number]
        yield task_line(name, task)
        missing[name] -= 1


def saved(folder: Path) -> list[int]:
    """The steps with a whole checkpoint. SLIME writes Megatron's first, then the Hugging Face one with its index last,
    then its position in the tasks."""
    steps = (int(path.parent.name) for path in folder.glob("hf/*/model.safetensors.index.json"))
    return sorted(n for n in steps if (folder / f"megatron/rollout/global_dataset_state_dict_{n}.pt").exists())


def forget_unfinished_save(folder: Path) -> None:
    """Make SLIME continue from the last whole checkpoint, if it was killed while it saved a later one."""
    tracker, whole = folder / "megatron/latest_checkpointed_iteration.txt", saved(folder)
    if tracker.exists() and tracker.read_text().strip() not in map(str, whole):
        if whole:
            tracker.write_text(str(whole[-1]))
        else:
            tracker.unlink()
