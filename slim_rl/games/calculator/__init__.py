"""Sums that a small model cannot do in its head, and a tool that can. Does it learn to call the tool?"""

from slim_rl.core.game import Taskset
from slim_rl.games.calculator.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.calculator.tasks import Sums

    return Sums(parameters, seed)
