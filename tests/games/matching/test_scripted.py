"""References and demonstrators without a model: what they ask, what they earn and what they show."""

import re
from collections import Counter

import numpy as np
import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.game import seed_of
from slim_rl.games.matching.board import optimal_assignment, posterior_mean
from slim_rl.games.matching.names import REVIEWERS, parse_proposal
from slim_rl.games.matching.optimal import best_question, values_of_asking
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import ANSWERS, QUESTIONS, UNKNOWN
from slim_rl.games.matching.reader import asked_cells
from slim_rl.games.matching.rules import MatchingGame
from slim_rl.games.matching.tasks import MatchingTaskset


def numbers_in(text):
    return re.findall(r"\d+", text)


@pytest.fixture(scope="module")
def episodes(play_out):
    """The episodes of a player without a model with a shy partner: (name, count, opponent, parameters) -> list."""

    def episodes(name, count, opponent="scripted", **parameters):
        taskset = MatchingTaskset(Parameters(**{"max_turns": 30, **parameters}), seed=1)
        tasks = taskset.tasks("train", count)
        played = [play_out(taskset, task, (name, opponent), number) for number, task in enumerate(tasks)]
        assert all(episode.status == "completed" for episode in played)
        return played

    return episodes


@pytest.mark.parametrize("scales", [(1, 1), (1, 10)])
@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("own-view", 0),
        *((f"asks-2-{order}", 2) for order in ("random", "table", "unknown", "useful")),
        ("asks-all-random", 9),
    ],
)
def test_a_reference_asks_its_number_of_cells_and_proposes_the_best_by_what_it_knows(episodes, name, questions, scales):
    for episode in episodes(name, 20, scale_range=scales, p_agent=0.3):
        metrics = episode.metrics
        asked = min(questions, metrics["player-1.unknown_cells"])
        assert metrics["player-1.question_count"] == metrics["player-1.useful_cells"] == asked
        assert episode.rewards["player-1"] == metrics["player-1.oracle_given_information"]
        if questions == 0:
            assert episode.rewards["player-1"] == metrics["player-1.own_view"]
        if questions == 9:
            assert episode.rewards["player-1"] > 0.999


def test_a_reference_that_infers_proposes_by_the_posterior_mean_and_a_random_one_by_its_seed(play_out):
    parameters = Parameters(selection="dialop", max_turns=30)
    taskset = MatchingTaskset(parameters, seed=1)
    proposals = set()
    for number, task in enumerate(taskset.tasks("train", 4)):
        game = taskset.load(task)
        mean = posterior_mean(game.board, 0, parameters, np.random.default_rng(number))
        said = play_out(taskset, task, ("bayes", "scripted"), number).turns[0].message.text
        assert parse_proposal(said.removeprefix("[propose]"), 3) == tuple(optimal_assignment(mean))
        said = play_out(taskset, task, ("random", "scripted"), number).turns[0].message.text
        proposals.add(parse_proposal(said.removeprefix("[propose]"), 3))
    assert len(proposals) > 2


@pytest.mark.parametrize("name", ["greedy", "optimal"])
@pytest.mark.parametrize("price", [0, 3, 40])
def test_a_reference_asks_for_the_cell_that_is_worth_most_and_stops_where_none_is_worth_its_price(name, price):
    parameters = Parameters(question_price=(price, price), max_turns=30)
    taskset = MatchingTaskset(parameters, seed=1)
    for task in taskset.tasks("train", 12):
        game = taskset.load(task)
        bounds, unasked = game.board.bounds(0), ~game.board.masks[0]
        points = price / 100 * game.board.best_assignment_reward
        player, heard, left = taskset.player(name, game, "player-1", 0), "", 14
        while True:
            best = best_question(bounds, unasked, left if name == "optimal" else 1, points, parameters.p_partner)
            asked = asked_cells(player.turn(heard).removeprefix("[message] "), 3)
            if best is None:
                assert not asked
                break
            assert asked == [best]
            unasked[best], left = False, left - 1
            bounds[:, *best] = game.board.table[best]
            heard = f"Partner: [message] It is {game.board.table[best]}."


def test_the_least_known_first_leaves_the_rough_ones_for_last_in_a_random_order():
    taskset = MatchingTaskset(Parameters(p_rough=0.5, p_partner=1), seed=0)
    orders = set()
    for task in taskset.tasks("train", 10):
        game = taskset.load(task)
        player, asked, heard = taskset.player("asks-all-unknown", game, "player-1", seed_of(task.game_id)), [], ""
        while cells := asked_cells(player.turn(heard).removeprefix("[message] "), 3):
            asked += cells
            heard = "Partner: [message] I do not know."
        rough = [bool(game.board.rough[cell]) for cell in asked]
        assert len(asked) == (~game.board.masks[0]).sum() and rough == sorted(rough)
        orders.add(tuple(asked))
    assert len(orders) == 10


def test_with_an_ignorant_partner_asking_earns_nothing(episodes):
    for episode in episodes("asks-all-random", 32, "ignorant", patience=(3, 3)):
        assert episode.metrics["player-1.question_count"] == 3 and not episode.metrics["player-1.answers"]
        assert episode.rewards["player-1"] == episode.metrics["player-1.own_view"]


def test_an_unknown_reference_is_an_error_that_names_it():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    with pytest.raises(ValueError, match="asks-lots"):
        taskset.player("asks-lots", taskset.load(task), "player-1", 0)


COUNT = 1280
LESSONS = tuple(slice(int(COUNT * a), int(COUNT * b)) for a, b in ((0, 0.12), (0.12, 0.25), (0.25, 0.45), (0.45, 1)))


@pytest.fixture(scope="module")
def taught():
    taskset = MatchingTaskset(Parameters(patience=(1, 5), max_questions=5), seed=0)
    return taskset, list(taskset.tasks("demonstrations", COUNT))


@pytest.fixture(scope="module")
def shown(taught):
    """(task, its game, what the first seat is shown), of every fifth demonstration."""
    taskset, tasks = taught
    return [(task, taskset.load(task), taskset.demonstrate(task, "player-1")) for task in tasks[::5]]


def test_proposals_alone_come_first_then_few_questions_some_where_more_is_seen_then_many(taught):
    _, tasks = taught
    questions = [{task.state["questions"] for task in tasks[lesson]} for lesson in LESSONS]
    assert list(map(max, questions)) == [0, 2, 3, 5]
    seen = [[np.mean(task.state["mask1"]) for task in tasks[lesson]] for lesson in LESSONS]
    assert list(map(np.mean, seen)) == pytest.approx([0.2, 0.6, 0.2, 0.2], abs=0.05)
    assert min(seen[1]) < 0.1 and max(seen[1]) == 1


def test_what_is_asked_for_is_worth_no_more_than_chance(shown):
    """A cell's rank by what it is worth among the unasked ones: 0 for the least, 1 for the best, 1/2 by chance."""
    ranks = []
    for _, game, demo in shown:
        unasked, bounds = ~game.board.masks[0], game.board.bounds(0)
        for turn, heard in zip(demo.turns, demo.observations[1:], strict=True):
            [cell] = asked_cells(turn.removeprefix("[message] "), 3)
            worth, unasked[cell], number = values_of_asking(bounds), False, numbers_in(heard)
            if unasked.any():
                ranks.append(np.mean((worth[unasked] < worth[cell]) + (worth[unasked] == worth[cell]) / 2))
            if number:
                bounds[:, *cell] = int(number[0])
    assert len(ranks) > 200 and 0.4 < np.mean(ranks) < 0.6


def test_questions_and_answers_are_shown_in_all_wordings_and_no_wording_tells_the_next_one(shown):
    exchanges = Counter(
        tuple(re.sub(r"[A-Z]\w+ (Li|Nguyen|Patel)|BLEU|Electra|GloVe|\d+", "_", text) for text in exchange)
        for _, _, demo in shown
        for exchange in zip(demo.turns, demo.observations[1:], strict=True)
    )
    by_question = {asked: {} for asked, _ in exchanges}
    for (asked, answered), count in exchanges.items():
        by_question[asked][answered] = count
    assert len(by_question) == len(QUESTIONS)
    for answers in by_question.values():
        assert len(answers) >= len(ANSWERS) + len(UNKNOWN) and max(answers.values()) < sum(answers.values()) / 3


def test_each_open_cell_is_asked_for_once_in_the_order_of_the_board_from_any_place(shown):
    first = set()
    for _, game, demo in shown:
        cells = [asked_cells(turn.removeprefix("[message] "), 3)[0] for turn in demo.turns]
        mask = game.view("player-1").mask
        assert len(set(cells)) == len(cells) and not any(mask[cell] for cell in cells)
        numbers = [3 * row + column for row, column in cells]
        turned = [(number - numbers[0]) % 9 for number in numbers]
        assert turned == sorted(turned)
        first |= set(numbers[:1])
    assert first == set(range(9))


def test_a_demonstration_closes_as_well_as_can_be_after_any_number_of_questions(shown):
    for task, game, demo in shown:
        turns = game.limits.max_turns // 2
        assert len(demo.observations) == len(demo.closings) == len(demo.turns) + 1 <= turns
        for number, closing in enumerate(demo.closings[:turns]):
            said = [
                turn for turn, heard in zip(demo.turns, demo.observations[1:], strict=True) for turn in (turn, heard)
            ]
            played = MatchingGame(game.board, game.limits)
            for turn in [*said[: 2 * number], closing, "[accept]"]:
                played.move(turn.removeprefix("Partner: ").partition("\nTurns left")[0])
            best = played.metrics()["player-1.oracle_given_information"]
            assert played.rewards()["player-1"] == pytest.approx(best), task.game_id
    asked = [(len(demo.turns), game.limits.patience) for _, game, demo in shown]
    assert max(questions for questions, _ in asked) == 5 and any(questions > patience for questions, patience in asked)


def test_demonstrators_stop_by_a_habit_and_surely_in_their_last_turn(shown):
    for _, game, demo in shown:
        for asked, stop in enumerate(demo.stopping):
            habit = 0.15 if max(0, game.limits.patience - asked) % 2 else 0.65
            done = asked == (~game.board.masks[0]).sum() or asked + 1 == game.limits.max_turns // 2
            assert stop == (1 if done else habit)
        assert None not in demo.closings
    priced, stops = MatchingTaskset(Parameters(question_price=(1, 5), max_questions=5), seed=0), {}
    for task in priced.tasks("demonstrations", 40):
        stop = {stop for stop in priced.demonstrate(task, "player-1").stopping if stop < 1}
        stops.setdefault(priced.load(task).limits.price, set()).update(stop)
    assert stops == {1: {0.15}, 2: {0.35}, 3: {0.15}, 4: {0.35}, 5: {0.15}}


def test_sums_of_what_is_known_are_written_in_a_thought_and_lead_to_the_proposal(taught):
    sums = MatchingTaskset(Parameters(patience=(1, 5), max_questions=5, write_sums=True), seed=0)
    for task in taught[1][::40]:
        plain, worked = (taskset.demonstrate(task, "player-1") for taskset in (taught[0], sums))
        assert plain.turns == worked.turns and plain.observations == worked.observations
        game = sums.load(task)
        known = np.where(game.view("player-1").mask, game.board.table, 50)
        for number, closing in enumerate(filter(None, worked.closings)):
            if number:
                [cell] = asked_cells(worked.turns[number - 1], 3)
                told = numbers_in(worked.observations[number].partition("\n")[0])
                known[cell] = int(told[0]) if told else known[cell]
            *lines, last = re.search("<think>(.*)</think>", closing, re.DOTALL)[1].split("\n")
            ends = []
            for terms, end in (line.split(" = ") for line in lines):
                total, *names = end.split()
                terms = [term.rsplit(maxsplit=1) for term in terms.split(" + ")]
                cells = [asked_cells(f"What is {pair}?", 3)[0] for pair, _ in terms]
                assert [known[cell] for cell in cells] == [int(score) for _, score in terms]
                assert sum(known[cell] for cell in cells) == int(total)
                assert [REVIEWERS[reviewer].split()[0] for reviewer, _ in cells] == names
                ends.append(end)
            assert len(set(ends)) == 6 and last == max(ends, key=lambda end: int(end.split()[0]))
            papers = parse_proposal(closing.rpartition("</think>")[2], 3)
            assert known[range(3), papers].sum() == int(last.split()[0])


@pytest.mark.parametrize("parameters", [{"size": 4}, {"scale_range": (1.0, 2.0)}])
def test_sums_that_a_model_could_not_write_are_refused(parameters):
    taskset = MatchingTaskset(Parameters(write_sums=True, **parameters), seed=0)
    with pytest.raises(UserError, match="write_sums"):
        taskset.demonstrate(next(taskset.tasks("demonstrations", 1)), "player-1")


def test_the_second_seat_is_shown_every_question_and_in_one_demonstration_of_ten_an_early_proposal():
    taskset, fewer, heard = MatchingTaskset(Parameters(max_questions=5), seed=0), [], set()
    for task in taskset.tasks("demonstrations", 120):
        shown = taskset.demonstrate(task, "player-2")
        assert shown.closings[-1] == "[accept]"
        unseen = int((~taskset.load(task).board.masks[0]).sum())
        if seed_of(task.game_id) % 10:
            assert len(shown.turns) == min(unseen, 5)
        else:
            fewer.append(len(shown.turns))
        heard |= {text.rpartition("Partner: [message] ")[2].split()[0] for text in shown.observations[:-1]}
    assert min(fewer) == 0 < len(fewer) and max(fewer) < 5
    assert {"What", "How", "And", "Please"} < heard  # in all wordings
