"""Write a program; it is run, and what comes of it is the reward."""

from slim_rl.core.game import Taskset
from slim_rl.games.execution.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.execution.tasks import FileTasks, GrammarTasks

    return GrammarTasks(parameters, seed) if parameters.file is None else FileTasks(parameters, seed)
