"""The game of predicting output: who earns what, which programs cannot be asked about, and what players see."""

import asyncio

import pytest

from slim_rl.core.episode import Episode
from slim_rl.core.message import said, text_of
from slim_rl.core.player import Player
from slim_rl.games import game_parameters, load_games
from slim_rl.games.prediction.game import Prediction, agrees
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


class Saying(Player):
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


UNDETERMINED = {
    "set": "print({'red', 'green', 'blue', 'cyan', 'pink', 'grey', 'gold', 'teal'})",
    "hash": "print(hash('red'))",
    "second": "import time\nprint(time.time())",
    "day": "import time\nprint(int(time.time()) // 86400)",
    "year": "import time\nprint(time.localtime().tm_year)",
    "weekday": "import time\nprint(time.strftime('%A'))",
    "date": "import datetime\nprint(datetime.date.today())",
    "utc": "import datetime\nprint(datetime.datetime.now(datetime.timezone.utc).date())",
    "clock": "import time\nprint(time.clock_gettime(time.CLOCK_REALTIME))",
    "monotonic": "import time\nprint(time.monotonic())",
    "process time": "import time\nprint(time.process_time_ns())",
    "id": "x = [1]\nprint(id(x))",
    "page": "x = [1]\nprint(id(x) // 4096 % 1000)",
    "address": "print(object())",
    "pid": "import os\nprint(os.getpid())",
    "thread": "import threading\nthreading.Thread(target=print, args=(1,)).start()",
    "random": "import random\nprint(random.randrange(10**9))",
    "generator": "import random\nprint(random.Random().random())",
    "system": "import random\nprint(random.SystemRandom().random())",
    "urandom": "import os\nprint(os.urandom(8))",
    "secret": "import secrets\nprint(secrets.token_hex(8))",
    "uuid": "import uuid\nprint(uuid.uuid4())",
    "uuid of time": "import uuid\nprint(uuid.uuid1())",
    "coarse clock": "import time\nprint(int(time.monotonic() * 4))",
    "clock of a date": "from datetime import date\nprint(date.today().year)",
    "clock by name": "print(__import__('time').gmtime().tm_year)",
    "clock by text": "exec('import time')\nprint(time.gmtime().tm_year)",
    "clock of a pure module": "from random import _os\nprint(_os.times())",
    "clock of another": "import random\nprint(random._os.getppid())",
    "clock of a list": "import dataclasses\nprint(dataclasses.sys.modules['time'].gmtime().tm_year)",
    "clock by another name": "import random\nprint(int(getattr(random, '_o' + 's').times().elapsed * 4))",
    "clock by its module's dict": "import time\nprint(int(time.__dict__['mono' + 'tonic']() * 4))",
    "coarse clock of the kernel's": "import time\nprint(time.gmtime(time.clock_gettime(5)).tm_year)",
    "id by a format": "import random\nprint('{0._os.getppid}'.format(random)[:9], random._os.getppid())",
    "line of an address": "x = [1]\nprint(id(x) // 64 % 64)",
    "time of a file": "import os\nprint(int(os.stat('/usr').st_mtime))",
    "time of its input": "import os\nprint(int(os.fstat(0).st_mtime))",
    "timer": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 9)\nprint(int(signal.getitimer(0)[0]))",
    "shared memory": "import mmap\nprint(mmap.mmap(-1, 4096)[0])",
    "C": "import ctypes\nprint(ctypes.CDLL(None).getuid())",
    "C, found": "import gc\nprint([t for t in gc.get_objects() if str(t) == \"<class 'ctypes.CDLL'>\"][0](None).getpid())",
    "processor": "import os\nprint(os.sched_getaffinity(0))",
    "file": "print(open('/usr/lib/os-release').read()[:9])",
}
"""Programs whose output differs from run to run, or from one machine or day to another: one for each source."""


@pytest.mark.parametrize("name", UNDETERMINED)
def test_no_program_whose_output_is_not_determined_can_be_asked_about(taskset, tasks, name):
    assert played(taskset, tasks[0], UNDETERMINED[name], "1")[0].rewards == {"author": -1, "predictor": 1}


def test_a_determined_program_that_looks_random_can_be_asked_about(taskset, tasks):
    for program in (
        "import random\nrandom.seed(1)\nprint(random.random())",
        "print(sorted({'a', 'b', 'c'}))",
        "import collections.abc, math as m\nprint(m.floor(2.5), isinstance([], collections.abc.Sequence))",
        "time, os, sys = 1, 2, 3\nprint('import time', time + os + sys)",
        "import re\nprint(re.compile('a').match('a').end())",
        "class A:\n    def __init__(self): self._x = 1\nprint(A()._x, __name__)",
        "print({3, 1, 2})",
        "class A:\n    time = os = modules = 3\nprint(A.time + A.os + A.modules)",
        "import time\nprint(time.gmtime(0).tm_year)",
        "import datetime, threading\nwith threading.Lock():\n    print(datetime.date(2024, 2, 28) + datetime.timedelta(2))",
        "print(sorted({'red', 'green'}), len(vars()) > 0, eval('1 + 1'))",
        "try:\n    import numpy\nexcept ImportError:\n    print('none')",
        "print(object.__name__, type(id).__name__)",
    ):
        assert played(taskset, tasks[0], program, "?")[0].rewards == {"author": 1, "predictor": -1}


class Mute(Saying):
    def can_say(self, text):
        return "k>" not in text


def test_an_author_that_prints_what_the_predictor_cannot_say_loses(taskset, tasks):
    for program, author in (("print('1</thi' + 'nk>2')", -1), ("print('1<2')", 1)):
        game = taskset.load(tasks[0])
        players = {"author": Saying(program), "predictor": Mute("?")}
        episode = asyncio.run(play(Episode("e", "g"), game, players))
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

    game = Prediction("g", PROMPT, Parameters(), Broken(), scripted="")
    episode = asyncio.run(play(Episode("e", "g"), game, dict.fromkeys(game.seats, Saying("print(1)"))))
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
