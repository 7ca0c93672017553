"""Tasks, scripted players and demonstrations: small programs that compute with two numbers."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from slim_rl.core.game import ChatRules, Demonstration, Purpose, Task, seed_of, series_seed
from slim_rl.core.player import Player, ScriptedPlayer, TextSeat
from slim_rl.games.prediction.game import AUTHOR, QUESTION, Prediction, seats_of
from slim_rl.games.prediction.parameters import Parameters
from slim_rl.sandbox import Sandbox

PROMPT = "Write a program whose output is hard to predict."
WORLDS = 3
"""In how many worlds a program must print the same. Two are not enough for the order of a small set."""
_EXPRESSIONS: dict[str, Callable[[int, int], int]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "max(x, y)": max,
    "min(x, y)": min,
}
_PROGRAM = re.compile(r"x = (\d)\ny = (\d)\nprint\((.+)\)")
_BROKEN = ("print(x", "print(z)", "print(id(x))", "print(hash('a'))", "x + y")
"""Last lines with which a program cannot be asked about."""


class PredictionTasks:
    """See `slim_rl.core.game`: `Taskset`, `Demonstrates`, `HasPlayers`, `HasOpponents` and `SeatsChatModels`.

    The author `scripted` writes the task's own program, so that all predictors are measured on the same ones, and
    `random` another one of the same kind. The predictor `scripted` computes these programs, `random` guesses.
    """

    opponents = ("random", "scripted")
    words = (
        "x = ",
        "y = ",
        "print(",
        ")",
        "x",
        "y",
        "z",
        " + ",
        " - ",
        " * ",
        "max(",
        "min(",
        ", ",
        "id(",
        "hash('a')",
        "-",
    )

    def __init__(self, parameters: Parameters, seed: int):
        self._parameters, self._seed = parameters, seed
        self.seats = seats_of(parameters)
        self.study = "matches" if len(self.seats) == 2 else "accuracy"
        self._worlds = [Sandbox(parameters.sandbox, world) for world in range(WORLDS)]

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        rng = np.random.default_rng(series_seed(self._seed, purpose))
        for number in range(count):
            yield Task(f"{purpose}-{number}", PROMPT, {"program": made(rng)})

    def load(self, task: Task) -> Prediction:
        return Prediction(task.game_id, task.prompt, self._parameters, self._worlds, str(task.state["program"]))

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
        if name not in self.opponents:
            raise ValueError(f"prediction has no player {name!r}; it has {' and '.join(self.opponents)}")
        return TextSeat(_Scripted(name, seat, seed, game.given))

    def chat_rules(self, seat: str) -> ChatRules:
        asked = (
            "Answer with one Python program and nothing else." if seat == AUTHOR else "Answer with the output alone."
        )
        return ChatRules(
            f"You play a game of writing programs and predicting their output. {asked}", lambda _, text: text
        )


class _Scripted(ScriptedPlayer):
    def __init__(self, name: str, seat: str, seed: int, given: str):
        self._name, self._seat, self._given = name, seat, given
        self._rng = np.random.default_rng(seed)

    def turn(self, observation: str) -> str:
        if self._seat == AUTHOR:
            return self._given if self._name == "scripted" else made(self._rng)
        value = _computed(observation.removeprefix(QUESTION)) if self._name == "scripted" else None
        return str(_guess(self._rng) if value is None else value)


def made(rng: np.random.Generator) -> str:
    """A random program that computes with two digits."""
    x, y = rng.integers(0, 10, size=2)
    return f"x = {x}\ny = {y}\nprint({rng.choice(list(_EXPRESSIONS))})"


def _guess(rng: np.random.Generator) -> int:
    return int(rng.integers(-9, 19))


def _computed(program: str) -> int | None:
    """What a program of this kind prints; None for any other."""
    found = _PROGRAM.fullmatch(program.strip())
    compute = _EXPRESSIONS.get(found[3]) if found else None
    return compute(int(found[1]), int(found[2])) if found and compute else None
