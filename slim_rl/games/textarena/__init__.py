"""Any two-player game of TextArena: `textarena:NAME`, with the name it is registered under there."""

from slim_rl.core.game import Taskset
from slim_rl.games.textarena.parameters import Parameters

__all__ = ["VARIANTS", "Parameters", "taskset"]
VARIANTS = True
"""Whether its name may have a part after a colon."""


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.textarena.tasks import TextArenaTaskset, registered

    return TextArenaTaskset(parameters, seed, f"textarena:{variant}", registered(variant))
