"""The only loop: one game, one player in each seat."""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from slim_rl.core.episode import Episode, Status, Turn
from slim_rl.core.errors import EpisodeFailed, GameFailed, UserError, finite
from slim_rl.core.game import Game
from slim_rl.core.player import ContextFull, Interrupted, Player

T = TypeVar("T")
CLOSE_SECONDS = 5.0
"""Time limit of a game's `close`, so that a dead server holds up no interruption."""


async def play(episode: Episode, game: Game, players: Mapping[str, Player]) -> Episode:
    """Play `game` to its end and fill in `episode`, which comes with its names.

    An interrupted episode continues where it stopped; game and players are new, and its turns are repeated for them.
    An `EpisodeFailed` ends the episode as `failed`: it has no rewards and cannot be trained on.
    """
    game.can_say = lambda seat, text: players[seat].can_say(text)
    try:
        await _recall(episode, game, players)
        for seat, trace in episode.traces.items():
            players[seat].resume(trace)
        episode.status = await _take_turns(episode, game, players)
        if episode.status != "aborted":
            episode.rewards = _rewards(game, episode.game)
            episode.metrics = _finite(game.metrics(), f"metrics of the game {episode.game}")
        traces = {seat: player.trace for seat, player in players.items()}
        episode.traces = {seat: trace for seat, trace in traces.items() if trace is not None}
    except EpisodeFailed as error:
        fail(episode, error)
    finally:
        for player in players.values():
            player.close()
        with suppress(GameFailed):  # the episode has ended, so this cannot change it
            await _within(min(game.step_seconds, CLOSE_SECONDS), game.close())
    return episode


def fail(episode: Episode, error: EpisodeFailed) -> Episode:
    """Mark the episode as failed: it has no rewards and cannot be trained on."""
    cause = error.__cause__
    reason = f"{type(cause).__name__}: {cause}" if cause else str(error)
    episode.status, episode.error, episode.traces = "failed", reason, {}
    return episode


async def _take_turns(episode: Episode, game: Game, players: Mapping[str, Player]) -> Status:
    try:
        while (seat := game.turn) is not None:
            observation = tuple(await _within(game.step_seconds, game.observe(seat)))
            if (constraint := game.constraint(seat)) is not None:
                players[seat].constrain(constraint)
            try:
                message = await players[seat].respond(observation, game.tools(seat))
            except ContextFull:
                if not await _within(game.step_seconds, game.outgrown()):
                    return "truncated"
                continue
            episode.turns.append(Turn(seat, observation, message))
            await _within(game.step_seconds, game.step(message))
    except Interrupted:
        return "aborted"
    return "truncated" if game.truncated else "completed"


async def _recall(episode: Episode, game: Game, players: Mapping[str, Player]) -> None:
    for turn in episode.turns:
        observation = tuple(await _within(game.step_seconds, game.observe(turn.seat)))
        if observation != turn.observation:
            raise GameFailed("NotRepeated: the game does not answer the same turns as before the interruption")
        players[turn.seat].recall(turn.observation, turn.message)
        await _within(game.step_seconds, game.step(turn.message))


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except (ConnectionError, TimeoutError) as error:  # a game that waits for something need not know our errors
        if not (isinstance(error, TimeoutError) and limit.expired()):
            raise GameFailed from error
    raise GameFailed(f"StepTimeout: a step of the game took longer than {seconds:g} s")


def _rewards(game: Game, name: str) -> dict[str, float]:
    by_seat = game.rewards()
    if by_seat is None:
        return {}
    rewards = _finite(by_seat, f"rewards of the game {name}")
    if set(rewards) != set(game.seats):
        raise UserError(f"The game {name} gave the rewards {rewards}; each of its seats needs one.")
    return rewards


def _finite(numbers: Mapping[str, Any], what: str) -> dict[str, float]:
    try:
        return {key: finite(value) for key, value in numbers.items()}
    except ValueError as error:
        raise UserError(f"The {what} are {dict(numbers)}, but {error}.") from None
