"""Both checkpoints and players without a model in free play; and the checkpoints without the choice whether to call, on
the same tasks for every model.

* `forbidden`: the token that begins a call is never drawn.
* `forced-K`: the first K turns are calls that a player without a model makes; then calls are forbidden.

What a model does not choose is never trained on: its loss mask is 0.
"""

from collections.abc import Sequence
from functools import partial

from slim_rl.core.message import Message
from slim_rl.core.player import Constraint, Player
from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.players.forced import Forced
from slim_rl.rollout.seating import Seat
from slim_rl.studies.calls.parameters import Parameters

CALLER = "calls"
"""The game's player whose calls are forced upon the model."""
TASKS = 512
"""Held-out tasks that are played with calls forbidden or forced."""


def series(run: Evaluation) -> list[Series]:
    parameters = run.parameters
    assert isinstance(parameters, Parameters)
    few, arms = run.tasks[:TASKS], {"forbidden": 0, **{f"forced-{calls}": calls for calls in parameters.forced}}
    planned = []
    for player in run.checkpoints:
        planned.append(run.series(f"held-out/{player}", run.tasks, run.seated(player)))
        for arm, calls in arms.items():
            rules = {player: partial(forced, calls)}
            planned.append(run.series(f"intervention/{player}-{arm}", few, run.seated(player), rules, arm=arm))
    references = parameters.references
    return planned + [run.series(f"held-out/{player}", run.tasks, run.seated(player)) for player in references]


def forced(calls: int, player: Player, seat: Seat) -> Player:
    """Makes the first calls of the game's player CALLER, `calls` of them, and none of its own."""
    turns = 0
    caller = seat.of.taskset.player(CALLER, seat.game, seat.name, seat.seed) if calls else None

    async def rule(observation: Sequence[Message], attempts: Sequence[Message]) -> Message | Constraint | None:
        nonlocal turns
        if attempts:
            return None
        turns += 1
        if caller is not None and turns <= calls:
            message = await caller.respond(observation, seat.game.tools(seat.name))
            if message.tool_calls:
                return message
        return Constraint(calls=False)

    return Forced(player, rule)
