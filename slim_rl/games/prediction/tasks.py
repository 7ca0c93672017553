"""Tasks, scripted players and demonstrations: small programs that compute with two numbers."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from slim_rl.core.game import ChatRules, Demonstration, Purpose, Task, Taskset, seed_of, series_seed
from slim_rl.core.player import Player, ScriptedPlayer
from slim_rl.games.prediction import Parameters
from slim_rl.games.prediction.game import AUTHOR, PREDICTOR, QUESTION, RUNS, Prediction, seats_of
from slim_rl.sandbox import Sandbox

PROMPT = "Write a program whose output is hard to predict."
_EXPRESSIONS: dict[str, Callable[[int, int], int]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "max(x, y)": max,
    "min(x, y)": min,
}
_PROGRAMS = [
    f"x = {x}\ny = {y}\nprint({expression})" for x, y, expression in product(range(10), range(10), _EXPRESSIONS)
]
_HELD_OUT = [program for program in _PROGRAMS if seed_of("held out", program) % 2]
_OTHERS = [program for program in _PROGRAMS if program not in _HELD_OUT]
_PROGRAM = re.compile(r"x = (\d)\ny = (\d)\nprint\((.+)\)")
_LARGER, _COMMONEST = "rule-larger-digit", "rule-commonest-answer"
_BROKEN = ("print(x", "print(z)", "print(id(x))", "print(hash('a'))", "x + y")
"""Last lines with which a program cannot be asked about."""


class PredictionTasks(Taskset):
    """The author `scripted` writes the task's own program, so that all predictors are measured on the same ones, and
    `random` another one of the same kind. The predictor `scripted` computes these programs, `random` guesses. By a rule
    it repeats the larger digit of the program, or gives the commonest answer of the training tasks.
    """

    parameters: Parameters
    opponents = ("random", "scripted")
    rules: Mapping[str, Sequence[str]] = {PREDICTOR: (_LARGER, _COMMONEST)}
    words = (
        "x = ", "y = ", "print(", ")", "x", "y", "z", " + ", " - ", " * ", "max(", "min(", ", ", "id(", "hash('a')", "-",
    )  # fmt: skip

    def __init__(self, parameters: Parameters, seed: int):
        super().__init__(parameters, seed)
        self.seats = seats_of(parameters)
        self.study = "matches" if len(self.seats) == 2 else "accuracy"
        self._sandbox = Sandbox(parameters.sandbox, interpreters=RUNS)

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """Half of the 500 programs are held out. At most `count` of them are evaluated, none of them twice."""
        rng = np.random.default_rng(series_seed(self.seed, purpose))
        programs = rng.permutation(_HELD_OUT)[:count] if purpose == "evaluate" else rng.choice(_OTHERS, count)
        for number, program in enumerate(programs.tolist()):
            yield Task(f"{purpose}-{number}", PROMPT, {"program": program})

    def load(self, task: Task) -> Prediction:
        return Prediction(task.game_id, task.prompt, self.parameters, self._sandbox, str(task.state["program"]))

    def check(self, task: Task) -> None:
        if not isinstance(task.state["program"], str):
            raise ValueError("its program is not text")

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        """An author who writes one program in four that cannot be asked about; a predictor who is right two times in
        five."""
        rng = np.random.default_rng(seed_of("demonstrator", task.game_id, seat))
        program: str = task.state["program"]
        if seat == AUTHOR:
            if rng.random() < 0.25:
                program = program[: program.index("print")] + str(rng.choice(_BROKEN))
            return Demonstration([PROMPT], [], [program])
        right = rng.random() < 0.4
        return Demonstration([QUESTION + program], [], [str(_computed(program) if right else _guess(rng))])

    def player(self, name: str, game: Any, seat: str, seed: int) -> Player:
        known = self.opponents if seat == AUTHOR else (*self.opponents, *self.rules[PREDICTOR])
        if name not in known:
            raise ValueError(f"prediction has no {seat} {name!r}; it has {', '.join(known)}")
        commonest = self._commonest if name == _COMMONEST else ""
        return _Scripted(name, seat, seed, game.scripted, commonest)

    @cached_property
    def _commonest(self) -> str:
        programs = (task.state["program"] for task in self.tasks("train", self.parameters.train_count))
        return str(Counter(map(_computed, programs)).most_common(1)[0][0])

    def chat_rules(self, seat: str) -> ChatRules:
        answer = "one Python program and nothing else" if seat == AUTHOR else "the output alone"
        rules = f"You play a game of writing programs and predicting their output. Answer with {answer}."
        return ChatRules(rules, lambda _, text: text)


class _Scripted(ScriptedPlayer):
    def __init__(self, name: str, seat: str, seed: int, program: str, commonest: str):
        self._name, self._seat, self._program, self._commonest = name, seat, program, commonest
        self._rng = np.random.default_rng(seed)

    def turn(self, observation: str) -> str:
        if self._seat == AUTHOR:
            return self._program if self._name == "scripted" else str(self._rng.choice(_PROGRAMS))
        if self._name == _LARGER:
            return max(re.findall(r"\d", observation), default="0")
        if self._name == _COMMONEST:
            return self._commonest
        value = _computed(observation.removeprefix(QUESTION)) if self._name == "scripted" else None
        return str(_guess(self._rng) if value is None else value)


def _guess(rng: np.random.Generator) -> int:
    return int(rng.integers(-9, 19))


def _computed(program: str) -> int | None:
    """What a program of this kind prints; None for any other."""
    match = _PROGRAM.fullmatch(program.strip())
    compute = _EXPRESSIONS.get(match[3]) if match else None
    return compute(int(match[1]), int(match[2])) if match and compute else None
