"""Tasks from a file, and small ones made by a grammar."""

import json
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration, Purpose, Task, seed_of, series_seed
from slim_rl.games.execution.game import Execution
from slim_rl.games.execution.parameters import Parameters
from slim_rl.sandbox import Sandbox
from slim_rl.sandbox.grading import parse_tests

_PROMPT = "You are an expert Python programmer, and here is your task: {text}"
_SHOWN = " Your code should pass these tests:\n\n{tests}\n"
"""The prompt of MBPP's paper (Austin et al. 2021, arXiv 2108.07732)."""
_SPLITS: Mapping[Purpose, range] = {
    "train": range(601, 975),
    "evaluate": range(11, 511),
    "demonstrations": range(1, 11),
}
"""MBPP's own splits, by `task_id`."""


class _Tasks:
    seats, study = Execution.seats, "accuracy"

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        self._sandbox = Sandbox(parameters.sandbox)

    def load(self, task: Task) -> Execution:
        cases = parse_tests(task.state["tests"])
        setup = str(task.state.get("setup", ""))
        return Execution(task.game_id, task.prompt, self._parameters, self._sandbox, cases, setup)

    def check(self, task: Task) -> None:
        parse_tests(task.state["tests"])


class FileTasks(_Tasks):
    """The tasks of a file in MBPP's format. A task with a test that cannot be checked outside of the sandbox is left
    out; of MBPP's 974 this is 596."""

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """At most `count`: no task comes twice."""
        found = 0
        for problem in self._problems():
            state = {"tests": problem["test_list"], "setup": problem.get("test_setup_code", "")}
            if problem["task_id"] not in _SPLITS[purpose] or found == count or not _can_be_checked(state["tests"]):
                continue
            found += 1
            prompt = _PROMPT.format(text=problem["text"])
            if shown := state["tests"][: self._parameters.shown_tests]:
                prompt += _SHOWN.format(tests="\n".join(shown))
            yield Task(f"{purpose}-{problem['task_id']}", prompt, state)

    def _problems(self) -> list[dict[str, Any]]:
        path = self._parameters.file
        assert path is not None
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise UserError(f"games.execution.file: {path} cannot be read as JSON lines: {error}.") from None


def _can_be_checked(tests: list[str]) -> bool:
    try:
        return bool(parse_tests(tests))
    except ValueError:
        return False


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}
_DIGITS = range(1, 10)


class GrammarTasks(_Tasks):
    """A function of one number: "Write f(x) = x * 3 + 2 and print f(5)."

    Its demonstrator makes every kind of mistake, so that training has something to learn.
    """

    words = (
        "def f(x)", "    return ", "return ", "print(", "f(", "g(", "x", "y", ")", ":", " = ", " and ",
        *(f" {name} " for name in OPERATORS),
    )  # fmt: skip

    def __init__(self, parameters: Parameters, seed: int):
        super().__init__(parameters)
        self._seed = seed

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        rng = np.random.default_rng(series_seed(self._seed, purpose))
        for number in range(count):
            first, second = (str(name) for name in rng.choice(list(OPERATORS), size=2))
            a, b, given, *others = (int(n) for n in rng.choice(_DIGITS, size=5))
            formula = f"x {first} {a} {second} {b}"
            tests = [f"assert f({x}) == {_value(x, first, a, second, b)}" for x in (given, *others)]
            yield Task(
                f"{purpose}-{number}", f"Write f(x) = {formula} and print f({given}).",
                {"formula": formula, "given": given, "tests": tests},
            )  # fmt: skip

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        rng = np.random.default_rng(seed_of("demonstrator", task.game_id, task.prompt))
        return Demonstration([task.prompt], [], [_written(task.state["formula"], task.state["given"], rng)])


def _value(x: int, first: str, a: int, second: str, b: int) -> int:
    if first in "+-" and second in ("*", "//"):
        return OPERATORS[first](x, OPERATORS[second](a, b))
    return OPERATORS[second](OPERATORS[first](x, a), b)


def _written(formula: str, given: int, rng: np.random.Generator) -> str:
    """A program by somebody who prints without computing one time in ten, and otherwise makes a mistake two
    times in three."""
    if rng.random() < 0.1:
        return f"print({rng.choice(_DIGITS)})"
    head, back, show = "def f(x):", f"    return {formula}", f"print(f({given}))"
    if rng.random() < 0.25:
        back = back[:-1] + str(rng.choice(_DIGITS))  # runs, and is usually wrong
    if rng.random() < 0.67:
        mistakes = {
            0: ("def f(x)", back, show),
            1: (head, back.strip(), show),
            2: (head, back, show[:-1]),
            3: (head, back.replace("x", "y"), show),
            4: (head, back[:-1] + "0" if "// " in back[-5:] else back.replace("x", "y"), show),
            5: (head, back, show.replace("f", "g")),
            6: (head, back, f"f({given})"),
        }
        head, back, show = mistakes[int(rng.integers(len(mistakes)))]
    return "\n".join((head, back, show))
