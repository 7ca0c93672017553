"""A game that does not fit the model's context or turns is told in a sentence."""

import asyncio
from dataclasses import replace

import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.message import heard
from slim_rl.games import load_games
from slim_rl.rollout.context import check_context
from tests import echo


def test_a_game_too_long_for_the_context_or_a_turn_too_short_for_a_proposal(renderer, matching, tasks):
    asyncio.run(check_context(matching, tasks, renderer, 512, 32))
    with pytest.raises(UserError, match=r"matching-3-stakes-0-\d is too long .* context of 40 tokens"):
        asyncio.run(check_context(matching, tasks, renderer, 40, 32))
    with pytest.raises(UserError, match=r"do not fit model.context_tokens, 40\. Raise it"):
        asyncio.run(check_context(matching, tasks, renderer, 40, 32, limit=40))
    with pytest.raises(UserError, match=r"model.turn_tokens is 3, but .*propose.* has \d+ tokens"):
        asyncio.run(check_context(matching, tasks, renderer, 512, 3))


def test_without_demonstrations_the_longest_prompt_with_tools_and_one_turn_must_fit(renderer, monkeypatch):
    """The game that lists its tools is closed in the event loop in which it was loaded."""
    game, loops = load_games({"tests.echo": echo.Parameters()}, 0)["tests.echo"], []

    async def close(self):
        loops.append(asyncio.get_running_loop())

    monkeypatch.setattr(echo.EchoGame, "close", close)
    tasks = [replace(task, prompt="why? " * n) for n, task in enumerate(game.taskset.tasks("train", 5))]
    needed = len(renderer.opening(heard(tasks[-1].prompt), echo.TOOLS)) + 16
    assert needed > len(renderer.opening(heard(tasks[-1].prompt))) + 16 + 20

    async def fits():
        await check_context(game, tasks, renderer, needed, 16)
        return asyncio.get_running_loop()

    assert loops == [asyncio.run(fits())]
    with pytest.raises(UserError, match=rf"train-4 is too long .* a last turn \(16\) .* context of {needed - 1} "):
        asyncio.run(check_context(game, tasks, renderer, needed - 1, 16))
    assert len(loops) == 2
