"""Somebody else's agent: a program that talks to an OpenAI endpoint, with its own prompts, tools and control flow.

`agent:my_module:run` names a coroutine `run(task, client)`, `agent` with `command` any program. Both find a door on the
loopback that speaks chat completions. What they ask there, the policy answers, token by token; see `door.py`.
"""

from slim_rl.core.game import Taskset
from slim_rl.games.agent.parameters import Parameters

__all__ = ["VARIANTS", "Parameters", "taskset"]
VARIANTS = True


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.agent.tasks import Agents

    return Agents(parameters, seed, variant)
