"""Runs SLIME."""

import json
import math
import os
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.players.services import LEDGERS_VARIABLE, ledgers
from slim_rl.rollout.tasks import Mixture
from slim_rl.runtime.files import write_whole
from slim_rl.runtime.process import end
from slim_rl.slime.arguments import HELD_OUT, HOOKS, TRAIN, arguments
from slim_rl.slime.parameters import PARAMETERS, RunParameters

ROOT = Path(__file__).parents[2]
_GRACE_SECONDS = 60.0
_ROOM_FOR_FILTERED = 4
"""Tasks written for each group that the run trains on; the filters drop some. After more SLIME repeats tasks."""
Tasks = Mapping[str, Sequence[Task]]
"""By the names of the games."""


def run(parameters: RunParameters, base: Path, train: Tasks, held_out: Tasks, folder: Path) -> Path:
    """Train with SLIME, from the last checkpoint in `folder` if there is one.

    If this process is interrupted, it ends what it started and nothing else.

    Args:
        base: Hugging Face checkpoint folder to start from.
        train, held_out: the tasks to train and to evaluate on.

    Returns:
        The Hugging Face checkpoint folder that the last step left.

    Raises:
        UserError: SLIME exited with an error.
    """
    base, folder = base.resolve(), folder.resolve()
    prepare(parameters, train, held_out, folder)
    _forget_unfinished_save(folder)
    job = f"slim-rl-{folder.name}-{int(time.time())}"
    code = _run(parameters, command(parameters, arguments(parameters, base, folder), job), job)
    last = parameters.train.steps - 1
    if last not in _saved(folder):
        raise UserError(
            f"SLIME ended with exit code {code} before step {last + 1} was saved; its last lines above say why. "
            f"Finished work is in {folder}; the same command continues from its last checkpoint."
        )
    return folder / "hf" / str(last)


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
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def command(parameters: RunParameters, slime_arguments: Sequence[str], job: str) -> list[str]:
    """The whole command: a job for the cluster at `slime.ray_address`, or SLIME on a cluster of its own."""
    slime = parameters.slime
    train = [slime.python, str(_directory(parameters) / "train.py"), *slime_arguments]
    variables = environment(parameters)
    if _ray_address(parameters) is None:
        return ["env", "RAY_ADDRESS=local", *(f"{k}={v}" for k, v in variables.items()), *train]
    runtime = json.dumps({"env_vars": variables})
    options = ("--submission-id", job, "--runtime-env-json", runtime)
    return [*_ray_job(parameters, "submit"), *options, "--", *train]


def environment(parameters: RunParameters) -> dict[str, str]:
    """What SLIME's processes need to find the code, the user's modules too. It has no keys: they belong to the
    environment in which Ray was started."""
    slime = _directory(parameters)
    users = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    paths = [slime, slime.parent / "Megatron-LM", ROOT, Path.cwd(), *users]
    return {
        "PYTHONPATH": ":".join(dict.fromkeys(map(str, paths))),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        LEDGERS_VARIABLE: str(ledgers().absolute()),
    }


def _run(parameters: RunParameters, words: Sequence[str], job: str) -> int:
    """Run SLIME to its end; returns its exit code, or that of the last command that followed its log."""
    while True:
        process = subprocess.Popen(words, start_new_session=True)
        try:
            code = process.wait()
        except BaseException:
            if _ray_address(parameters):
                subprocess.run([*_ray_job(parameters, "stop"), job], check=False)
            raise
        finally:
            end(process, _GRACE_SECONDS)
        if not (code and _is_running(parameters, job)):
            return code
        words = [*_ray_job(parameters, "logs"), "--follow", job]  # the connection broke


def _is_running(parameters: RunParameters, job: str) -> bool:
    if not _ray_address(parameters):
        return False
    status = subprocess.run([*_ray_job(parameters, "status"), job], capture_output=True, text=True, check=False)
    return "RUNNING" in status.stdout or "PENDING" in status.stdout


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


SBATCH = """#!/bin/bash
#SBATCH --job-name=slim-rl
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
set -euo pipefail
export {environment}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ray="{ray}"
ray_start="$ray start --num-gpus={gpus} --disable-usage-stats --block"
srun --overlap --nodes=1 --ntasks=1 -w "$head" \\
    $ray_start --head --node-ip-address="$head" --port=6379 --dashboard-host=0.0.0.0 --dashboard-port=8265 &
export RAY_API_SERVER_ADDRESS="http://$head:8265"
until $ray job list >/dev/null 2>&1; do sleep 2; done
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude "$head" \\
        $ray_start --address="$head:6379" &
fi
until [ "$($ray list nodes --filter state=ALIVE --format json | grep -c '"node_id"')" -ge "$SLURM_NNODES" ]; do sleep 2; done
make -C {root} repro PROFILE={profile}
"""


def sbatch(parameters: RunParameters, profile: str | None, root: Path = ROOT) -> str:
    """A Slurm script that starts Ray on all nodes of the job and runs the pipeline; all of it ends with the job."""
    slime = parameters.slime
    return SBATCH.format(
        nodes=slime.nodes + math.ceil((slime.rollout_gpus or 0) / slime.gpus_per_node),
        gpus=slime.gpus_per_node,
        environment=" ".join(f"{k}={shlex.quote(v)}" for k, v in environment(parameters).items()),
        ray=shlex.join(_ray(parameters)),
        root=shlex.quote(str(root)),
        profile=profile or "",
    )


def _ray(parameters: RunParameters) -> tuple[str, ...]:
    """Ray's command line, from the Python that has it."""
    return parameters.slime.python, "-m", "ray.scripts.scripts"


def _ray_job(parameters: RunParameters, verb: str) -> tuple[str, ...]:
    return *_ray(parameters), "job", verb, "--address", str(_ray_address(parameters))


def _ray_address(parameters: RunParameters) -> str | None:
    """Ray's own environment variable replaces the parameter."""
    return parameters.slime.ray_address or os.environ.get("RAY_API_SERVER_ADDRESS")


def _directory(parameters: RunParameters) -> Path:
    given = parameters.slime.directory
    directory = Path(given or "").expanduser()
    if given is None or not (directory / "train.py").exists():
        raise UserError(
            f"slime.directory is {given}, but must be the folder of SLIME's source; get it with "
            "git clone --branch v0.3.1 https://github.com/THUDM/slime, or use SLIME's container image."
        )
    return directory.resolve()
