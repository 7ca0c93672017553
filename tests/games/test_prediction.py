"""The game of predicting output: who earns what, which programs cannot be asked about, and what players see."""

import pytest

from fixtures.programs import determined, differing
from slim_rl.games.prediction import Parameters
from slim_rl.games.prediction.game import Prediction, agrees
from slim_rl.games.prediction.tasks import PROMPT, PredictionTasks, _computed
from slim_rl.sandbox import SandboxConfig
from tests.games.conftest import BrokenSandbox, Saying, spoken

ONE = SandboxConfig(workers=1)


@pytest.fixture(scope="module")
def taskset():
    return PredictionTasks(Parameters(sandbox=ONE), seed=0)


@pytest.fixture(scope="module")
def tasks(taskset):
    return list(taskset.tasks("evaluate", 40))


def played(taskset, task, program, *predictions):
    return spoken(taskset.load(task), program, *predictions)


def test_the_author_wins_if_the_prediction_is_wrong(taskset, tasks):
    for prediction, author in (("42", -1), (" 42\n", -1), ("43", 1), ("", 1), ("I do not know", 1)):
        episode, players = played(taskset, tasks[0], "```python\nprint(6 * 7)\n```", prediction)
        assert episode.rewards == {"author": author, "predictor": -author}
        assert episode.metrics["valid"] == 1 and episode.metrics["predicted"] == (author == -1)
    assert players["author"].read == PROMPT
    assert players["predictor"].read == "What does this program print?\nprint(6 * 7)\n"


INVALID = {
    "nothing": "",
    "no output": "x = 1",
    "blank output": "print(' ')",
    "too much output": "print('x' * 201)",
    "syntax": "print(",
    "an error after its output": "print(1)\n1 / 0",
    "no end": "print(1, flush=True)\nwhile True: pass",
    "two programs": "```\nprint(1)\n```\n```\nprint(2)\n```",
}


@pytest.mark.parametrize("name", INVALID)
def test_a_program_that_cannot_be_asked_about_loses(name, tasks):
    taskset = PredictionTasks(Parameters(seconds=0.3, sandbox=ONE), seed=0)
    episode, players = played(taskset, tasks[0], INVALID[name], "1")
    assert episode.rewards == {"author": -1, "predictor": 1} and players["predictor"].read == ""
    assert episode.metrics["valid"] == 0 and "predicted" not in episode.metrics


@pytest.mark.parametrize(("programs", "author"), [(differing(110), -1), (determined(40), 1)], ids=["differ", "do not"])
def test_a_program_can_be_asked_about_if_it_prints_the_same_in_each_run(taskset, tasks, programs, author):
    earned = {program: played(taskset, tasks[0], program, "?")[0].rewards["author"] for program in programs}
    assert [program for program in programs if earned[program] != author] == []


class Mute(Saying):
    def can_say(self, text):
        return "k>" not in text


def test_an_author_that_prints_what_the_predictor_cannot_say_loses(taskset, tasks):
    for program, author in (("print('1</thi' + 'nk>2')", -1), ("print('1<2')", 1)):
        episode, _ = spoken(taskset.load(tasks[0]), program, "?", saying=Mute)
        assert episode.rewards == {"author": author, "predictor": -author}
    assert played(taskset, tasks[0], "print('1</thi' + 'nk>2')", "?")[0].rewards["author"] == -1


@pytest.mark.parametrize(
    ("prediction", "output", "right"),
    [
        ("[1,2]", "[1, 2]", True),
        ("{'b': 2, 'a': 1}", "{'a': 1, 'b': 2}", True),
        ("1.0", "1", False),
        ("True", "1", False),
        ("'a'", "a", False),
        ("a", "'a'", False),
        ("a b", "a  b", False),
        ("-" * 10**5 + "1", "1", False),
        ("[" * 10**4, "1", False),
        ("{[]: 1}", "1", False),
        ("9" * 400 + "+1j", "1", False),
        ("1", "9" * 400 + "+1j", False),
        ("0x" + "f" * 10**4, "1", False),
        ("'\ud800'", "1", False),
    ],
)
def test_a_prediction_is_compared_as_text_or_as_a_plain_value(prediction, output, right):
    assert agrees(prediction, output) == right


def test_learnability_rewards_what_some_predict(taskset, tasks):
    assert taskset.seats == ("author", "predictor") and taskset.study == "matches"
    parameters = Parameters(seating=("policy",) * 4, predictors=3, reward="learnability", sandbox=ONE)
    taskset = PredictionTasks(parameters, seed=0)
    assert taskset.seats == ("author", "predictor-1", "predictor-2", "predictor-3") and taskset.study == "accuracy"
    for guesses, author in (("777", 0), ("778", 1 / 3), ("788", 2 / 3), ("888", 0)):
        episode, players = played(taskset, tasks[0], "print(7)", *guesses)
        expected = {f"predictor-{n + 1}": 1 if guess == "7" else -1 for n, guess in enumerate(guesses)}
        assert episode.rewards == {"author": pytest.approx(author), **expected}
        assert {players[seat].read for seat in expected} == {"What does this program print?\nprint(7)"}
    assert played(taskset, tasks[0], "print(", "1", "1", "1")[0].rewards["author"] == -1
    for wrong in ({"reward": "learnability"}, {"predictors": 2}):
        with pytest.raises(ValueError, match="learnability needs predictors of 2 or more"):
            Parameters(**wrong)


def test_a_broken_sandbox_is_nobodys_loss(taskset, tasks):
    episode, _ = spoken(Prediction("g", PROMPT, Parameters(), BrokenSandbox(), scripted=""), "print(1)", "1")
    assert (episode.status, episode.rewards, episode.error) == ("failed", {}, "SandboxFailed: the sandbox has ended")


def test_players_without_a_model(taskset, tasks, play_out):
    for number, task in enumerate(tasks[:10]):
        episode = play_out(taskset, task, ("scripted", "scripted"), seed=number)
        assert episode.turns[0].text == task.state["program"] and episode.rewards["predictor"] == 1
        other = play_out(taskset, task, ("random", "scripted"), seed=number)
        assert other.turns[0].text != task.state["program"] and other.rewards["predictor"] == 1
    guessed = [play_out(taskset, task, ("scripted", "random"), seed=n) for n, task in enumerate(tasks)]
    assert sum(episode.rewards["predictor"] for episode in guessed) < -20
    for name in ("bayes", "rule-larger-digit"):
        with pytest.raises(ValueError, match=f"prediction has no author '{name}'; it has random, scripted"):
            taskset.player(name, taskset.load(tasks[0]), "author", 0)


def test_rules_are_right_where_the_rule_says_so(taskset, tasks, play_out):
    answers = [str(_computed(task.state["program"])) for task in taskset.tasks("train", 4096)]
    commonest = max(set(answers), key=answers.count)
    for task in tasks[:10]:
        program = task.state["program"]
        said = {"rule-larger-digit": max(program[4], program[10]), "rule-commonest-answer": commonest}
        for rule, answer in said.items():
            episode = play_out(taskset, task, ("scripted", rule))
            assert episode.turns[1].text == answer
            assert episode.rewards["predictor"] == (1 if answer == str(_computed(program)) else -1)


def test_no_program_that_is_evaluated_is_trained_or_shown(taskset):
    evaluated = [task.state["program"] for task in taskset.tasks("evaluate", 500)]
    others = {task.state["program"] for p in ("train", "demonstrations") for task in taskset.tasks(p, 2048)}
    assert len(evaluated) == len(set(evaluated)) == 247 and not others & set(evaluated) and len(others) == 253


def test_demonstrations_are_noisy(taskset):
    tasks = list(taskset.tasks("demonstrations", 300))
    authors = [taskset.demonstrate(task, "author").closings[0] for task in tasks]
    predictors = [taskset.demonstrate(task, "predictor") for task in tasks]
    valid = [_computed(program) is not None for program in authors]
    right = [d.closings[0] == str(_computed(t.state["program"])) for d, t in zip(predictors, tasks, strict=True)]
    assert 0.65 < sum(valid) / 300 < 0.85 and 0.3 < sum(right) / 300 < 0.55
    assert predictors[0].observations == ["What does this program print?\n" + tasks[0].state["program"]]
