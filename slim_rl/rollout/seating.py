"""Seats players at games."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slim_rl.core.episode import Episode
from slim_rl.core.errors import EpisodeFailed, UserError
from slim_rl.core.game import Game, Task, base_seat, seed_of
from slim_rl.core.player import Player
from slim_rl.engines.engine import Engine, Sampling
from slim_rl.games import NamedGame
from slim_rl.players.config import ModelConfig
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import Renderer
from slim_rl.players.services import Services
from slim_rl.rollout.play import fail, play
from slim_rl.rollout.rewards import judge


@dataclass(frozen=True)
class Request:
    """One episode to be played."""

    episode_id: str
    game: str
    """Its name in the parameters."""
    task: Task
    seating: tuple[str, ...]
    """The names of the players, in the order of the game's seats."""
    step: int = 0
    """Training steps of the policy so far."""
    series: str = ""
    arm: str = ""
    begun: Episode | None = None
    """The part played before an interruption."""


class Seat(NamedTuple):
    """A seat to be taken."""

    name: str
    game: Game
    of: NamedGame
    request: Request
    seed: int
    """For the player's random numbers."""


class _Players(dict[str, Player]):
    """The players by seat. One that a game adds while it is played, `solver#2`, is taken when it first speaks."""

    def __init__(self, take: Callable[[str], Player]):
        self._take = take

    def __missing__(self, seat: str) -> Player:
        self[seat] = self._take(seat)
        return self[seat]


PlayerMaker = Callable[[Seat], Player]
Arm = Callable[[Player, Seat], Player]
"""What a series changes of a player; most are `Forced`."""


@dataclass(frozen=True)
class Seating:
    """Plays requests: loads the game and seats the players that the request names.

    A player's random seed depends only on `seed`, the episode's id and the seat, so an episode comes out the same
    whenever it is played.
    """

    games: Mapping[str, NamedGame]
    makers: Mapping[str, PlayerMaker]
    """By name, the players that need a model. Every other name is a player that the game knows."""
    seed: int

    async def play(self, request: Request) -> Episode:
        of = self.games[request.game]
        seats = of.taskset.seats
        if len(request.seating) != len(seats):
            raise UserError(
                f"games.{of.name}.seating names {len(request.seating)} players, but the game has the seats "
                f"{', '.join(seats)}."
            )
        seating = dict(zip(seats, request.seating, strict=True))
        episode = request.begun or Episode(
            request.episode_id,
            request.task.game_id,
            of.name,
            seating,
            series=request.series,
            arm=request.arm,
            step=request.step,
        )
        try:
            game = of.load(request.task)
        except EpisodeFailed as error:
            return fail(episode, error)

        def take(seat: str) -> Player:
            name = seating[base_seat(seat)]
            seed = seed_of(self.seed, request.episode_id, seat)
            if (maker := self.makers.get(name)) is not None:
                return maker(Seat(seat, game, of, request, seed))
            return of.player(name, game, seat, seed)

        players = _Players(take)
        for seat in seats:
            players[seat] = take(seat)
        episode = await play(episode, game, players)
        reward = of.parameters.reward_function
        if reward is not None and (reward.scope == "episode" or request.series):  # an evaluation has no groups
            await judge(reward, [episode], [request.task])
        return episode


@dataclass(frozen=True)
class PolicyRules:
    """How a model takes its turns."""

    renderer: Renderer
    max_turn_tokens: int
    temperature: float

    def sampling(self, seat: Seat) -> Sampling:
        session = f"{seat.request.episode_id}/{seat.name}"
        return Sampling(self.max_turn_tokens, self.temperature, seed=seat.seed, session=session)

    def maker(self, engine: Engine, trained: bool = True) -> PlayerMaker:
        """A policy that samples from `engine`; `trained` if its trace becomes part of the episode."""
        return lambda seat: PolicyPlayer(engine, self.renderer, self.sampling(seat), trained)


def under(arm: Arm | None, maker: PlayerMaker) -> PlayerMaker:
    """The players of `maker` under an arm."""
    return maker if arm is None else lambda seat: arm(maker(seat), seat)


def service_makers(names: set[str], services: Services) -> dict[str, PlayerMaker]:
    """The makers of those among `names` that are services, `service:NAME`."""

    def maker(name: str) -> PlayerMaker:
        service = services[name.removeprefix("service:")]

        def make(seat: Seat) -> Player:
            from slim_rl.players.chat_player import ChatPlayer

            rules = seat.of.chat_rules(name, seat.name)
            return rules.around(ChatPlayer(service, rules.system, rules.repair, seat.seed))

        return make

    return {name: maker(name) for name in names if name.startswith("service:")}


def checkpoint_makers(
    names: set[str], config: ModelConfig, temperature: float, turn: asyncio.Lock
) -> dict[str, PlayerMaker]:
    """The makers of those among `names` that are frozen models, `checkpoint:PATH`. Loads the models.

    Args:
        turn: see `LocalEngine`.
    """
    makers = {}
    for name in names:
        if name.startswith("checkpoint:"):
            from slim_rl.engines.local import LocalEngine
            from slim_rl.engines.model import load_model
            from slim_rl.players.renderer import renderer_of

            model, tokenizer = load_model(Path(name.removeprefix("checkpoint:")), config.computes_in)
            renderer = renderer_of(config, tokenizer)
            rules = PolicyRules(renderer, config.turn_tokens, temperature)
            makers[name] = rules.maker(LocalEngine(model, turn=turn), trained=False)
    return makers
