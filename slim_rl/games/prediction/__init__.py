"""One writes a program, the other says what it prints."""

from slim_rl.core.game import Taskset
from slim_rl.games.prediction.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.prediction.tasks import PredictionTasks

    return PredictionTasks(parameters, seed)
