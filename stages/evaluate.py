"""Stage `evaluate`: play the series that each game's study names, on held-out tasks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.evaluation.series import Evaluation, Models, Series
from slim_rl.games import file_name, load_games
from slim_rl.players.services import Services
from slim_rl.rollout.collect import TRIES, collect
from slim_rl.rollout.seating import Request
from slim_rl.rollout.shards import statuses
from slim_rl.rollout.store import Store
from slim_rl.rollout.tasks import TaskFile, tasks_path
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.code import work_folder
from slim_rl.runtime.team import Team, run_as_team
from slim_rl.studies import load_study, parameters_of
from stages.dependencies import lines, parameters_of_the_run
from stages.services import services_of
from stages.workspace import sole_stage

GAMES, EPISODES = Path("data/games"), Path("data/episodes")
CHECKPOINTS = {"base": Path("models/base"), "trained": Path("models/trained")}
SNAPSHOTS = Path("models/snapshots")


@sole_stage()
def main() -> None:
    config = parameters_of_the_run()
    run_as_team(partial(evaluate, config), config.playing_processes)


async def evaluate(config: Config, team: Team) -> None:
    import torch

    torch.set_num_threads(config.cores // team.size)
    folder = evaluation_folder(config)
    lacking, reason = 0, ""
    async with evaluations(config, folder) as (runs, services):
        for run in runs:
            plan = load_study(run.game.taskset.study, "plan")
            for one in plan.series(run):
                requests = one.requests()
                if await team.lead(team.leads and not missing(one)):
                    continue
                episodes = await collect(
                    requests,
                    (await one.seating()).play,
                    Store(one.folder),
                    config.concurrency,
                    TRIES,
                    f"{run.game.name}: {one.name}",
                    services.status,
                    team,
                )
                lacking += await team.lead(len(missing(one)) if team.leads else 0)
                reason = reason or next((episode.error for episode in episodes if episode.status == "failed"), "")
            if hasattr(plan, "finish") and team.leads:
                plan.finish(run)
        if lacking and not config.evaluate.allow_failed:
            raise UserError(
                f"{lacking} episodes of the evaluation are missing; the first failed with {reason}. The same command plays "
                "only these; with evaluate.allow_failed=true the evaluation ends without them."
            )
        if team.leads:
            Store(folder).publish(EPISODES, services.bills())


def missing(one: Series) -> list[Request]:
    """The episodes of a series that its shards do not have; without any, no model needs to be loaded for it."""
    ended = {episode_id for episode_id, status in statuses(one.folder) if status != "failed"}
    return [request for request in one.requests() if request.episode_id not in ended]


def evaluation_folder(config: Config) -> Path:
    """Gathers the episodes of this evaluation until all are there, GAME/SERIES/PLAYER."""
    files = [tasks_path(GAMES, game, "evaluate") for game in load_games(config.games, config.seed).values()]
    return work_folder("evaluate", lines("evaluate", config), *files, *CHECKPOINTS.values(), SNAPSHOTS)


@asynccontextmanager
async def evaluations(config: Config, folder: Path) -> AsyncIterator[tuple[list[Evaluation], Services]]:
    """The evaluation of each game, gathered in `folder`, and the services that it pays for.

    At the end the server of `evaluate.server` is stopped, if one was started.
    """
    snapshots = {path.name: path for path in sorted(SNAPSHOTS.glob("step-*"))}
    loaded = Models(config.evaluate, config.model, config.context_limit)
    async with services_of(config, "evaluate") as services, loaded as models:
        runs = [
            Evaluation(
                game,
                parameters_of(game.taskset.study, config.studies),
                config.evaluate,
                config.model,
                config.seed,
                folder / file_name(game.name),
                services,
                models,
                TaskFile(tasks_path(GAMES, game, "evaluate"), game),
                CHECKPOINTS,
                snapshots,
            )
            for game in load_games(config.games, config.seed).values()
        ]
        yield runs, services


if __name__ == "__main__":
    run_stage(main, __doc__)
