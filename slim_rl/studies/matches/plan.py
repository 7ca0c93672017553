"""Every player against every other, in both seats; and exact solutions, where a game has one."""

import json
from collections.abc import Sequence
from itertools import combinations, product

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.games import policy_seats
from slim_rl.runtime.files import write_text
from slim_rl.studies.matches.parameters import Parameters

RANKED = 4
"""Snapshots that also play against other models."""


def series(run: Evaluation) -> list[Series]:
    """Every checkpoint and snapshot against every opponent, and RANKED of the snapshots against each other and the
    checkpoints. A pair plays each task twice, so that both play both seats, but a model only those that it is trained in.
    In these seats the game's rules, if it has some, meet every opponent, too.

    Models do not meet each other at temperature 0, where they would play one game over and over, nor in
    `evaluate.server`, which holds one of them at a time.
    """
    parameters, seats = run.parameters, run.game.taskset.seats
    assert isinstance(parameters, Parameters)
    if len(seats) != 2:
        raise UserError(f"The study matches needs a game of two seats, but {run.game.name} has {', '.join(seats)}.")
    opponents = parameters.opponents or run.game.taskset.opponents
    models = [*run.checkpoints, *run.snapshots]
    ranked = {*run.checkpoints, *_spread(list(run.snapshots), RANKED)}
    pairs = [(name, opponent) for name in models for opponent in opponents]
    if run.evaluate.temperature and not run.evaluate.server:
        pairs += [pair for pair in combinations(models, 2) if ranked.issuperset(pair)]
    pairs += combinations(opponents, 2)
    trained, planned = policy_seats(run.game), []
    for one, other in pairs:
        few = {one, other} & set(run.snapshots) or "trained" not in (one, other)
        tasks = run.tasks[: parameters.snapshot_games] if few else run.tasks
        for seated in ((one, other), (other, one)):
            if all(seat in trained for seat, player in zip(seats, seated, strict=True) if player in models):
                planned.append(_match(run, tasks, seated))
    for seat, opponent in product(trained, opponents):
        for rule in run.game.taskset.rules.get(seat, ()):
            planned.append(_match(run, run.tasks, (rule, opponent) if seat == seats[0] else (opponent, rule)))
    return planned


def _match(run: Evaluation, tasks: Sequence[Task], seated: tuple[str, str]) -> Series:
    return run.series(f"matches/{seated[0]}-against-{seated[1]}", tasks, seated)


def finish(run: Evaluation) -> None:
    """Solve a game that can be solved: `solved.json`.

    A model that thinks has too many ways to decide, and a server does not tell probabilities of turns that were
    not sampled.
    """
    if run.game.taskset.decisions() and not run.model.thinking and run.evaluate.server is None:
        from slim_rl.studies.matches.exact import solve

        models = {**run.checkpoints, **run.snapshots}
        worth = solve(run.game.taskset, models, run.model, run.evaluate.temperature)
        write_text(run.folder / "solved.json", json.dumps(worth, indent=2) + "\n")


def _spread(names: list[str], count: int) -> list[str]:
    """At most `count` of `names`, evenly spread, the last one among them."""
    return names[::-1][:: max(1, -(-len(names) // count))]
