"""What the study plays: who earns what, what asking is worth, what transfers, how shy the partner is, and what people
did."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.game import Task
from slim_rl.core.message import heard, said
from slim_rl.core.player import Player
from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.games import NamedGame, policy_seats
from slim_rl.games.matching.board import Board
from slim_rl.games.matching.human import human_games, replay, transcript
from slim_rl.games.matching.rules import Limits, MatchingGame
from slim_rl.games.matching.scripted import MAX_TURNS
from slim_rl.rollout.seating import Arm, Seat
from slim_rl.rollout.shards import write_shard
from slim_rl.rollout.store import Store
from slim_rl.studies.asking import transfer
from slim_rl.studies.asking.forced import Free, as_many, asks_on, asks_planned, asks_unknown, forbidden, given
from slim_rl.studies.asking.parameters import ASKS_ON, ASKS_PLANNED, ASKS_UNKNOWN, FAITHFUL, HUMAN, Parameters, board_of

PROBED = 64
"""Held-out boards on which the partner's shyness is tested."""
_OF_BOARDS = {"size", "selection", "p_agent", "p_rough", "p_partner", "scale_range", "stake"}
_LIMITS, _LIMITS_OF_TASKS = {"patience", "question_price", "spare_turns"}, {"patience", "price", "max_turns"}


def series(run: Evaluation) -> list[Series]:
    """The probe of the partner; checkpoints and references on held-out boards and in games not seen in training;
    checkpoints with each other's questions; and references on people's boards.

    A policy that was trained in both seats meets the partner in either, and itself. The exchange of questions covers
    the boards for which there is free play of both checkpoints.
    """
    tasks, studied, opposite = run.tasks, run.parameters, partner(run.game)
    assert isinstance(studied, Parameters)
    probed = [_without_limits(task) for task in tasks[:PROBED]]
    patient = board_of(run.game).model_dump(exclude=_LIMITS) | {"max_turns": MAX_TURNS}
    game = transfer.with_parameters(run.game, patient, run.seed)
    planned = [run.series("partner/probe", probed, ("probe", opposite), game=game)]
    few = tasks[: studied.transplant_games]
    transfers = _transfers(run)
    for player in run.checkpoints:
        planned.append(run.series(f"held-out/{player}", tasks, (player, opposite)))
        if len(policy_seats(run.game)) > 1:
            planned.append(run.series(f"self-play/{player}", tasks, (player, player)))
            planned.append(run.series(f"second-seat/{player}", tasks, ("scripted", player)))
        if player == "base":
            rules = {ASKS_ON: asks_on, ASKS_PLANNED: asks_planned}
            if board_of(run.game).p_rough:  # else it would play like ASKS_ON
                rules[ASKS_UNKNOWN] = asks_unknown
            for name, rule in rules.items():
                planned.append(run.series(f"held-out/{name}", tasks, (name, opposite), {name: rule}, model=player))
        if few:
            planned.append(_transplant(run, few, player, "forbidden", forbidden))
        planned += _transferred(run, player, transfers)
    if few and run.checkpoints:
        planned += [
            _transplant(run, few, "base", "given-trained", _of_free_play(run, given, "trained"), exchange=True),
            _transplant(run, few, "base", "as-many", _of_free_play(run, as_many, "trained"), exchange=True),
            _transplant(run, few, "trained", "given-base", _of_free_play(run, given, "base"), exchange=True),
        ]
    for player in dict.fromkeys(("bayes", *studied.references)):
        planned.append(run.series(f"held-out/{player}", tasks, (player, opposite)))
    for player in transfer.REFERENCES:
        planned += _transferred(run, player, transfers)
    parameters = board_of(run.game).model_dump(exclude=_OF_BOARDS | _LIMITS) | FAITHFUL
    boards = human_games(HUMAN) if studied.human_references else []
    for player in studied.human_references:
        game = transfer.with_parameters(run.game, parameters, run.seed)
        planned.append(run.series(f"human-boards/{player}", boards, (player, opposite), game=game))
    return planned


def partner(game: NamedGame) -> str:
    """Who sits opposite in the evaluation: the partner of training, unless that was another policy."""
    names = game.parameters.seating
    return next((name for name in names if name == "ignorant" or name.startswith("service:")), "scripted")


def _without_limits(task: Task) -> Task:
    return replace(task, state={name: value for name, value in task.state.items() if name not in _LIMITS_OF_TASKS})


def _transplant(
    run: Evaluation, tasks: Sequence[Task], player: str, arm: str, rule: Arm, exchange: bool = False
) -> Series:
    """The series `transplant/PLAYER-ARM`; with `exchange`, on the boards that both checkpoints have played."""

    def there() -> list[Task]:
        free = [_free(run, name) for name in run.checkpoints]
        return [task for task in tasks if all(task.game_id in played for played in free)]

    seating, after = (player, partner(run.game)), tuple(f"held-out/{name}" for name in run.checkpoints)
    if exchange:
        return run.series(f"transplant/{player}-{arm}", there, seating, {player: rule}, arm, after=after)
    return run.series(f"transplant/{player}-{arm}", tasks, seating, {player: rule}, arm)


class _Transfer(NamedTuple):
    name: str
    game: NamedGame
    tasks: Sequence[Task]
    partner: str


def _transfers(run: Evaluation) -> list[_Transfer]:
    """Games not seen in training; none if the partner costs money."""
    assert isinstance(run.parameters, Parameters)
    count, opposite = run.parameters.transfer_games, partner(run.game)
    if not count or opposite.startswith("service:"):
        return []
    transfers = []
    for name, change in transfer.changes(run.game):
        game = transfer.changed(run.game, change, run.seed)
        transfers.append(_Transfer(name, game, list(game.taskset.tasks("evaluate", count)), change.partner or opposite))
    return transfers


def _transferred(run: Evaluation, player: str, games: Sequence[_Transfer]) -> list[Series]:
    return [
        run.series(f"transfer/{name}/{player}", tasks, (player, opposite), arm=name, game=game)
        for name, game, tasks, opposite in games
    ]


def _free(run: Evaluation, player: str) -> Free:
    return {episode.game_id: episode for episode in Store(run.folder / "held-out" / player).finished().values()}


def _of_free_play(run: Evaluation, rule: Callable[[Free, Player, Seat], Player], other: str) -> Arm:
    """A rule that needs the free play of the other model, which is read when the first game begins."""
    free = cache(partial(_free, run, other))
    return lambda player, seat: rule(free(), player, seat)


def finish(run: Evaluation) -> None:
    """What people did on their boards, as episodes of the series `human-boards`."""
    episodes = [_people(run.game.name, task) for task in human_games(HUMAN)]
    write_shard(run.folder / "human-boards/humans/00000.parquet", episodes)


def _people(game: str, task: Task) -> Episode:
    played = replay(task)
    unplayed = MatchingGame(Board.from_game_state(task.state), Limits(1), task.game_id)
    return Episode(
        f"human-boards/humans/{task.game_id}",
        task.game_id,
        game,
        dict.fromkeys(played.seats, "humans"),
        series="human-boards",
        turns=[Turn(seat, heard(unplayed.read(seat)), said(text)) for seat, text in transcript(task)],
        rewards=played.rewards(),
        metrics=played.metrics(),
    )
