"""How the matching game is evaluated: who earns what, who is shy, what asking is worth, and what people did."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slim_rl.config import MatchingConfig
from slim_rl.evaluation.intervention import ARMS, intervention_maker
from slim_rl.evaluation.series import Evaluation, Series, policy
from slim_rl.games import game_kind
from slim_rl.games.matching import load_game
from slim_rl.games.matching.human import human_games, replay, transcript
from slim_rl.games.matching.probe import MAX_TURNS, Prober
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.seating import policy_seats

FAITHFUL = MatchingConfig(size=8, selection="dialop")  # the boards that people played


def matching_series(
    run: Evaluation, held_out: Sequence[dict[str, Any]], human: Path, checkpoints: Mapping[str, Path]
) -> Iterator[Series]:
    """Checkpoints and references on held-out boards, references on people's boards, and the probe of the partner.

    A policy that was trained in both seats meets the partner in either, and itself.
    """
    config = run.config
    opposite, both_seats = config.opposite, len(policy_seats(config, game_kind(config))) > 1
    patient = config.model_copy(update={"games": config.games.model_copy(update={"max_turns": MAX_TURNS})})
    probed = held_out[: config.evaluate.probe_games]
    yield run.series("partner/probe", probed, ("probe", opposite), {"probe": lambda: _prober}, patient)
    for player, checkpoint in checkpoints.items():
        load = partial(policy, config, checkpoint, held_out)
        free = {player: lambda load=load: load().seat()}
        yield run.series(f"held-out/{player}", held_out, (player, opposite), free)
        if both_seats:
            yield run.series(f"self-play/{player}", held_out, (player, player), free)
            yield run.series(f"second-seat/{player}", held_out, ("scripted", player), free)
        few = held_out[: config.evaluate.intervention_games]
        for arm in ARMS if few else ():
            forced = {player: lambda arm=arm, load=load: intervention_maker(arm, *load())}
            yield run.series(f"intervention/{player}-{arm}", few, (player, opposite), forced)
    for player in config.evaluate.references:
        yield run.series(f"held-out/{player}", held_out, (player, opposite))
    theirs = config.model_copy(update={"board": FAITHFUL})
    for player in config.evaluate.human_references:
        boards = human_games(human)
        yield run.series(f"human-boards/{player}", boards, (player, opposite), config=theirs)


def human_episode(game: dict[str, Any]) -> Episode:
    """What two people did, as an episode."""
    played = replay(game).game
    unplayed = load_game(game, max_turns=1)
    turns = [Turn(seat, unplayed.observe(seat), text) for seat, text in transcript(game)]
    return Episode(
        f"human-boards/humans/{game['game_id']}",
        game["game_id"],
        "matching",
        dict.fromkeys(played.seats, "humans"),
        turns=turns,
        rewards=played.rewards(),
        facts=played.facts(),
    )


def _prober(game, seat, job, seed):
    return Prober(game, seat, seed)
