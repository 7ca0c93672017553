"""The only loop: one game, one player in each seat."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.errors import EpisodeFailed, GameFailed
from slim_rl.core.game import AnyGame, Game, TextGameAdapter, is_text_game
from slim_rl.core.player import Player
from slim_rl.players.policy import ContextFull, Interrupted, PolicyPlayer

T = TypeVar("T")


async def play(
    episode: Episode, game: AnyGame, players: Mapping[str, Player], step_seconds: float = 60.0
) -> Episode:
    """Play `game` to its end and fill in `episode`, which comes with its names.

    An interrupted episode goes on where it stopped; game and players are new and have its turns repeated.
    Whoever fails through no fault of the play ends the episode as `failed`: it has no rewards and cannot be
    trained on.

    Args:
        step_seconds: time limit of one step of the game, of what it shows, and of its closing.
    """
    waiting: Game = TextGameAdapter(game) if is_text_game(game) else game
    policies = {seat: player for seat, player in players.items() if isinstance(player, PolicyPlayer)}
    try:
        await _recall(episode, waiting, players, step_seconds)
        for seat, trace in episode.traces.items():
            policies[seat].resume(trace)
        while (seat := waiting.turn) is not None:
            observation = tuple(await _within(step_seconds, waiting.observe(seat)))
            message = await players[seat].respond(observation, waiting.tools(seat))
            episode.turns.append(Turn(seat, observation, message))
            await _within(step_seconds, waiting.step(message))
        episode.status = "truncated" if waiting.truncated else "completed"
    except ContextFull:
        episode.status = "truncated"
    except Interrupted:
        episode.status = "aborted"
    except EpisodeFailed as error:
        episode.status, episode.error, episode.traces = "failed", _told(error), {}
        return episode
    finally:
        for policy in policies.values():
            policy.close()
        await _close(waiting, step_seconds)
    episode.traces = {seat: policy.trace for seat, policy in policies.items() if policy.trained}
    if episode.status != "aborted":
        episode.rewards = dict(waiting.rewards())
        episode.metrics = dict(waiting.metrics())
    return episode


async def _recall(episode: Episode, game: Game, players: Mapping[str, Player], seconds: float) -> None:
    for turn in episode.turns:
        await _within(seconds, game.observe(turn.seat))
        players[turn.seat].recall(turn.observation, turn.message)
        await _within(seconds, game.step(turn.message))


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise GameFailed(f"StepTimeout: a step of the game took longer than {seconds:g} s") from error


async def _close(game: Game, seconds: float) -> None:
    """What a game's end breaks cannot change an episode any more."""
    try:
        await _within(seconds, game.close())
    except GameFailed:
        pass


def _told(error: EpisodeFailed) -> str:
    cause = error.__cause__
    return str(error) or f"{type(cause).__name__}: {cause}"
