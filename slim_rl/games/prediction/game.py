"""The author writes a program; a predictor says what it prints."""

import ast
import builtins
import math
from collections.abc import Mapping, Sequence

from slim_rl.core.errors import GameFailed
from slim_rl.core.game import Game
from slim_rl.core.message import Message, heard
from slim_rl.games.prediction import Parameters
from slim_rl.sandbox import Sandbox
from slim_rl.sandbox.program import Unreadable, literal_in, program_in, syntax_of

AUTHOR, PREDICTOR = "author", "predictor"
OUTPUT_CHARACTERS = 200
"""A program that prints more cannot be asked about."""
RUNS = 8
"""A program must print the same in as many interpreters, one after another, unless it is plain. The order of a set of two
texts is the same in all of them in one case of 128."""
_PLAIN = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.Pass, ast.If, ast.For, ast.While, ast.Break, ast.Continue,
    ast.IfExp, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.List,
    ast.Tuple, ast.Dict, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.operator, ast.unaryop, ast.boolop,
    ast.cmpop, ast.expr_context,
)  # fmt: skip
_PLAIN_BUILTINS = {
    "abs", "bool", "chr", "divmod", "float", "int", "len", "max", "min", "ord", "pow", "print", "range", "round", "sorted",
    "str", "sum",
}  # fmt: skip
QUESTION = "What does this program print?\n"


def seats_of(parameters: Parameters) -> tuple[str, ...]:
    count = parameters.predictors
    return (AUTHOR, *((PREDICTOR,) if count == 1 else (f"{PREDICTOR}-{n + 1}" for n in range(count))))


class Prediction(Game):
    """
    Args:
        sandbox: a program must print the same in each of its `RUNS` interpreters.
        scripted: the program of a scripted author.
    """

    step_seconds = math.inf
    """The sandbox bounds each program, and waiting for a worker is nobody's failure."""

    def __init__(self, game_id: str, prompt: str, parameters: Parameters, sandbox: Sandbox, scripted: str):
        self.game_id = game_id
        self.seats, self.scripted = seats_of(parameters), scripted
        self._prompt, self._parameters, self._sandbox = prompt, parameters, sandbox
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
        """What the program prints; None if it does not end well, prints nothing, too much or what no predictor
        can say, or depends on more than itself.

        Raises:
            GameFailed: the sandbox broke.
        """
        output = ""
        for number in range(1 if is_plain(self._program) else RUNS):
            run = await self._sandbox.run(self._program, seconds=self._parameters.seconds, interpreter=number)
            if run.status == "failed":
                raise GameFailed(f"SandboxFailed: {run.errors}")
            if (
                run.status != "ok"
                or output not in ("", run.output)
                or not 0 < len(run.output.strip()) <= OUTPUT_CHARACTERS
            ):
                return None
            output = run.output
        output = output.strip()
        return output if all(self.can_say(seat, output) for seat in self.seats[1:]) else None

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


def is_plain(program: str) -> bool:
    """Whether nothing in a program can differ from run to run: it has no attribute, no set, no function of its own, and of
    the builtins only some that show no hash and no address."""
    try:
        nodes = list(ast.walk(syntax_of(program)))
    except Unreadable:
        return False
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    known = all(name in _PLAIN_BUILTINS or not (name.startswith("_") or hasattr(builtins, name)) for name in names)
    return known and all(isinstance(node, _PLAIN) for node in nodes)


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
