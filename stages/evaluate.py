"""Stage `evaluate`: who earns what on boards nobody was trained on, and on the boards that people played."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from slim_rl.config import Config, MatchingConfig, load_config
from slim_rl.engines.engine import Engine
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.errors import told_in_a_sentence
from slim_rl.games.matching import load_game, read_games
from slim_rl.games.matching.human import human_games, replay, transcript
from slim_rl.intervention import ARMS, intervention_table
from slim_rl.players.chat_format import ChatFormat, qwen3_format
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
        seat = policy(config, checkpoint, held_out)
        play(config, matching_table(config, *seat), player, held_out, folder / "held-out" / player)
        few = held_out[: config.evaluate.intervention_games]
        for arm in ARMS if few else ():
            table = intervention_table(arm, config, *seat)
            play(config, table, player, few, folder / "intervention" / f"{player}-{arm}")
    for player in config.evaluate.references:
        play(config, reference_table(config, config.board), player, held_out, folder / "held-out" / player)
    for player in config.evaluate.human_references:
        play(config, reference_table(config, FAITHFUL), player, human, folder / "human-boards" / player)
    write_shard(folder / "human-boards/humans/00000.parquet", [human_episode(game) for game in human])
    shutil.rmtree(OUTPUT, ignore_errors=True)
    shutil.copytree(folder, OUTPUT)


def play(config: Config, table: Table, player: str, games: Sequence[dict], folder: Path) -> None:
    name = f"{folder.parent.name}/{folder.name}"
    jobs = [Job(f"{name}/{game['game_id']}", game, player) for game in games]
    collect(jobs, table.play, folder, config.concurrency, name.replace("/", ": "))


def human_episode(game: dict) -> Episode:
    played = replay(game).game
    unplayed = load_game(game, max_turns=1)
    turns = [Turn(seat, unplayed.observe(seat), text) for seat, text in transcript(game)]
    return Episode(
        f"human-boards/humans/{game['game_id']}",
        game["game_id"],
        "humans",
        step=0,
        turns=turns,
        rewards=played.rewards(),
        facts=played.facts(),
    )


def policy(config: Config, checkpoint: Path, games: Sequence[dict]) -> tuple[Engine, ChatFormat, float]:
    """What the seats of a checkpoint are made of."""
    model, tokenizer = load_model(checkpoint)
    engine, chat_format = LocalEngine(model), qwen3_format(tokenizer, config.model.thinking)
    check_context(engine.max_context_tokens, chat_format, games, config)
    return engine, chat_format, config.evaluate.temperature


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
