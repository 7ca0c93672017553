"""A game with one seat and a tool, by its import path: add two numbers."""

from slim_rl.core.game import Task
from slim_rl.core.message import Message, Tool
from slim_rl.core.parameters import GameParameters
from slim_rl.core.tools import ToolGame


class Parameters(GameParameters):
    train_count: int = 4
    eval_count: int = 4


class Adding(ToolGame):
    def __init__(self, task, max_turns):
        super().__init__(task.game_id, [Message("user", task.prompt)], max_turns)
        self._sum, self._found = task.state["sum"], False

    def tools(self, seat):
        numbers = {"type": "array", "items": {"type": "number"}}
        return [Tool("add", "Adds.", {"type": "object", "properties": {"numbers": numbers}})]

    async def call(self, call):
        return str(sum(call.arguments["numbers"]))

    async def answer(self, text):
        self._found = text.strip() == str(self._sum)

    def rewards(self):
        return {"solver": float(self._found)}


class Tasks:
    seats = Adding.seats

    def __init__(self, parameters):
        self._max_turns = parameters.max_turns

    def tasks(self, purpose, count):
        for n in range(count):
            yield Task(f"{purpose}-{n}", f"What is {n} + 1?", {"sum": n + 1})

    def load(self, task):
        return Adding(task, self._max_turns)


def taskset(parameters, seed, variant):
    return Tasks(parameters)
