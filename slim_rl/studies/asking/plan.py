"""What the study plays: who earns what, how shy the partner is, what asking is worth; and what people did."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.game import Task
from slim_rl.core.message import heard, said
from slim_rl.core.parameters import Section
from slim_rl.core.player import Player, TextSeat
from slim_rl.games import NamedGame, matching, policy_seats
from slim_rl.games.matching.board import Board
from slim_rl.games.matching.human import human_games, replay, transcript
from slim_rl.games.matching.language import Limits
from slim_rl.games.matching.probe import MAX_TURNS, Prober
from slim_rl.games.matching.rules import MatchingGame
from slim_rl.rollout.seating import PlayerMaker, Seat
from slim_rl.rollout.shards import write_shard
from slim_rl.studies.asking.forced import ARMS, forced_maker
from slim_rl.studies.asking.parameters import FAITHFUL, Parameters, board_of
from slim_rl.studies.series import Evaluation, Series

HUMAN = Path("data/human/human_games.jsonl")
_OF_BOARDS = {"size", "selection", "p_agent", "p_partner", "scale_range", "stake"}


def series(run: Evaluation) -> Iterator[Series]:
    """The probe of the partner, checkpoints and references on held-out boards, and references on people's boards.

    A policy that was trained in both seats meets the partner in either, and itself.
    """
    tasks, studied, opposite = run.tasks, run.parameters, partner(run.game)
    assert isinstance(studied, Parameters)
    probed = tasks[: studied.probe_games]
    patient = _with(run, board_of(run.game).model_dump() | {"max_turns": MAX_TURNS})
    yield run.series("partner/probe", probed, ("probe", opposite), {"probe": lambda: _prober}, game=patient)
    for player in run.checkpoints:
        yield run.series(f"held-out/{player}", tasks, (player, opposite))
        if len(policy_seats(run.game)) > 1:
            yield run.series(f"self-play/{player}", tasks, (player, player))
            yield run.series(f"second-seat/{player}", tasks, ("scripted", player))
        few = tasks[: studied.intervention_games]
        for arm in ARMS if few else ():
            makers = {player: partial(_forced, run, player, arm)}
            yield run.series(f"intervention/{player}-{arm}", few, (player, opposite), makers, arm=arm)
    for player in studied.references:
        yield run.series(f"held-out/{player}", tasks, (player, opposite))
    theirs = _with(run, board_of(run.game).model_dump(exclude=_OF_BOARDS) | FAITHFUL)
    boards = human_games(HUMAN) if studied.human_references else []
    for player in studied.human_references:
        yield run.series(f"human-boards/{player}", boards, (player, opposite), game=theirs)


def partner(game: NamedGame) -> str:
    """Who sits opposite in the evaluation: the partner of training, unless that was another policy."""
    services = (name for name in game.parameters.seating if name.startswith("service:"))
    return next(services, "scripted")


def _with(run: Evaluation, parameters: dict[str, Any]) -> NamedGame:
    """The run's game with other parameters."""
    given = matching.Parameters.model_validate(parameters)
    return NamedGame(run.game.name, given, matching.taskset(given, run.seed, ""))


def _prober(seat: Seat) -> Player:
    assert isinstance(seat.game, MatchingGame)
    return TextSeat(Prober(seat.game, seat.name, seat.seed))


def _forced(run: Evaluation, player: str, arm: str) -> PlayerMaker:
    return forced_maker(arm, run.policy(player), board_of(run.game).size)


def finish(run: Evaluation) -> None:
    """What people did on their boards, as episodes of the series `human-boards`."""
    episodes = [_people(run.game.name, task) for task in human_games(HUMAN)]
    write_shard(run.folder / "human-boards/humans/00000.parquet", episodes)


def inputs(parameters: Section) -> Sequence[Path]:
    return [HUMAN]


def _people(game: str, task: Task) -> Episode:
    played = replay(task)
    unplayed = MatchingGame(Board.from_game_state(task.state), Limits(1), task.game_id)
    return Episode(
        f"human-boards/humans/{task.game_id}",
        task.game_id,
        game,
        dict.fromkeys(played.seats, "humans"),
        series="human-boards",
        turns=[Turn(seat, heard(unplayed.observe(seat)), said(text)) for seat, text in transcript(task)],
        rewards=played.rewards(),
        metrics=played.metrics(),
    )
