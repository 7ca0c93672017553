"""The only loop: one game, one player in each seat."""

from collections.abc import Mapping

from slim_rl.games.game import Game
from slim_rl.players.player import Player, PlayerFailed
from slim_rl.players.policy import ContextFull, Interrupted, PolicyPlayer
from slim_rl.rollout.episode import Episode, Turn


async def play(episode: Episode, game: Game, players: Mapping[str, Player]) -> Episode:
    """Play `game` to its end and fill in `episode`, which comes with its names.

    An interrupted episode goes on where it stopped; game and players are new and have its turns repeated.
    A player's failure ends the episode as `failed`: it has no rewards and cannot be trained on.
    """
    policies = {seat: player for seat, player in players.items() if isinstance(player, PolicyPlayer)}
    for turn in episode.turns:
        game.observe(turn.seat)
        players[turn.seat].recall(turn.observation, turn.text)
        game.step(turn.text)
    for seat, trace in episode.traces.items():
        policies[seat].resume(trace)
    try:
        while (seat := game.turn) is not None:
            observation = game.observe(seat)
            text = await players[seat].respond(observation)
            episode.turns.append(Turn(seat, observation, text))
            game.step(text)
        episode.status = "truncated" if game.truncated else "completed"
    except ContextFull:
        episode.status = "truncated"
    except Interrupted:
        episode.status = "aborted"
    except PlayerFailed as error:
        cause = error.__cause__
        episode.status, episode.error = "failed", f"{type(cause).__name__}: {cause}" if cause else str(error)
        episode.traces = {}
        return episode
    finally:
        for policy in policies.values():
            policy.close()
    episode.traces = {seat: policy.trace for seat, policy in policies.items() if policy.trained}
    if episode.status != "aborted":
        episode.rewards = game.rewards()
        episode.facts = game.facts()
    return episode
