"""Stage `evaluate`: who earns what on boards nobody was trained on, and on the boards that people played."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from slim_rl.config import Config, MatchingConfig, load_config
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.errors import told_in_a_sentence
from slim_rl.games.matching import read_games
from slim_rl.games.matching.human import human_games, replay, transcript
from slim_rl.players.chat_format import qwen3_format
from slim_rl.rollout.collect import collect
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.store import write_shard
from slim_rl.rollout.table import Job, Table
from slim_rl.seating import check_context, matching_table, reference_table
from slim_rl.training.checkpoint import work_folder

GAMES, HUMAN = Path("data/games/evaluate.jsonl"), Path("data/human/human_games.jsonl")
CHECKPOINTS = {"base": Path("models/base"), "trained": Path("models/trained")}
OUTPUT = Path("data/episodes")
FAITHFUL = MatchingConfig(size=8, selection="dialop")  # the boards that people played


def main() -> None:
    config = load_config()
    torch.set_num_threads(config.threads)
    held_out, human = read_games(GAMES), human_games(HUMAN)
    folder = work_folder(
        Path(".work/evaluate"), config.model_dump(mode="json"), GAMES, HUMAN, *CHECKPOINTS.values()
    )
    for player, checkpoint in CHECKPOINTS.items():
        play(
            config,
            checkpoint_table(config, checkpoint, held_out),
            player,
            held_out,
            folder / "held-out" / player,
        )
    for player in config.evaluate.references:
        play(config, reference_table(config, config.board), player, held_out, folder / "held-out" / player)
    for player in config.evaluate.human_references:
        play(config, reference_table(config, FAITHFUL), player, human, folder / "human-boards" / player)
    write_shard(folder / "human-boards/humans/00000.parquet", [human_episode(game) for game in human])
    shutil.rmtree(OUTPUT, ignore_errors=True)
    shutil.copytree(folder, OUTPUT)


def play(config: Config, table: Table, player: str, games: Sequence[dict], folder: Path) -> None:
    jobs = [Job(f"{folder.parent.name}/{player}/{game['game_id']}", game, player) for game in games]
    collect(jobs, table.play, folder, config.concurrency, f"{folder.parent.name}: {player}")


def human_episode(game: dict) -> Episode:
    played = replay(game).game
    turns = [Turn(seat, "", text) for seat, text in transcript(game)]
    return Episode(
        f"human-boards/humans/{game['game_id']}",
        game["game_id"],
        "humans",
        step=0,
        turns=turns,
        rewards=played.rewards(),
        facts=played.facts(),
    )


def checkpoint_table(config: Config, checkpoint: Path, games: Sequence[dict]) -> Table:
    model, tokenizer = load_model(checkpoint)
    engine, chat_format = LocalEngine(model), qwen3_format(tokenizer, config.model.thinking)
    check_context(engine.max_context_tokens, chat_format, games, config)
    return matching_table(config, engine, chat_format, config.evaluate.temperature)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
