"""The only loop: one game, one player in each seat."""

from collections.abc import Mapping

from slim_rl.games.game import Game
from slim_rl.players.player import Player, PlayerFailed
from slim_rl.players.policy import ContextFull, PolicyPlayer
from slim_rl.rollout.episode import Episode, Turn


async def play(episode: Episode, game: Game, players: Mapping[str, Player]) -> Episode:
    """Play `game` to its end and fill in `episode`, which comes with its names.

    A player's failure ends the episode as `failed`: it has no rewards and cannot be trained on.
    """
    policies = {seat: player for seat, player in players.items() if isinstance(player, PolicyPlayer)}
    try:
        while (seat := game.turn) is not None:
            observation = game.observe(seat)
            text = await players[seat].respond(observation)
            episode.turns.append(Turn(seat, observation, text))
            game.step(text)
        episode.status = "truncated" if game.truncated else "completed"
    except ContextFull:
        episode.status = "truncated"
    except PlayerFailed as error:
        cause = error.__cause__
        episode.status, episode.error = "failed", f"{type(cause).__name__}: {cause}" if cause else str(error)
        return episode
    finally:
        for policy in policies.values():
            policy.close()
    episode.rewards = game.rewards()
    episode.facts = game.facts()
    episode.traces = {seat: policy.trace for seat, policy in policies.items()}
    return episode
