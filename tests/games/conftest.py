"""What tests of several games share."""

import asyncio

import pytest

from slim_rl.core.episode import Episode
from slim_rl.core.message import said, text_of
from slim_rl.core.player import Player
from slim_rl.rollout.play import play
from slim_rl.sandbox import Run


class Saying(Player):
    """Says one thing; `read` is what it read last."""

    def __init__(self, text):
        self._text, self.read = text, ""

    async def respond(self, observation, tools=()):
        self.read = text_of(observation)
        return said(self._text)


class BrokenSandbox:
    async def run(self, *args, **kwargs):
        return Run("failed", errors="the sandbox has ended")


def spoken(game, *texts, saying=Saying):
    """The episode in which each seat says its text, and the players."""
    players = {seat: saying(text) for seat, text in zip(game.seats, texts, strict=True)}
    return asyncio.run(play(Episode("e", game.game_id), game, players)), players


@pytest.fixture(scope="session")
def play_out():
    """Plays a task with players that the game knows by name: (taskset, task, names, seed, turns so far) -> Episode.

    The player of seat n has the seed `seed` + n.
    """

    def play_out(taskset, task, names, seed=0, turns=()):
        game = taskset.load(task)
        players = {
            seat: taskset.player(name, game, seat, seed + n)
            for n, (seat, name) in enumerate(zip(taskset.seats, names, strict=True))
        }
        return asyncio.run(play(Episode("episode", task.game_id, turns=list(turns)), game, players))

    return play_out
