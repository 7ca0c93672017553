"""Stage `evaluate`: who earns what in games that nobody was trained on."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

import slim_rl.evaluation
from slim_rl.config import Config, load_config
from slim_rl.errors import told_in_a_sentence
from slim_rl.evaluation.matches import match_series, solve
from slim_rl.evaluation.matching import human_episode, matching_series
from slim_rl.evaluation.series import Evaluation, Series
from slim_rl.files import write_whole
from slim_rl.games import game_kind, read_games
from slim_rl.games.game import GameKind
from slim_rl.games.matching.human import human_games
from slim_rl.players.chat import ChatService
from slim_rl.rollout.collect import collect
from slim_rl.rollout.store import write_shard
from slim_rl.seating import LEDGER, partner_service, write_bill
from slim_rl.training.checkpoint import work_folder

GAMES, HUMAN = Path("data/games"), Path("data/human/human_games.jsonl")
CHECKPOINTS = {"base": Path("models/base"), "trained": Path("models/trained")}
SNAPSHOTS, OUTPUT = Path("models/snapshots"), Path("data/episodes")
TRIES = 3
"""So often an episode that fails is played before it is left out."""


def main() -> None:
    config = load_config()
    torch.set_num_threads(config.threads)
    folder = evaluation_folder(config)
    service = partner_service(config, folder)
    for series in evaluation(config, folder, service):
        table, title = series.make_table(), ": ".join(series.folder.parts[-2:])
        episodes = collect(
            series.jobs,
            table.play,
            series.folder,
            config.concurrency,
            title,
            tries=TRIES,
            status=table.status,
            run=table.run,
        )
        if failed := [episode for episode in episodes if episode.status == "failed"]:
            print(
                f"{len(failed)} of {len(episodes)} episodes failed, the first with {failed[0].error}; "
                "`dvc repro --force --single-item evaluate` plays just these."
            )
    if config.game == "matching":
        humans = [human_episode(game) for game in human_games(HUMAN)]
        write_shard(folder / "human-boards/humans/00000.parquet", humans)
    elif solvable(config, kind := game_kind(config)):
        models = {**CHECKPOINTS, **snapshots()}
        worth = solve(kind, models, config.model.thinking, config.evaluate.temperature)
        text = json.dumps(worth, indent=2) + "\n"
        write_whole(folder / "solved.json", lambda part: part.write_text(text, encoding="utf-8"))
    shutil.rmtree(OUTPUT, ignore_errors=True)
    shutil.copytree(folder, OUTPUT, ignore=shutil.ignore_patterns(".*", LEDGER))
    write_bill(OUTPUT, service)


def solvable(config: Config, kind: GameKind) -> bool:
    """A model that thinks decides in too many ways, and a server does not tell probabilities of what was not said."""
    return hasattr(kind, "solve") and not config.model.thinking and config.evaluate.server is None


def evaluation_folder(config: Config) -> Path:
    """Where the episodes of this evaluation are gathered until all are there."""
    code = Path(slim_rl.evaluation.__file__).parent
    inputs = code, GAMES / f"evaluate.{config.games.format}", HUMAN, *CHECKPOINTS.values(), SNAPSHOTS
    return work_folder(Path(".work/evaluate"), config.work_inputs(), *inputs)


def evaluation(config: Config, folder: Path, service: ChatService | None) -> Iterator[Series]:
    """All that is played."""
    held_out = read_games(GAMES / f"evaluate.{config.games.format}", game_kind(config))
    run = Evaluation(config, folder, service)
    if config.game == "matching":
        return matching_series(run, held_out, HUMAN, CHECKPOINTS)
    return match_series(run, held_out, CHECKPOINTS, snapshots())


def snapshots() -> dict[str, Path]:
    return {path.name: path for path in sorted(SNAPSHOTS.glob("step-*"))}


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
