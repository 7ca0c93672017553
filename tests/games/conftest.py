"""What tests of several games share."""

import asyncio

import pytest

from slim_rl.core.episode import Episode
from slim_rl.rollout.play import play


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
