"""The paper-reviewer matching game of DialOp, with a shy partner."""

from slim_rl.core.errors import UserError
from slim_rl.core.game import Taskset
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.reader import asked_cells

__all__ = ["Parameters", "asked_cells", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.matching.tasks import MatchingTaskset

    if variant:
        raise UserError(f"The matching game has no variants; name it matching, not matching:{variant}.")
    return MatchingTaskset(parameters, seed)
