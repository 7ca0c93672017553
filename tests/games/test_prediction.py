"""The game of predicting output: who earns what, which programs cannot be asked about, and what players see."""

import asyncio
import itertools

import pytest

from slim_rl.core.episode import Episode
from slim_rl.core.game import Demonstrates, HasOpponents, HasPlayers, HasRules
from slim_rl.core.message import said, text_of
from slim_rl.games import game_parameters, load_games
from slim_rl.games.prediction.game import agrees
from slim_rl.games.prediction.parameters import Parameters
from slim_rl.games.prediction.tasks import PROMPT, PredictionTasks, _computed
from slim_rl.rollout.play import play
from slim_rl.sandbox import Run, SandboxConfig

ONE = SandboxConfig(workers=1)


@pytest.fixture(scope="module")
def taskset():
    return PredictionTasks(Parameters(sandbox=ONE), seed=0)


@pytest.fixture(scope="module")
def tasks(taskset):
    return list(taskset.tasks("evaluate", 40))


class Saying:
    def __init__(self, text):
        self._text, self.read = text, ""

    async def respond(self, observation, tools=()):
        self.read = text_of(observation)
        return said(self._text)


def played(taskset, task, program, *predictions):
    game = taskset.load(task)
    players = {seat: Saying(text) for seat, text in zip(game.seats, (program, *predictions), strict=True)}
    return asyncio.run(play(Episode("e", task.game_id), game, players)), players


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


def nondeterministic():
    """200 programs whose output differs from run to run, or from one machine or day to another."""
    words = ["red", "green", "blue", "cyan", "pink", "grey", "gold", "teal", "plum", "rust", "mint", "sand"]
    hashes = [
        form.format(set="{" + ", ".join(map(repr, itertools.islice(itertools.cycle(words), n, n + 7))) + "}")
        for n in range(10)
        for form in ("print({set})", "print(*{set})", "print(list({set})[0], list({set})[3], list({set})[5])",
                     "print(hash(tuple(sorted({set}))))")
    ]  # fmt: skip
    clocks = [
        f"import time, datetime\nprint({value})"
        for value in (
            "time.time()", "time.time_ns()", "int(time.time())", "int(time.time()) // 86400", "time.ctime()",
            "time.localtime().tm_year", "time.gmtime().tm_mon", "time.strftime('%d')", "time.strftime('%A')",
            "time.localtime().tm_hour", "time.monotonic()", "time.perf_counter()", "time.process_time_ns()",
            "datetime.date.today()", "datetime.date.today().year", "datetime.date.today().weekday()",
            "datetime.datetime.now()", "datetime.datetime.now().hour", "datetime.datetime.utcnow().minute",
            "datetime.datetime.now(datetime.timezone.utc).date()", "time.asctime()", "time.localtime().tm_yday",
            "time.clock_gettime(time.CLOCK_REALTIME)", "datetime.datetime.today().month",
            "time.clock_gettime_ns(time.CLOCK_MONOTONIC)",
        )
        for value in (value, f"str({value}) * 2")
    ]  # fmt: skip
    ids = [
        f"import os\n{before}\nprint({value})"
        for before in ("x = [1]", "class X: pass\nx = X()", "def x(): pass")
        for value in ("id(x)", "x if not isinstance(x, list) else id(x)", "hex(id(x))", "id(x) // 4096 % 1000",
                      "id(print)", "object()", "id(type(x)) + 0", "os.getpid()", "str(os.getpid()) + '!'", "print.__self__ and id(os)")
    ]  # fmt: skip
    threads = [
        f"import threading\nx = []\nfor i in range({n}):\n    threading.Thread(target=x.append, args=(i,)).start()\nprint(x)"
        for n in range(2, 22)
    ]
    randoms = [
        f"import os, random, secrets, uuid\nprint({value})"
        for value in (
            "random.random()", "random.randrange(10**9)", "random.sample(range(100), 9)", "os.urandom(8)",
            "uuid.uuid4()", "secrets.token_hex(8)", "random.gauss(0, 1)", "random.Random().random()",
            "random.SystemRandom().random()", "random.getrandbits(64)", "random.uniform(0, 9)",
            "sorted(range(20), key=lambda _: random.random())", "uuid.uuid1()", "secrets.randbelow(10**9)",
            "random.choices(range(1000), k=5)", "random.betavariate(1, 2)", "random.randbytes(6)",
            "secrets.token_urlsafe()", "int.from_bytes(os.urandom(6), 'big')", "random.triangular()",
        )
        for value in (value, f"[{value}]", f"str({value})[-9:]")
    ]  # fmt: skip
    return [*hashes, *clocks, *ids, *threads, *randoms]


@pytest.mark.slow
def test_no_program_whose_output_is_not_determined_can_be_asked_about(taskset, tasks):
    programs = nondeterministic()
    assert len(programs) == len(set(programs)) == 200
    wrong = [p for p in programs if played(taskset, tasks[0], p, "1")[0].rewards != {"author": -1, "predictor": 1}]
    assert wrong == []


def test_a_determined_program_that_looks_random_can_be_asked_about(taskset, tasks):
    for program in (
        "import random\nrandom.seed(1)\nprint(random.random())",
        "print(sorted({'a', 'b', 'c'}))",
        "import time\ntime.sleep(0.01)\nprint(1)",
        "print({3, 1, 2})",
    ):
        assert played(taskset, tasks[0], program, "?")[0].rewards == {"author": 1, "predictor": -1}


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
    ],
)
def test_a_prediction_is_compared_as_text_or_as_a_plain_value(prediction, output, right):
    assert agrees(prediction, output) == right


def test_learnability_rewards_what_some_predict(tasks):
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
    class Broken:
        async def run(self, *args, **kwargs):
            return Run("failed", errors="the sandbox has ended")

    broken = PredictionTasks(Parameters(), seed=0)
    broken._worlds = [taskset._worlds[0], Broken()]
    episode, _ = played(broken, tasks[0], "print(1)", "1")
    assert (episode.status, episode.rewards, episode.error) == ("failed", {}, "SandboxFailed: the sandbox has ended")


def test_players_without_a_model(taskset, tasks, play_out):
    assert isinstance(taskset, HasPlayers) and isinstance(taskset, HasOpponents) and isinstance(taskset, Demonstrates)
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
    assert isinstance(taskset, HasRules)
    answers = [str(_computed(task.state["program"])) for task in taskset.tasks("train", 4096)]
    commonest = max(set(answers), key=answers.count)
    for task in tasks[:10]:
        program = task.state["program"]
        said = {"rule-larger-digit": max(program[4], program[10]), "rule-commonest-answer": commonest}
        for rule, answer in said.items():
            episode = play_out(taskset, task, ("scripted", rule))
            assert episode.turns[1].text == answer
            assert episode.rewards["predictor"] == (1 if answer == str(_computed(program)) else -1)


def test_demonstrations_are_noisy(taskset):
    tasks = list(taskset.tasks("demonstrations", 300))
    authors = [taskset.demonstrate(task, "author").closings[0] for task in tasks]
    predictors = [taskset.demonstrate(task, "predictor") for task in tasks]
    valid = [_computed(program) is not None for program in authors]
    right = [d.closings[0] == str(_computed(t.state["program"])) for d, t in zip(predictors, tasks, strict=True)]
    assert 0.65 < sum(valid) / 300 < 0.85 and 0.3 < sum(right) / 300 < 0.55
    assert predictors[0].observations == ["What does this program print?\n" + tasks[0].state["program"]]


def test_names():
    games = load_games({"prediction": game_parameters("prediction", {})}, seed=0)
    taskset = games["prediction"].taskset
    assert taskset.seats == ("author", "predictor") and taskset.study == "matches"
