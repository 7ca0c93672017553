"""How SLIME is called."""

import json
import os
import time
from pathlib import Path

from slim_rl.runtime.code import WORK_VARIABLE, work_root
from slim_rl.slime.arguments import arguments
from slim_rl.slime.config import SlimeConfig
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.session import STOP_SECONDS
from slim_rl.slime.source import directory, keeps_engines, script

ROOT = Path(__file__).parents[2]


def command(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """SLIME's script with its arguments, run by its Python."""
    return [parameters.slime.python, str(script(parameters.slime)), *arguments(parameters, base, folder)]


def job_command(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """The same as a job of a cluster that stays up."""
    words = command(parameters, base, folder)
    if keeps_engines(parameters.slime):
        return [parameters.slime.python, "-m", "slim_rl.slime.session", str(folder), *words]
    return words


def local(slime: SlimeConfig, command: list[str]) -> list[str]:
    """The same with its environment, on a Ray cluster of this machine."""
    variables = (f"{name}={value}" for name, value in environment(slime).items())
    return ["env", "RAY_ADDRESS=local", *variables, *command]


def shown(parameters: RunParameters, base: Path, folder: Path) -> list[str]:
    """The same as a user can type it: a job for the cluster at `slime.ray_address`, or SLIME on this machine."""
    slime, address = parameters.slime, ray_address(parameters.slime)
    if address is None:
        return local(slime, command(parameters, base, folder))
    runtime = json.dumps({"env_vars": environment(slime)})
    options = ("--address", address, "--submission-id", job_name(folder), "--runtime-env-json", runtime)
    return [*ray(slime), "job", "submit", *options, "--", *job_command(parameters, base, folder)]


def environment(slime: SlimeConfig) -> dict[str, str]:
    """What SLIME's processes need to find the code, the user's modules too. It has no keys: they belong to the
    environment in which Ray is started."""
    source = directory(slime)
    users = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    paths = [source, source.parent / "Megatron-LM", ROOT, Path.cwd(), *users]
    variables = {
        "PYTHONPATH": ":".join(dict.fromkeys(map(str, paths))),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        WORK_VARIABLE: str(work_root().absolute()),
    }
    if keeps_engines(slime):
        variables["RAY_JOB_STOP_WAIT_TIME_S"] = str(STOP_SECONDS)
    return variables


def job_name(folder: Path) -> str:
    return f"slim-rl-{folder.name}-{int(time.time())}"


def ray(slime: SlimeConfig) -> tuple[str, ...]:
    """Ray's command line, from the Python that has it."""
    return slime.python, "-m", "ray.scripts.scripts"


def ray_address(slime: SlimeConfig) -> str | None:
    """Ray's own environment variable replaces the parameter."""
    return slime.ray_address or os.environ.get("RAY_API_SERVER_ADDRESS")
