"""Both checkpoints and players without a model in free play; and the checkpoints with calls forbidden or forced."""

from functools import partial

from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.studies.calls.forced import FORBIDDEN, forced
from slim_rl.studies.calls.parameters import Parameters

CALLER = "calls"
"""The game's player whose calls are forced upon the model."""
TASKS = 512
"""Held-out tasks that are played with calls forbidden or forced."""


def series(run: Evaluation) -> list[Series]:
    parameters = run.parameters
    assert isinstance(parameters, Parameters)
    few, arms = run.tasks[:TASKS], {FORBIDDEN: 0, **{f"forced-{calls}": calls for calls in parameters.forced}}
    planned = []
    for player in run.checkpoints:
        planned.append(run.series(f"held-out/{player}", run.tasks, run.seated(player)))
        for arm, calls in arms.items():
            rules = {player: partial(forced, calls, CALLER)}
            planned.append(run.series(f"intervention/{player}-{arm}", few, run.seated(player), rules, arm=arm))
    references = parameters.references
    return planned + [run.series(f"held-out/{player}", run.tasks, run.seated(player)) for player in references]
