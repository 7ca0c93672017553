"""Who sits where. Nobody else knows."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from slim_rl.engines.engine import Engine, Sampling
from slim_rl.games.game import Game
from slim_rl.players.chat_format import ChatFormat
from slim_rl.players.player import Player
from slim_rl.players.policy import PolicyPlayer
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.play import play


@dataclass(frozen=True)
class Job:
    """One episode to be played."""

    episode_id: str
    game: dict[str, Any]
    """The game's line in its games file."""
    seating: tuple[str, ...]
    """The names of the players, in the order of the game's seats."""
    step: int = 0
    """Training steps the policy had behind it."""
    begun: Episode | None = None
    """What was played of it before an interruption."""


PlayerMaker = Callable[[Game, str, Job, int], Player]
"""(game, seat, job, random seed) -> the player for that seat in that episode."""


@dataclass(frozen=True)
class Table:
    """A kind of game, and whoever can be seated at it.

    The random seed of a player follows from `seed`, the episode's id and the seat alone, so that an
    episode comes out the same whenever it is played.
    """

    kind: str
    load_game: Callable[[dict[str, Any]], Game]
    makers: Mapping[str, PlayerMaker]
    """By the name that a job's seating has for the player."""
    seed: int
    status: Callable[[], str] | None = None
    """What a progress bar says beside the count; a table at which somebody must be paid has one."""
    run: Callable[[Coroutine], None] = asyncio.run
    """On whose event loop it is best played at."""

    async def play(self, job: Job) -> Episode:
        game = self.load_game(job.game)
        seating = dict(zip(game.seats, job.seating, strict=True))
        players = {
            seat: self.makers[name](game, seat, job, _seed(self.seed, job.episode_id, seat))
            for seat, name in seating.items()
        }
        episode = job.begun or Episode(job.episode_id, game.game_id, self.kind, seating, job.step)
        return await play(episode, game, players)


def policy_seat(
    engine: Engine, chat_format: ChatFormat, max_turn_tokens: int, temperature: float, trained: bool = True
) -> PlayerMaker:
    def make(game: Game, seat: str, job: Job, seed: int) -> Player:
        session = f"{job.episode_id}/{seat}"
        sampling = Sampling(max_turn_tokens, temperature, seed=seed, session=session)
        return PolicyPlayer(engine, chat_format, sampling, trained)

    return make


def _seed(*parts: object) -> int:
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")
