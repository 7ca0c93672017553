"""Any environment that speaks the Open Reward Standard, hosted by OpenReward or on a server of one's own.

`openreward:ORG/NAME` is a hosted environment, `openreward:http://HOST:PORT` a server.
Protocol: https://openrewardstandard.io, as `ors-sdk` 0.1.0 and `openreward` 0.1.167 speak it.
"""

from slim_rl.core.game import Taskset
from slim_rl.games.openreward.parameters import Parameters

__all__ = ["VARIANTS", "Parameters", "taskset"]
VARIANTS = True
"""Whether its name may have a part after a colon."""


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.openreward.tasks import Environment

    return Environment(parameters, seed, variant)
