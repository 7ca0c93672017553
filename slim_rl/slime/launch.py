"""Runs SLIME."""

import asyncio
import shutil
import subprocess
from pathlib import Path

from slim_rl.core.errors import UserError
from slim_rl.runtime.files import write_text
from slim_rl.runtime.process import end
from slim_rl.slime.command import command, environment, job_command, job_name, local, ray_address
from slim_rl.slime.folder import Tasks, forget_unfinished_save, prepare, saved
from slim_rl.slime.job import RUNS, Job
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.progress import Log, Progress
from slim_rl.slime.source import check_source

JOB = "job.txt"
"""In the folder of a run, the name of its last job."""


async def run(
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
        The Hugging Face checkpoint folder of the last step.

    Raises:
        UserError: SLIME cannot be started, or exited with an error.
    """
    base, folder = base.resolve(), folder.resolve()
    last, steps = parameters.train.steps - 1, saved(folder)
    progress = Progress(folder, steps, log)
    if last in steps:
        return folder / "hf" / str(last)
    if steps and last < steps[-1]:
        raise UserError(
            f"train.steps is {last + 1}, but the run in {folder} has {steps[-1] + 1} steps already. Give more, or a "
            f"number of which it has a checkpoint: {', '.join(str(step + 1) for step in steps)}."
        )
    if shutil.which(parameters.slime.python) is None:
        raise UserError(f"slime.python is {parameters.slime.python}, which cannot be found.")
    print(check_source(parameters.slime))
    address = ray_address(parameters.slime)
    words = (job_command if address else command)(parameters, base, folder)
    print(f"The run in {folder} " + ("continues." if folder.exists() else "begins."))
    reporting = asyncio.create_task(progress.report())
    try:
        name = address and await _job_under_way(address, folder)
        if name is None:
            prepare(parameters, train, held_out, folder)
            forget_unfinished_save(folder)
        if address:
            ended = await _on_cluster(address, name, words, environment(parameters.slime), folder)
        else:
            ended = await _here(local(parameters.slime, words))
    finally:
        reporting.cancel()
    progress.tell()
    if last not in saved(folder):
        raise UserError(
            f"SLIME {ended} before step {last + 1} was saved; its last lines above say why. "
            f"Finished work is in {folder}; the same command continues from its last checkpoint."
        )
    return folder / "hf" / str(last)


async def _here(command: list[str]) -> str:
    """Run SLIME on this machine to its end; returns how it ended."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while process.poll() is None:
            await asyncio.sleep(1)
        return f"ended with exit code {process.returncode}"
    finally:
        end(process, 60.0)


async def _job_under_way(address: str, folder: Path) -> str | None:
    """The name of the job that a killed process left.

    Raises:
        UserError: the cluster does not say whether it still runs.
    """
    name = (folder / JOB).read_text() if (folder / JOB).exists() else ""
    if not name:
        return None
    async with Job(address, name) as job:
        status = await job.status()
    if status is None:
        raise UserError(
            f"Ray's job server at {address} does not say whether the job {name} still works in {folder}; run this again "
            f"when it answers, or remove {folder / JOB} if the job has ended."
        )
    return name if status in RUNS else None


async def _on_cluster(address: str, name: str | None, words: list[str], variables: dict[str, str], folder: Path) -> str:
    """Run SLIME as a job to its end, or follow the job `name`; returns how it ended."""
    async with Job(address, name or job_name(folder)) as job:
        if name:
            print(f"The job {name} runs already; following it.")
        else:
            write_text(folder / JOB, job.name)
            await job.submit(words, variables)
        return f"ended as {await job.follow()}"
