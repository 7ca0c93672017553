"""The paper-reviewer matching game of DialOp, with a shy partner."""

from slim_rl.core.game import Taskset
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.reader import asked_cells

__all__ = ["Parameters", "asked_cells", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.matching.tasks import MatchingTaskset

    return MatchingTaskset(parameters, seed)
