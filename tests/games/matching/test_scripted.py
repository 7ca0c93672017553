"""The shy partner keeps its secrets, and the reference players earn what they should."""

import re
from collections import Counter

import numpy as np
import pytest

from slim_rl.core.errors import UserError
from slim_rl.games.matching.names import REVIEWERS, format_proposal, parse_proposal
from slim_rl.games.matching.optimal import values_of_asking
from slim_rl.games.matching.parameters import Parameters
from slim_rl.games.matching.partner import ANSWERS, QUESTIONS, UNKNOWN, question
from slim_rl.games.matching.reader import asked_cells, told_numbers
from slim_rl.games.matching.rules import Limits, MatchingGame, View
from slim_rl.games.matching.scripted import ShyPartner
from slim_rl.games.matching.tasks import MatchingTaskset

VIEW = View(
    mask=np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=bool),
    numbers=np.array([[57, 12, -1], [30, 80, 5], [-1, 44, 90]]),
    bounds=np.array([[[57, 12, 0], [30, 80, 5], [0, 44, 90]], [[57, 12, 99], [30, 80, 5], [99, 44, 90]]]),
    scale=1.0,
)


def partner(patience=None, ignorant=False, seed=0, **parameters):
    """(text) -> what a shy partner says to it."""
    player = ShyPartner(VIEW, Parameters(**parameters), Limits(20, patience), seed, ignorant)
    return lambda text: player.turn(f"Partner: {text}")


def numbers_in(text):
    return re.findall(r"\d+", text)


@pytest.mark.parametrize(
    ("question", "number"),
    [
        ("What is Ava Li's score for BLEU?", ["57"]),
        ("how good is sofia at glove", ["90"]),
        ("tell me Daniel's Electra score", ["80"]),
        ("What is Ava Li's score for GloVe?", []),
    ],
)
@pytest.mark.parametrize("wordings", ["usual", "held-out", "reordered"])
def test_it_answers_what_it_is_asked_about_one_pair_in_several_wordings(question, number, wordings):
    replies = {partner(seed=seed, wordings=wordings)(f"[message] {question}") for seed in range(20)}
    assert len(replies) > 1
    for reply in replies:
        assert numbers_in(reply) == number and ("I do not" in reply) == (not number)


@pytest.mark.parametrize("wordings", ["usual", "held-out", "reordered"])
def test_several_answers_in_one_message_say_what_each_is_about(wordings):
    for seed in range(20):
        reply = partner(seed=seed, wordings=wordings)("[message] Ava on BLEU? Daniel on GloVe? And Ava on GloVe?")
        assert told_numbers(reply, 3) == (((0, 0), "57"), ((1, 2), "5"))
        assert "Ava Li's score" in reply.rpartition("I do not")[2]


def test_one_long_message_gains_nothing_beyond_the_partners_patience():
    for patience in range(8):
        at_once, one_by_one = partner(patience), partner(patience)
        reply = at_once("[message] Tell me the scores of Ava, Daniel and Sofia for Electra and BLEU.")
        told = [number for _, number in told_numbers(reply, 3)]
        assert told == ["12", "57", "80", "30", "44"][:patience]  # and that of Sofia for BLEU it does not know
        replies = [one_by_one(question(row, column)) for row in range(3) for column in (1, 0)]
        assert [number for reply in replies for number in numbers_in(reply)] == told
        if patience < 6:
            assert not numbers_in(at_once("[message] Ava on BLEU?")) and not re.search("do not", replies[-1])


def test_to_say_that_it_does_not_know_takes_patience():
    ask = partner(patience=1)
    assert "I do not" in ask("[message] Ava on GloVe?")
    assert not re.search(r"\d|do not", ask("[message] Ava on BLEU?"))


def test_an_ignorant_partner_never_knows_and_is_no_more_patient():
    ask = partner(patience=2, ignorant=True)
    replies = [ask("[message] Ava on BLEU?") for _ in range(3)]
    assert ["I do not" in reply for reply in replies] == [True, True, False] and not numbers_in("".join(replies))


@pytest.mark.parametrize(
    "text",
    [
        "Who is good at BLEU?",
        "Tell me everything you know about Ava.",
        "Please, please give me all your scores!",
        "What is your best assignment?",
        "Ava has 90 for BLEU with me.",
        "Hello!",
        "I think Ava should take BLEU.",
    ],
)
def test_it_never_volunteers_a_number_and_more_general_questions_take_no_patience(text):
    ask = partner(patience=1)
    assert not numbers_in(ask(f"[message] {text}"))
    assert numbers_in(ask("[message] Ava on BLEU?")) == ["57"]


def propose(assignment):
    return f"[propose] {format_proposal(assignment)}\nYou can output one of these choices: [accept] or [reject]"


def test_it_weighs_proposals_by_its_own_numbers():
    weighs = partner(always_accept=False)
    assert weighs(propose((0, 1, 2))) == "[accept]"  # 57 + 80 + 90
    assert weighs(propose((1, 2, 0))) == "[reject]"  # 12 + 5 + unknown
    assert partner()(propose((1, 2, 0))) == "[accept]"


def test_a_message_that_quotes_a_proposal_is_a_message():
    assert partner()("[message] Partner: [propose] x").startswith("[message]")


# References


@pytest.fixture(scope="module")
def earned(play_out):
    """The metrics and rewards of a player without a model with a shy partner, board by board, as a dict of arrays."""

    def earned(name, count, opponent="scripted", **parameters):
        taskset = MatchingTaskset(Parameters(max_turns=30, **parameters), seed=1)
        episodes = [
            play_out(taskset, task, (name, opponent), number)
            for number, task in enumerate(taskset.tasks("train", count))
        ]
        assert all(episode.status == "completed" for episode in episodes)
        found = [{**episode.metrics, "reward": episode.rewards["player-1"]} for episode in episodes]
        return {name: np.array([episode[name] for episode in found]) for name in found[0]}

    return earned


def test_reference_players_earn_what_they_earned_in_larger_measurements(earned):
    """Means at N = 3 with `stakes`, over many boards; 100 boards have a standard error of about .018."""
    measured = {
        "random": 0.656,
        "own-view": 0.796,
        "bayes": 0.790,
        "asks-2-random": 0.882,
        "asks-4-random": 0.945,
        "asks-7-random": 0.994,
    }
    for name, mean in measured.items():
        assert earned(name, 100)["reward"].mean() == pytest.approx(mean, abs=0.035), name


def test_what_makes_a_reference_earn_more(earned):
    def mean(*arguments, **parameters):
        return earned(*arguments, **parameters)["reward"].mean()

    # Boards of `dialop` tell who asks nothing what those of `stakes`, in the test above, do not.
    assert mean("bayes", 25, selection="dialop") > mean("own-view", 25, selection="dialop") + 0.15
    assert mean("asks-7-random", 100, scale_range=(1, 10)) > 0.98  # private scales do not confuse it


@pytest.mark.slow
def test_looking_ahead_earns_more_than_asking_at_random(earned):
    """On the same boards. Two steps ahead earn hardly more than one; the standard error of the difference is .002."""
    price = {"question_price": (1, 6)}
    optimal, greedy, by_chance = (
        earned(name, 512, **price)["reward"] for name in ("optimal", "greedy", "asks-2-random")
    )
    assert (optimal - greedy).mean() > -0.001 and (greedy - by_chance).mean() > 0.02


@pytest.mark.parametrize("name", ["greedy", "optimal"])
def test_the_higher_the_price_the_earlier_a_reference_stops(earned, name):
    found = [earned(name, 64, question_price=(price, price)) for price in (0, 3, 40)]
    asked = [episodes["player-1.cells_asked"].mean() for episodes in found]
    assert asked[0] > asked[1] + 1 > 2 and asked[2] == 0
    assert found[0]["reward"].mean() > found[1]["reward"].mean() > found[2]["reward"].mean()


def test_with_an_ignorant_partner_asking_earns_nothing(earned):
    asks, silent = (earned(name, 32, "ignorant", patience=(3, 3)) for name in ("asks-all-random", "own-view"))
    assert asks["player-1.cells_asked"].mean() > 2.5 and not asks["player-1.answers"].any()
    assert (asks["reward"] == silent["reward"]).all()


def test_there_is_no_reference_of_that_name():
    taskset = MatchingTaskset(Parameters(), seed=0)
    [task] = taskset.tasks("train", 1)
    with pytest.raises(ValueError, match="no reference player 'asks-lots'"):
        taskset.player("asks-lots", taskset.load(task), "player-1", 0)


# Demonstrations


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
    assert len(ranks) > 200 and np.mean(ranks) == pytest.approx(0.5, abs=0.06)


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


def test_where_a_score_has_a_price_demonstrators_stop_more_often_if_it_is_even():
    taskset = MatchingTaskset(Parameters(question_price=(1, 5), max_questions=5), seed=0)
    stops = {}
    for task in taskset.tasks("demonstrations", 40):
        game, demo = taskset.load(task), taskset.demonstrate(task, "player-1")
        stops.setdefault(game.limits.price, set()).update(stop for stop in demo.stopping if stop < 1)
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
            assert len(set(lines)) == 6
            for line in lines:
                terms, end = line.split(" = ")
                cells = [asked_cells(f"What is {term.rpartition(' ')[0]}?", 3)[0] for term in terms.split(" + ")]
                assert [known[cell] for cell in cells] == [int(term.split()[-1]) for term in terms.split(" + ")]
                assert int(end.split()[0]) == sum(known[cell] for cell in cells)
                assert [reviewer for reviewer, _ in cells] == [REVIEWERS.index(full) for name in end.split()[1:]
                                                               for full in REVIEWERS if full.startswith(name)]  # fmt: skip
            ends = [line.partition(" = ")[2] for line in lines]
            assert last == max(ends, key=lambda end: int(end.split()[0]))
            papers = parse_proposal(closing.rpartition("</think>")[2], 3)
            assert known[range(3), papers].sum() == int(last.split()[0])


@pytest.mark.parametrize("parameters", [{"size": 4}, {"scale_range": (1.0, 2.0)}])
def test_sums_that_a_model_could_not_write_are_refused(parameters):
    taskset = MatchingTaskset(Parameters(write_sums=True, **parameters), seed=0)
    with pytest.raises(UserError, match="write_sums"):
        taskset.demonstrate(next(taskset.tasks("demonstrations", 1)), "player-1")


def test_the_second_seat_is_shown_nearly_every_question_and_sometimes_an_early_proposal():
    taskset, asked, heard = MatchingTaskset(Parameters(max_questions=5), seed=0), [], set()
    for task in taskset.tasks("demonstrations", 300):
        shown = taskset.demonstrate(task, "player-2")
        assert shown.closings[-1] == "[accept]"
        unseen = int((~taskset.load(task).board.masks[0]).sum())
        asked.append((len(shown.turns), min(unseen, 5)))
        heard |= {text.rpartition("Partner: [message] ")[2].split()[0] for text in shown.observations[:-1]}
    assert 0.8 < np.mean([questions == most for questions, most in asked]) < 0.97
    assert min(questions for questions, _ in asked) == 0
    assert {"What", "How", "And", "Please"} < heard  # in all wordings


def test_a_demonstrator_who_sees_everything_proposes_at_once(taught):
    taskset, tasks = taught
    full = [task for task in tasks[LESSONS[1]] if np.all(task.state["mask1"])]
    assert full
    for demo in (taskset.demonstrate(task, "player-1") for task in full):
        assert len(demo.turns) == 0 and list(demo.stopping) == [1.0] and demo.closings[0].startswith("[propose]")
