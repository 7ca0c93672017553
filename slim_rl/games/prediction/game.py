"""The author writes a program; a predictor says what it prints."""

import ast
import asyncio
from collections.abc import Mapping, Sequence

from slim_rl.core.errors import GameFailed
from slim_rl.core.message import Message, Tool, heard
from slim_rl.games.prediction.parameters import Parameters
from slim_rl.sandbox import Sandbox
from slim_rl.sandbox.program import program_in

AUTHOR, PREDICTOR = "author", "predictor"
QUESTION = "What does this program print?\n"


def seats_of(parameters: Parameters) -> tuple[str, ...]:
    count = parameters.predictors
    return (AUTHOR, *((PREDICTOR,) if count == 1 else (f"{PREDICTOR}-{n + 1}" for n in range(count))))


class Prediction:
    """See `slim_rl.core.game.Game`.

    Args:
        worlds: sandboxes that differ in all that a program should not depend on; see `Sandbox`.
        given: a program for an author who does not write one.
    """

    truncated = False

    def __init__(self, game_id: str, prompt: str, parameters: Parameters, worlds: Sequence[Sandbox], given: str):
        self.game_id = game_id
        self.seats, self.given = seats_of(parameters), given
        self._prompt, self._parameters, self._worlds = prompt, parameters, worlds
        self._program = ""
        self._output: str | None = None
        """What the program prints, in every world."""
        self._predictions: list[bool] = []
        """Whether they were right."""
        self._over = False

    @property
    def turn(self) -> str | None:
        if self._over:
            return None
        return self.seats[1 + len(self._predictions)] if self._output is not None else AUTHOR

    def tools(self, seat: str) -> Sequence[Tool]:
        return ()

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
        """What the program prints; None if it does not end well, prints nothing or too much, or not the same everywhere.

        Raises:
            GameFailed: the sandbox broke.
        """
        if not self._program:
            return None
        seconds = self._parameters.seconds
        runs = await asyncio.gather(*(world.run(self._program, seconds=seconds) for world in self._worlds))
        for run in runs:
            if run.status == "failed":
                raise GameFailed(f"SandboxFailed: {run.errors}")
        output = runs[0].output.strip()
        same = all((run.status, run.output) == ("ok", runs[0].output) for run in runs)
        return output if same and 0 < len(output) <= self._parameters.output_characters else None

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
        found = {"valid": float(self._output is not None), "lines": float(len(self._program.splitlines()))}
        if self._predictions:
            found["successful_predictions_count"] = float(sum(self._predictions))
            found["predicted"] = sum(self._predictions) / len(self._predictions)
        return found

    async def close(self) -> None:
        """The sandboxes belong to all games."""


def agrees(prediction: str, output: str) -> bool:
    """Whether a prediction says what a program printed: the same text, or plain Python values that are equal."""
    prediction, output = prediction.strip(), output.strip()
    if prediction == output:
        return True
    try:
        said, printed = ast.literal_eval(prediction), ast.literal_eval(output)
        return type(said) is type(printed) and bool(said == printed)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
