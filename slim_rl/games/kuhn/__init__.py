"""Kuhn poker, one hand of TextArena's, in chips; small enough to be solved exactly."""

from slim_rl.core.game import Taskset
from slim_rl.games.textarena.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.kuhn.tasks import KuhnTaskset

    return KuhnTaskset(parameters, seed)
