"""What the study plays: who earns what, what asking is worth, what transfers, how shy the partner is, and what people
did."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

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
from slim_rl.rollout.seating import Seat
from slim_rl.rollout.shards import write_shard
from slim_rl.rollout.store import Store
from slim_rl.studies.asking.forced import Free, as_many, asks_on, asks_planned, asks_unknown, forbidden, given
from slim_rl.studies.asking.parameters import ASKS_ON, ASKS_PLANNED, ASKS_UNKNOWN, FAITHFUL, HUMAN, Parameters, board_of
from slim_rl.studies.asking.transfer import changes, with_parameters

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
    tasks, studied, opposite, board = run.tasks, run.parameters, partner(run.game), board_of(run.game)
    assert isinstance(studied, Parameters)
    probed = [_without_limits(task) for task in tasks[:PROBED]]
    game = with_parameters(run.game, board.model_dump(exclude=_LIMITS) | {"max_turns": MAX_TURNS}, run.seed)
    planned = [run.series("partner/probe", probed, ("probe", opposite), game=game)]
    few = tasks[: studied.transplant_games]
    games = list(_not_in_training(run, studied.transfer_games))

    def transfer(player: str) -> list[Series]:
        return [
            run.series(f"transfer/{name}/{player}", boards, (player, met), arm=name, game=game)
            for name, game, boards, met in games
        ]

    for player in run.checkpoints:
        planned.append(run.series(f"held-out/{player}", tasks, (player, opposite)))
        if len(policy_seats(run.game)) > 1:
            planned.append(run.series(f"self-play/{player}", tasks, (player, player)))
            planned.append(run.series(f"second-seat/{player}", tasks, ("scripted", player)))
        if player == "base":
            rules = {ASKS_ON: asks_on, ASKS_PLANNED: asks_planned}
            if board.p_rough:  # else it would play like ASKS_ON
                rules[ASKS_UNKNOWN] = asks_unknown
            for name, rule in rules.items():
                planned.append(run.series(f"held-out/{name}", tasks, (name, opposite), {name: rule}, model=player))
        if few:
            rules = {player: forbidden}
            planned.append(run.series(f"transplant/{player}-forbidden", few, (player, opposite), rules, "forbidden"))
        planned += transfer(player)
    if few and run.checkpoints:
        planned += [
            _exchange(run, few, "base", "given-base", given, "base"),
            _exchange(run, few, "base", "given-trained", given, "trained"),
            _exchange(run, few, "base", "as-many", as_many, "trained"),
            _exchange(run, few, "trained", "given-base", given, "base"),
        ]
    for player in dict.fromkeys(("bayes", *studied.references)):
        planned.append(run.series(f"held-out/{player}", tasks, (player, opposite)))
    planned += transfer("optimal")
    if studied.human_references:
        boards = human_games(HUMAN)
        game = with_parameters(run.game, board.model_dump(exclude=_OF_BOARDS | _LIMITS) | FAITHFUL, run.seed)
        for player in studied.human_references:
            planned.append(run.series(f"human-boards/{player}", boards, (player, opposite), game=game))
    return planned


def partner(game: NamedGame) -> str:
    """Who sits opposite in the evaluation: the partner of training, unless that was another policy."""
    names = game.parameters.seating
    return next((name for name in names if name == "ignorant" or name.startswith("service:")), "scripted")


def _without_limits(task: Task) -> Task:
    return replace(task, state={name: value for name, value in task.state.items() if name not in _LIMITS_OF_TASKS})


def _exchange(
    run: Evaluation,
    tasks: Sequence[Task],
    player: str,
    arm: str,
    rule: Callable[[Free, Player, Seat], Player],
    other: str,
) -> Series:
    """The series `transplant/PLAYER-ARM`, on the boards that both checkpoints have played.

    Args:
        rule: needs the free play of `other`, which is read when the first game begins.
    """

    @cache
    def free() -> Free:
        return _free(run, other)

    def both_played() -> list[Task]:
        boards = set.intersection(*({*_free(run, name)} for name in run.checkpoints))
        return [task for task in tasks if task.game_id in boards]

    def by_rule(policy: Player, seat: Seat) -> Player:
        return rule(free(), policy, seat)

    seating, after = (player, partner(run.game)), tuple(f"held-out/{name}" for name in run.checkpoints)
    return run.series(f"transplant/{player}-{arm}", both_played, seating, {player: by_rule}, arm, after=after)


def _free(run: Evaluation, player: str) -> Free:
    return {episode.game_id: episode for episode in Store(run.folder / "held-out" / player).finished().values()}


def _not_in_training(run: Evaluation, count: int) -> Iterator[tuple[str, NamedGame, list[Task], str]]:
    """Games that training did not play, with `count` boards: name, game, boards and partner; none if the partner costs
    money."""
    opposite = partner(run.game)
    if count and not opposite.startswith("service:"):
        for name, change in changes(run.game):
            game = with_parameters(run.game, {**board_of(run.game).model_dump(), **change.parameters}, run.seed)
            yield name, game, list(game.taskset.tasks("evaluate", count)), change.partner or opposite


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
