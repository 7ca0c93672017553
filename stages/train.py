"""Stage `train`: the policy learns from what the game earns alone."""

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from dvclive import Live
from transformers import AutoTokenizer

from slim_rl.config import Config, load_config
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.errors import told_in_a_sentence
from slim_rl.games import game_kind, read_games
from slim_rl.games.game import GameKind
from slim_rl.players.chat_format import qwen3_format
from slim_rl.rollout.store import read_episodes
from slim_rl.rollout.summary import describe
from slim_rl.rollout.table import Table
from slim_rl.seating import check_context, make_table, partner_service, policy_makers, write_bill
from slim_rl.slime import launch
from slim_rl.training.checkpoint import copy_checkpoint, fingerprint, save_model, work_folder
from slim_rl.training.grpo import train
from slim_rl.training.pool import SEAT

GAMES, BASE = Path("data/games"), Path("models/base")
TRAINED, SNAPSHOTS = Path("models/trained"), Path("models/snapshots")
ROLLOUTS, CURVES = Path("data/rollouts"), Path("reports/training")
PARAMETERS = (
    "seed", "threads", "concurrency", "game", "seating", "board", "games", "textarena", "partner", "model", "train",
)  # fmt: skip


def main() -> None:
    config = load_config()
    kind, path = game_kind(config), GAMES / f"train.{config.games.format}"
    games = read_games(path, kind)
    parameters = config.work_inputs(*PARAMETERS)
    if config.train.backend == "slime":
        # What took days stays when code or other parameters change: only its owner removes it.
        weights = [[file.name, file.stat().st_size] for file in sorted(BASE.iterdir())]
        folder = Path(".work/slime", fingerprint(parameters, path, BASE / "config.json", weights))
        train_on_slime(config, kind, games, folder)
    else:
        frozen = [Path(name.removeprefix("checkpoint:")) for name in config.players if ":" in name]
        folder = work_folder(Path(".work/train"), parameters, path, BASE, *frozen)
        train_here(config, kind, games, folder)
    shutil.rmtree(SNAPSHOTS, ignore_errors=True)
    SNAPSHOTS.mkdir(parents=True)
    for snapshot in sorted((folder / "snapshots").glob("step-*")):
        copy_checkpoint(snapshot, SNAPSHOTS / snapshot.name)
        AutoTokenizer.from_pretrained(BASE).save_pretrained(SNAPSHOTS / snapshot.name)
    shutil.rmtree(ROLLOUTS, ignore_errors=True)
    shutil.copytree(folder / "rollouts", ROLLOUTS, ignore=shutil.ignore_patterns(".*"))
    write_bill(ROLLOUTS, partner_service(config, folder))


def train_here(config: Config, kind: GameKind, games: list[dict], folder: Path) -> None:
    torch.set_num_threads(config.threads)
    model, tokenizer = load_model(BASE)
    reference = copy.deepcopy(model).eval() if config.train.kl_coefficient else None
    chat_format = qwen3_format(tokenizer, config.model.thinking)
    service = partner_service(config, folder)
    check_context(model.config.max_position_embeddings, chat_format, games, config, kind)

    def table(engines: Mapping[str, LocalEngine]) -> Table:
        policies = policy_makers(config, engines, chat_format, config.train.temperature)
        return make_table(config, kind, set(config.players) - {SEAT}, policies, service)

    with curves() as log:
        train(
            config.train, model, reference, games, config.seated, table, config.concurrency, folder, log
        )  # fmt: skip
    save_model(TRAINED, model, tokenizer)


def train_on_slime(config: Config, kind: GameKind, games: list[dict], folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    chat_format = qwen3_format(tokenizer, config.model.thinking)
    check_context(config.model.context_tokens, chat_format, games, config, kind)
    files = [GAMES / f"{name}.{config.games.format}" for name in ("train", "evaluate")]
    checkpoint = launch.run(config, BASE, *files, folder)
    with curves() as log:
        for step in sorted((folder / "rollouts").iterdir()):
            log(describe(list(read_episodes(step))))
    copy_checkpoint(checkpoint, TRAINED)


@contextmanager
def curves() -> Iterator[Callable[[dict[str, float]], None]]:
    """A function that adds a step's metrics to the training curves.

    They are written anew from the run's history, so that an interruption leaves no trace in them.
    """
    with Live(str(CURVES), save_dvc_exp=False, report=None, dvcyaml=None, resume=False) as live:

        def log(metrics: dict[str, float]) -> None:
            for name, value in metrics.items():
                live.log_metric(name.replace(".", "/"), value)
            live.next_step()

        yield log


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
