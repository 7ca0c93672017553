"""The matching game's tasks: boards, or seeds of boards."""

import json
from itertools import product

import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.games import game_parameters, load_games
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.tasks import MatchingTaskset


def test_a_task_is_json_and_its_prompt_is_what_the_first_seat_reads():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    assert json.loads(json.dumps(task.state)) == task.state
    assert task.game_id == "matching-3-stakes-0-0" and taskset.load(task).observe("player-1") == task.prompt


def test_a_damaged_seed_or_board_is_rejected():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    taskset.check(task)
    damaged = [({**task.state, "mask1": [[1]]}, "mask1 must be")]
    damaged += [({"seed": seed}, r"its seed is .*, not a whole number") for seed in ("1", -1, 1.5, True, None)]
    for (state, reason), use in product(damaged, (taskset.check, taskset.load)):
        with pytest.raises(ValueError, match=reason):
            use(Task("one", state=state))


def test_parameters_left_out_are_those_of_the_selection():
    faithful = Parameters(selection="dialop", stake=1.1)
    assert (faithful.p_agent, faithful.p_partner, faithful.scale_range, faithful.stake) == (0.4, 0.4, (1, 10), 1.1)
    assert Parameters().scale_range == (1, 1) and Parameters().seating == ("policy", "scripted")


@pytest.mark.parametrize("scales", [(5, 2), (0.5, 2), (1, 10**19)])
def test_scales_that_make_no_sense_are_rejected(scales):
    with pytest.raises(ValueError, match="two numbers with 1 <= low <= high <= 1000"):
        Parameters(scale_range=scales)


def test_it_has_no_variants():
    with pytest.raises(UserError, match="no variants"):
        load_games({"matching:large": game_parameters("matching:large", {})}, seed=0)
