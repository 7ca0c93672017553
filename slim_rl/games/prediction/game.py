"""The author writes a program; a predictor says what it prints."""

import ast
import asyncio
from collections.abc import Mapping, Sequence

from slim_rl.core.errors import GameFailed
from slim_rl.core.game import Game
from slim_rl.core.message import Message, heard
from slim_rl.games.prediction.parameters import Parameters
from slim_rl.sandbox import Sandbox
from slim_rl.sandbox.program import Unreadable, literal_in, program_in, syntax_of

AUTHOR, PREDICTOR = "author", "predictor"
OUTPUT_CHARACTERS = 200
"""A program that prints more cannot be asked about."""
PURE_MODULES = {
    "__future__", "abc", "array", "bisect", "cmath", "collections", "copy", "dataclasses", "decimal", "enum", "fractions",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics",
    "string", "textwrap", "typing",
}  # fmt: skip
"""They read no clock, file or process. What `random` draws without a seed differs from run to run."""
_IMPURE_BUILTINS = {"__import__", "eval", "exec", "compile", "open"}
_IMPURE_ATTRIBUTES = {
    "builtins",
    "ctypes",
    "datetime",
    "gc",
    "importlib",
    "modules",
    "os",
    "posix",
    "sys",
    "threading",
    "time",
}
"""By which a pure module leads to another one, also with underscores around them."""
QUESTION = "What does this program print?\n"


def seats_of(parameters: Parameters) -> tuple[str, ...]:
    count = parameters.predictors
    return (AUTHOR, *((PREDICTOR,) if count == 1 else (f"{PREDICTOR}-{n + 1}" for n in range(count))))


class Prediction(Game):
    """
    Args:
        sandboxes: a program must print the same in each.
        scripted: the program of a scripted author.
    """

    step_seconds = 600.0
    """Programs wait for a worker of the sandbox, so this is long."""

    def __init__(self, game_id: str, prompt: str, parameters: Parameters, sandboxes: Sequence[Sandbox], scripted: str):
        self.game_id = game_id
        self.seats, self.scripted = seats_of(parameters), scripted
        self._prompt, self._parameters, self._sandboxes = prompt, parameters, sandboxes
        self._program = ""
        self._output: str | None = None
        """What the program prints, in every run."""
        self._predictions: list[bool] = []
        """Whether they were right."""
        self._over = False

    @property
    def turn(self) -> str | None:
        if self._over:
            return None
        return self.seats[1 + len(self._predictions)] if self._output is not None else AUTHOR

    async def observe(self, seat: str) -> Sequence[Message]:
        return heard(self._prompt if seat == AUTHOR else QUESTION + self._program)

    async def step(self, message: Message) -> None:
        if self._output is None:
            self._program = program_in(message.written) or ""
            self._output = await self._printed()
            self._over = self._output is None
        else:
            self._predictions.append(agrees(message.written, self._output))
            self._over = len(self._predictions) == self._parameters.predictors

    async def _printed(self) -> str | None:
        """What the program prints; None if it does not end well, prints nothing or too much, or depends on more than itself.

        Raises:
            GameFailed: the sandbox broke.
        """
        if not is_pure(self._program):
            return None
        seconds = self._parameters.seconds
        runs = await asyncio.gather(*(sandbox.run(self._program, seconds=seconds) for sandbox in self._sandboxes))
        for run in runs:
            if run.status == "failed":
                raise GameFailed(f"SandboxFailed: {run.errors}")
        output = runs[0].output.strip()
        same = all((run.status, run.output) == ("ok", runs[0].output) for run in runs)
        return output if same and 0 < len(output) <= OUTPUT_CHARACTERS else None

    def rewards(self) -> Mapping[str, float]:
        """A program that cannot be asked about loses against every predictor; a predictor that gave no answer was wrong."""
        count, right = self._parameters.predictors, self._predictions
        right = [True] * count if self._output is None else right + [False] * (count - len(right))
        predictors = {seat: 1.0 if hit else -1.0 for seat, hit in zip(self.seats[1:], right, strict=True)}
        rate = sum(right) / count
        if self._output is None:
            author = -1.0
        elif self._parameters.reward == "zero_sum":
            author = 1 - 2 * rate
        else:
            author = 1 - rate if 0 < rate < 1 else 0.0
        return {AUTHOR: author, **predictors}

    def metrics(self) -> Mapping[str, float]:
        """`valid`: whether the program could be asked about; `lines` of it; `predicted`: the share of right predictions,
        only of a valid one; `successful_predictions_count`: how many were right."""
        metrics = {"valid": float(self._output is not None), "lines": float(len(self._program.splitlines()))}
        if self._predictions:
            metrics["successful_predictions_count"] = float(sum(self._predictions))
            metrics["predicted"] = sum(self._predictions) / len(self._predictions)
        return metrics


def is_pure(program: str) -> bool:
    """Whether a program uses pure modules only. False if it does not parse."""
    imported, builtins, attributes = set[str](), set[str](), set[str]()
    try:
        for node in ast.walk(syntax_of(program)):
            match node:
                case ast.Import(names):
                    imported |= {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(module, names):
                    imported.add((module or ".").split(".")[0])
                    attributes |= {alias.name.strip("_") for alias in names}
                case ast.Name(name):
                    builtins.add(name)
                case ast.Attribute(_, name):
                    attributes.add(name.strip("_"))
    except Unreadable:
        return False
    return imported <= PURE_MODULES and not (builtins & _IMPURE_BUILTINS or attributes & _IMPURE_ATTRIBUTES)


def agrees(prediction: str, output: str) -> bool:
    """Whether a prediction says what a program printed: the same text, or plain Python values that are equal."""
    prediction, output = prediction.strip(), output.strip()
    if prediction == output:
        return True
    try:
        predicted, printed = literal_in(prediction), literal_in(output)
        return type(predicted) is type(printed) and bool(predicted == printed)
    except Unreadable:
        return False
