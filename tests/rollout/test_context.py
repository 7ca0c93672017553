"""A game that does not fit the model's context or turns is told in a sentence."""

import asyncio

import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task, Taskset
from slim_rl.core.message import Message, Tool, heard
from slim_rl.core.parameters import GameParameters
from slim_rl.core.tools import ToolGame
from slim_rl.games import NamedGame
from slim_rl.rollout.context import check_context


def test_a_game_too_long_for_the_context_or_a_turn_too_short_for_a_proposal(renderer, matching, tasks):
    asyncio.run(check_context(matching, tasks, renderer, 512, 32))
    with pytest.raises(UserError, match=r"matching-3-stakes-0-\d is too long .* context of 40 tokens"):
        asyncio.run(check_context(matching, tasks, renderer, 40, 32))
    with pytest.raises(UserError, match=r"model.turn_tokens is 3, but .*propose.* has \d+ tokens"):
        asyncio.run(check_context(matching, tasks, renderer, 512, 3))


class Opened(ToolGame):
    """A game that holds something until it is closed, in the loop in which it is played."""

    held, loops = 0, []

    def __init__(self, task):
        super().__init__(task.game_id, [Message("user", task.prompt)], max_turns=3)
        Opened.held += 1

    def tools(self, seat):
        return [Tool("look_up", "Finds what an encyclopedia says. " * 5, {"type": "object", "properties": {}})]

    async def call(self, call):
        return ""

    async def answer(self, text):
        pass

    def rewards(self):
        return {"solver": 0.0}

    async def close(self):
        Opened.held -= 1
        Opened.loops.append(asyncio.get_running_loop())


class Quiz(Taskset):
    """A taskset that does not demonstrate."""

    seats, study = ("solver",), "accuracy"

    def tasks(self, purpose, count):
        yield from (Task(f"q{n}", "why? " * n) for n in range(count))

    def load(self, task):
        return Opened(task)


def test_without_demonstrations_the_longest_prompt_with_tools_and_one_turn_must_fit(renderer):
    quiz = NamedGame("quiz", GameParameters(), Quiz(GameParameters(), 0))
    tasks = list(quiz.taskset.tasks("train", 5))
    opening = renderer.opening(heard(tasks[-1].prompt), Opened(tasks[-1]).tools("solver"))
    Opened.held, Opened.loops = 0, []
    needed = len(opening) + 16
    assert needed > len(renderer.opening(heard(tasks[-1].prompt))) + 16 + 20

    async def fits():
        await check_context(quiz, tasks, renderer, needed, 16)
        return asyncio.get_running_loop()

    assert Opened.loops == [asyncio.run(fits())]
    with pytest.raises(UserError, match=rf"q4 is too long .* a last turn \(16\) .* context of {needed - 1} "):
        asyncio.run(check_context(quiz, tasks, renderer, needed - 1, 16))
    assert Opened.held == 0
