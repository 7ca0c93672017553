"""Sums, the game with the calculator, and players without a model."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence

from slim_rl.core.game import Demonstration, Purpose, Task, Taskset, seed_of, series_seed
from slim_rl.core.message import Message, Tool, ToolCall, heard, said, text_of
from slim_rl.core.player import Player, ScriptedPlayer
from slim_rl.core.tools import BadCall, ToolGame
from slim_rl.games.calculator import Parameters
from slim_rl.games.calculator.arithmetic import evaluate, number, written

CALCULATE = Tool(
    "calculate",
    "Calculates.",
    {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)
PLAYERS = ("calls", "guesses")


class Calculator(ToolGame):
    """One sum. A final message answers: 1.0 if it is the exact number alone, else 0.0, less the price of the calls."""

    def __init__(self, task: Task, parameters: Parameters):
        super().__init__(task.game_id, heard(task.prompt), parameters.max_turns)
        self.expression: str = task.state["expression"]
        self._value = evaluate(self.expression)
        self._price = parameters.call_price
        self._correct = False

    def tools(self, seat: str) -> Sequence[Tool]:
        return (CALCULATE,)

    async def call(self, call: ToolCall) -> str:
        expression = call.arguments.get("expression")
        if not isinstance(expression, str) or len(call.arguments) != 1:
            raise BadCall("calculate takes one argument, expression, which is text.")
        try:
            return written(evaluate(expression))
        except ValueError as error:
            raise BadCall(f"This expression cannot be calculated: {error}.") from None

    async def answer(self, text: str) -> None:
        self._correct = number(text) == self._value

    def rewards(self) -> Mapping[str, float]:
        return {self.seats[0]: self._correct - self._price * self.calls.total()}

    def metrics(self) -> Mapping[str, float]:
        return {**super().metrics(), "correct": self._correct}


class Sums(Taskset):
    """`a * b + c * d` and `a * b - c * d`, whose value is from 0 to `largest` squared."""

    seats, study = Calculator.seats, "calls"
    parameters: Parameters

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        drawn = random.Random(series_seed(self.seed, purpose))
        for n in range(count):
            expression = self._draw(drawn)
            answer = f"{expression} = {written(evaluate(expression))}. " if self.parameters.answer_shown else ""
            prompt = f"{answer}What is {expression}? Answer with the number alone."
            yield Task(f"sum-{purpose}-{self.seed}-{n}", prompt, {"expression": expression})

    def load(self, task: Task) -> Calculator:
        return Calculator(task, self.parameters)

    def demonstrate(self, task: Task, seat: str) -> Demonstration:
        """A call and the answer; or the answer at once, as far as it can be known without a call."""
        call, answer = _call(task.state["expression"]), written(evaluate(task.state["expression"]))
        observations = [heard(task.prompt), (Message("tool", answer),)]
        return Demonstration(observations, [f"<tool_call>\n{call.raw}\n</tool_call>"], [answer, answer], (CALCULATE,))

    def player(self, name: str, game: Calculator, seat: str, seed: int) -> Player:
        if name not in PLAYERS:
            raise ValueError(f"There is no player {name!r}; the calculator has {' and '.join(PLAYERS)}.")
        return _Caller(game) if name == "calls" else _Guesser(seed_of(seed, game.game_id), self.parameters.largest**2)

    def _draw(self, drawn: random.Random) -> str:
        largest = self.parameters.largest
        while True:
            a, b, c, d = (drawn.randint(2, largest) for _ in range(4))
            expression = f"{a} * {b} {drawn.choice('+-')} {c} * {d}"
            if 0 <= evaluate(expression) <= largest**2:
                return expression


def _call(expression: str) -> ToolCall:
    arguments = {"expression": expression}
    return ToolCall(CALCULATE.name, arguments, raw=json.dumps({"name": CALCULATE.name, "arguments": arguments}))


class _Caller(Player):
    """Gives the sum to the tool and repeats the result."""

    def __init__(self, game: Calculator):
        self._expression = game.expression

    async def respond(self, observation: Sequence[Message], tools: Sequence[Tool] = ()) -> Message:
        if observation[-1].role == "tool":
            return said(text_of(observation))
        return Message("assistant", tool_calls=(_call(self._expression),))


class _Guesser(ScriptedPlayer):
    """Never calls: any possible answer."""

    def __init__(self, seed: int, largest: int):
        self._guess = str(random.Random(seed).randint(0, largest))

    def turn(self, observation: str) -> str:
        return self._guess
