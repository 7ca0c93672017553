"""One writes a program, the other says what it prints."""

from slim_rl.core.errors import UserError
from slim_rl.core.game import Taskset
from slim_rl.games.prediction.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.prediction.tasks import PredictionTasks

    if variant:
        raise UserError(f"The game prediction has no variants; name it prediction, not prediction:{variant}.")
    return PredictionTasks(parameters, seed)
