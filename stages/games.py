"""Stage `games`: the tasks to train on and those held out, a folder for each game."""

from pathlib import Path

from tqdm import tqdm

from slim_rl.core.game import Purpose
from slim_rl.games import NamedGame, load_games
from slim_rl.rollout.tasks import tasks_path, write_tasks
from slim_rl.runtime.cli import run_stage
from stages.dependencies import parameters_of_the_run

OUTPUT = Path("data/games")


def main() -> None:
    config = parameters_of_the_run()
    for game in load_games(config.games, config.seed).values():
        write(game, "train", game.parameters.train_count)
        write(game, "evaluate", game.parameters.eval_count)


def write(game: NamedGame, purpose: Purpose, count: int) -> None:
    tasks = game.taskset.tasks(purpose, count)
    bar = tqdm(tasks, total=count, desc=f"{game.name}, {purpose}", unit="task")
    write_tasks(tasks_path(OUTPUT, game, purpose), bar)


if __name__ == "__main__":
    run_stage(main, __doc__)
