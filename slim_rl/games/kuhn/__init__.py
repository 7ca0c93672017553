"""Kuhn poker, one hand of TextArena's, in chips; small enough to be solved exactly."""

from slim_rl.core.errors import UserError
from slim_rl.core.game import Taskset
from slim_rl.games.textarena.parameters import Parameters

__all__ = ["Parameters", "taskset"]


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.kuhn.tasks import KuhnTaskset

    if variant:
        raise UserError(f"Kuhn poker has no variants; name it kuhn, not kuhn:{variant}.")
    return KuhnTaskset(parameters, seed)
