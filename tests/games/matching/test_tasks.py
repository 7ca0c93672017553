"""The matching game's tasks: boards, or seeds of boards."""

import json
from itertools import product

import pytest

from slim_rl.core.game import Task
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.tasks import MatchingTaskset


def test_a_task_is_json_and_its_prompt_is_what_the_first_seat_reads():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    assert json.loads(json.dumps(task.state)) == task.state
    assert task.game_id == "matching-3-stakes-0-0" and taskset.load(task).read("player-1") == task.prompt


def test_the_ground_truth_is_a_proposal_that_earns_everything():
    for task in MatchingTaskset(Parameters(selection="dialop"), seed=0).tasks("train", 8):
        game = MatchingTaskset(Parameters(selection="dialop"), seed=0).load(task)
        for text in (f"[propose] {task.ground_truth}", "[accept]"):
            game.move(text)
        assert game.quality == 1 and task.optimal_score == game.board.best_assignment_reward


def test_what_asking_costs_is_told_to_both_players_and_varies_by_game():
    taskset = MatchingTaskset(Parameters(patience=(1, 5), question_price=(0, 3)), seed=0)
    drawn = set()
    for task in taskset.tasks("train", 64):
        game = taskset.load(task)
        prompts = dict(zip(game.seats, map(game.read, game.seats), strict=True))
        metrics = game.metrics()
        patience, price, turns = metrics["patience"], metrics["price"], metrics["turn_limit"] // 2
        assert patience in range(1, 6) and turns in range(patience + 3, patience + 6)
        drawn.add((patience, price))
        for seat, scores in (("player-1", "Scores left"), ("player-2", "Scores you tell")):
            cost = f"Price of a score in percent: {price}\n" if price else ""
            assert prompts[seat].endswith(f"\nTurns left: {turns}\n{cost}{scores}: {patience}")
    assert len(drawn) > 15
    plain = MatchingTaskset(Parameters(), seed=0)
    [task] = plain.tasks("train", 1)
    assert task.prompt.endswith("\nTurns left: 10") and "patience" not in plain.load(task).metrics()


def test_where_turns_are_not_told_only_the_patience_says_how_much_can_be_asked():
    taskset = MatchingTaskset(Parameters(patience=(1, 5), turns_told=False, max_questions=5), seed=0)
    for purpose in ("train", "demonstrations"):
        for task in taskset.tasks(purpose, 16):
            game = taskset.load(task)
            prompts = [game.read(seat) for seat in game.seats]
            assert task.prompt == prompts[0] and not any("Turns" in prompt for prompt in prompts)
            assert prompts[0].endswith(f"\nScores left: {game.limits.patience}")
            assert all("the game ends without a reward" in prompt for prompt in prompts)
            assert game.limits.max_turns == 20 if purpose == "demonstrations" else game.limits.max_turns <= 18


def test_a_damaged_seed_or_board_is_rejected():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    taskset.check(task)
    damaged = [({**task.state, "mask1": [[1]]}, "mask1 must be")]
    damaged += [({**task.state, name: -1}, f"its {name} is -1, not a whole") for name in ("price", "patience")]
    damaged += [({"seed": seed}, r"its seed is .*, not a whole number") for seed in ("1", -1, 1.5, True, None)]
    for (state, reason), use in product(damaged, (taskset.check, taskset.load)):
        with pytest.raises(ValueError, match=reason):
            use(Task("one", state=state))


def test_parameters_left_out_are_those_of_the_selection():
    faithful = Parameters(selection="dialop", stake=1.1)
    assert (faithful.p_agent, faithful.p_partner, faithful.scale_range, faithful.stake) == (0.4, 0.4, (1, 10), 1.1)
    assert Parameters().scale_range == (1, 1) and Parameters().seating == ("policy", "scripted")


@pytest.mark.parametrize(
    ("name", "bounds"),
    [("patience", (3, 2)), ("question_price", (-1, 2)), ("spare_turns", (0, 65))]
    + [("scale_range", bounds) for bounds in ((5, 2), (0.5, 2), (1, 10**19))],
)
def test_bounds_that_make_no_sense_are_rejected(name, bounds):
    with pytest.raises(ValueError, match=f"{name} must be two numbers with .* <= low <= high <= "):
        Parameters(**{name: bounds})
