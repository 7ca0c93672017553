"""Runs SLIME."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.rollout.tasks import Mixture
from slim_rl.runtime.files import write_text
from slim_rl.runtime.work import WORK_VARIABLE, work_root
from slim_rl.slime.arguments import HELD_OUT, HOOKS, TRAIN, arguments
from slim_rl.slime.job import RUNS, Job, run_here
from slim_rl.slime.parameters import PARAMETERS, RunParameters
from slim_rl.slime.progress import Log, Progress
from slim_rl.slime.version import check_version

ROOT = Path(__file__).parents[2]
JOB = "job.txt"
"""In the folder of a run, the name of its last job."""
_ROOM_FOR_FILTERED = 4
"""Tasks written for each group that the run trains on; the filters drop some. After more SLIME repeats tasks."""
Tasks = Mapping[str, Sequence[Task]]
"""By the names of the games."""


def run(
    parameters: RunParameters,
    base: Path,
    train: Tasks,
    held_out: Tasks,
    folder: Path,
    log: Log = lambda metrics, step: None,
) -> Path:
    """Train with SLIME, from the last checkpoint in `folder` if there is one.

    If this process is interrupted, it ends what it started and nothing else.

    Args:
        base: Hugging Face checkpoint folder to start from.
        train, held_out: the tasks to train and to evaluate on.
        log: is called with the metrics of each step and its number, those of earlier processes first.

    Returns:
        The Hugging Face checkpoint folder that the last step left.

    Raises:
        UserError: SLIME cannot be started, or exited with an error.
    """
    base, folder = base.resolve(), folder.resolve()
    last, saved = parameters.train.steps - 1, _saved(folder)
    progress = Progress(folder, saved, log)
    if last in saved:
        return folder / "hf" / str(last)
    if saved and last < saved[-1]:
        raise UserError(
            f"train.steps is {last + 1}, but the run in {folder} has {saved[-1] + 1} steps already. Give more, or a "
            f"number of which it has a checkpoint: {', '.join(str(step + 1) for step in saved)}."
        )
    check(parameters)
    job = _job_under_way(parameters, folder)
    if job is not None:
        print(f"The job {job.name} is under way already; following it.")
    else:
        prepare(parameters, train, held_out, folder)
        _forget_unfinished_save(folder)
    ended = _run(parameters, command(parameters, base, folder), folder, job, progress.tell)
    progress.tell()
    if last not in _saved(folder):
        raise UserError(
            f"SLIME {ended} before step {last + 1} was saved; its last lines above say why. "
            f"Finished work is in {folder}; the same command continues from its last checkpoint."
        )
    return folder / "hf" / str(last)


def check(parameters: RunParameters) -> None:
    """Check SLIME's version and Python, and say what was found. Raises UserError."""
    if shutil.which(parameters.slime.python) is None:
        raise UserError(f"slime.python is {parameters.slime.python}, which cannot be found.")
    print(check_version(directory(parameters)))


def prepare(parameters: RunParameters, train: Tasks, held_out: Tasks, folder: Path) -> None:
    """Write what SLIME and the hooks read: the parameters and the tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    parameters.write(folder / PARAMETERS)
    (folder / HOOKS).write_text(yaml.safe_dump({"slim_rl_folder": str(folder), "slim_rl_home": os.getcwd()}))
    weights = {name: game.weight for name, game in parameters.games.items()}
    needed = parameters.train.steps * parameters.train.games_per_step * _ROOM_FOR_FILTERED
    _write_lines(folder / TRAIN, _mixed(train, weights, needed))
    _write_lines(folder / HELD_OUT, (task_line(name, *task) for name in held_out for task in enumerate(held_out[name])))


def _mixed(tasks: Tasks, weights: Mapping[str, float], needed: int) -> Iterator[dict[str, Any]]:
    """The games in the ratio of their weights, until every task has come or there are as many as the run needs. SLIME
    starts again from the first."""
    mixture = Mixture(tasks, weights)
    missing = {name: len(of_game) for name, of_game in tasks.items()}
    for number in range(needed):
        if all(count <= 0 for count in missing.values()):
            return
        name, place, task = mixture[number]
        yield task_line(name, place, task)
        missing[name] -= 1


def task_line(game: str, place: int, task: Task) -> dict[str, Any]:
    """A task as SLIME's data source and `slim_rl.slime.samples` read it; `place` counts the tasks of its game."""
    metadata = {"task": {"game": game, "place": place, "state": dict(task.state)}}
    return {"prompt": task.prompt, "game_id": task.game_id, "metadata": metadata}


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def command(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """SLIME's script with its arguments, run by its Python."""
    script = "train.py" if parameters.slime.mode == "sync" else "train_async.py"
    return [parameters.slime.python, str(directory(parameters) / script), *arguments(parameters, base, folder)]


def whole_command(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """The same as it can be typed: a job for the cluster at `slime.ray_address`, or SLIME on a cluster of its own."""
    words = command(parameters, base, folder)
    address = ray_address(parameters)
    if address is None:
        return ["env", *_assigned(environment(parameters)), *words]
    job = Job(ray(parameters), address, _job_name(folder))
    return [*job.words("submit"), *job.options(_runtime(parameters)), "--", *words]


def _job_name(folder: Path) -> str:
    return f"slim-rl-{folder.name}-{int(time.time())}"


def _runtime(parameters: RunParameters) -> str:
    return json.dumps({"env_vars": environment(parameters)})


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return ["RAY_ADDRESS=local", *(f"{name}={value}" for name, value in variables.items())]


def environment(parameters: RunParameters) -> dict[str, str]:
    """What SLIME's processes need to find the code, the user's modules too. It has no keys: they belong to the
    environment in which Ray was started."""
    slime = directory(parameters)
    users = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    paths = [slime, slime.parent / "Megatron-LM", ROOT, Path.cwd(), *users]
    return {
        "PYTHONPATH": ":".join(dict.fromkeys(map(str, paths))),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        WORK_VARIABLE: str(work_root().absolute()),
    }


def _run(
    parameters: RunParameters, words: Sequence[str], folder: Path, job: Job | None, tick: Callable[[], None]
) -> str:
    """Run SLIME to its end, or only follow the `job` that is under way; returns how it ended."""
    address = ray_address(parameters)
    if address is None:
        code = run_here(["env", *_assigned(environment(parameters)), *words], tick)
        return f"ended with exit code {code}"
    if job is None:
        job = Job(ray(parameters), address, _job_name(folder))
        write_text(folder / JOB, job.name)
        job.submit(_runtime(parameters), words)
    return f"ended as {job.follow(tick)}"


def _job_under_way(parameters: RunParameters, folder: Path) -> Job | None:
    """The job of this folder that is running without us: the process that followed it was killed."""
    address, noted = ray_address(parameters), folder / JOB
    if address is None or not noted.exists():
        return None
    job = Job(ray(parameters), address, noted.read_text())
    return job if job.status() in RUNS else None


def _saved(folder: Path) -> list[int]:
    """The steps with a whole checkpoint. SLIME writes Megatron's first, then the Hugging Face one with its index last,
    then its position in the tasks."""
    found = (int(path.parent.name) for path in folder.glob("hf/*/model.safetensors.index.json"))
    return sorted(n for n in found if (folder / f"megatron/rollout/global_dataset_state_dict_{n}.pt").exists())


def _forget_unfinished_save(folder: Path) -> None:
    """Let SLIME go on from the last whole checkpoint, if it was killed while it saved a later one."""
    tracker, saved = folder / "megatron/latest_checkpointed_iteration.txt", _saved(folder)
    if tracker.exists() and tracker.read_text().strip() not in map(str, saved):
        if saved:
            tracker.write_text(str(saved[-1]))
        else:
            tracker.unlink()


def ray(parameters: RunParameters) -> tuple[str, ...]:
    """Ray's command line, from the Python that has it."""
    return parameters.slime.python, "-m", "ray.scripts.scripts"


def ray_address(parameters: RunParameters) -> str | None:
    """Ray's own environment variable replaces the parameter."""
    return parameters.slime.ray_address or os.environ.get("RAY_API_SERVER_ADDRESS")


def directory(parameters: RunParameters) -> Path:
    """SLIME's source."""
    return Path(parameters.slime.directory or "").expanduser().resolve()
