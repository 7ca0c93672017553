"""Stage `evaluate`: who earns what on boards nobody was trained on, and on the boards that people played."""

import atexit
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from transformers import AutoTokenizer

from slim_rl.config import Config, MatchingConfig, load_config
from slim_rl.engines.engine import Engine
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.engines.sglang import SGLangEngine, serving
from slim_rl.errors import told_in_a_sentence
from slim_rl.games.matching import load_game, read_games
from slim_rl.games.matching.human import human_games, replay, transcript
from slim_rl.intervention import ARMS, intervention_table
from slim_rl.players.chat import ChatService
from slim_rl.players.chat_format import ChatFormat, qwen3_format
from slim_rl.rollout.collect import collect
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.store import write_shard
from slim_rl.rollout.table import Job, Table
from slim_rl.seating import (
    LEDGER,
    check_context,
    matching_table,
    partner_service,
    probe_table,
    reference_table,
    write_bill,
)
from slim_rl.training.checkpoint import work_folder

GAMES, HUMAN = Path("data/games/evaluate.jsonl"), Path("data/human/human_games.jsonl")
CHECKPOINTS = {"base": Path("models/base"), "trained": Path("models/trained")}
OUTPUT = Path("data/episodes")
FAITHFUL = MatchingConfig(size=8, selection="dialop")  # the boards that people played


TRIES = 3
"""So often an episode that fails is played before it is left out."""


@dataclass(frozen=True)
class Series:
    """One player's episodes."""

    folder: Path
    make_table: Callable[[], Table]
    jobs: list[Job]


def main() -> None:
    config = load_config()
    torch.set_num_threads(config.threads)
    folder = evaluation_folder(config)
    service = partner_service(config, folder)
    for series in evaluation(config, folder, service):
        table, (boards, name) = series.make_table(), series.folder.parts[-2:]
        title = f"{boards}: {name}"
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
    humans = [human_episode(game) for game in human_games(HUMAN)]
    write_shard(folder / "human-boards/humans/00000.parquet", humans)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    shutil.copytree(folder, OUTPUT, ignore=shutil.ignore_patterns(".*", LEDGER))
    write_bill(OUTPUT, service)


def evaluation_folder(config: Config) -> Path:
    """Where the episodes of this evaluation are gathered until all are there."""
    root = Path(".work/evaluate")
    return work_folder(root, config.work_inputs(), GAMES, HUMAN, *CHECKPOINTS.values())


def evaluation(config: Config, folder: Path, service: ChatService | None) -> Iterator[Series]:
    """All that is played: checkpoints and references on held-out boards, references on people's boards, and
    the probe of the partner."""
    held_out, human = read_games(GAMES), human_games(HUMAN)

    def series(
        boards: str, player: str, games: Sequence[dict], make_table: Callable[[], Table], name: str = ""
    ) -> Series:
        place = f"{boards}/{name or player}"
        jobs = [Job(f"{place}/{game['game_id']}", game, player) for game in games]
        return Series(folder / place, make_table, jobs)

    yield series(
        "partner", "probe", held_out[: config.evaluate.probe_games], partial(probe_table, config, service)
    )
    for player, checkpoint in CHECKPOINTS.items():
        seat = partial(policy, config, checkpoint, held_out)
        yield series("held-out", player, held_out, partial(free_table, config, seat, service))
        few = held_out[: config.evaluate.intervention_games]
        for arm in ARMS if few else ():
            table = partial(arm_table, arm, config, seat, service)
            yield series("intervention", player, few, table, f"{player}-{arm}")
    for player in config.evaluate.references:
        table = partial(reference_table, config, config.board, service)
        yield series("held-out", player, held_out, table)
    for player in config.evaluate.human_references:
        yield series("human-boards", player, human, partial(reference_table, config, FAITHFUL, service))


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


Policy = tuple[Engine, ChatFormat, float]
"""What the seats of a checkpoint are made of."""


def policy(config: Config, checkpoint: Path, games: Sequence[dict]) -> Policy:
    engine: Engine
    if config.evaluate.server is None:
        model, tokenizer = load_model(checkpoint)
        engine = LocalEngine(model)
    else:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        engine = SGLangEngine(served(config.evaluate.server, checkpoint), config.model.context_tokens)
    chat_format = qwen3_format(tokenizer, config.model.thinking)
    check_context(engine.max_context_tokens, chat_format, games, config)
    return engine, chat_format, config.evaluate.temperature


_servers = ExitStack()
atexit.register(_servers.close)


@lru_cache(maxsize=1)
def served(command: str, checkpoint: Path) -> str:
    """The address of a server for `checkpoint`; the one for another checkpoint makes room for it."""
    _servers.close()
    return _servers.enter_context(serving(command, checkpoint))


def free_table(config: Config, seat: Callable[[], Policy], service: ChatService | None) -> Table:
    return matching_table(config, *seat(), service)


def arm_table(arm: str, config: Config, seat: Callable[[], Policy], service: ChatService | None) -> Table:
    return intervention_table(arm, config, *seat(), service)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
