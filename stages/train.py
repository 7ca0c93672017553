"""Stage `train`: GRPO on the quality of the final assignment alone."""

import copy
import shutil
from pathlib import Path

import torch
from dvclive import Live

from slim_rl.config import load_config
from slim_rl.engines.local import LocalEngine
from slim_rl.errors import told_in_a_sentence
from slim_rl.games.matching import read_games
from slim_rl.players.chat_format import qwen3_format
from slim_rl.rollout.table import Table
from slim_rl.seating import check_context, matching_table, partner_service, write_bill
from slim_rl.training.checkpoint import load_model, save_model, work_folder
from slim_rl.training.grpo import train

GAMES, BASE = Path("data/games/train.jsonl"), Path("models/base")
TRAINED, ROLLOUTS, CURVES = Path("models/trained"), Path("data/rollouts"), Path("reports/training")


def main() -> None:
    config = load_config()
    torch.set_num_threads(config.threads)
    games = read_games(GAMES)
    model, tokenizer = load_model(BASE)
    reference = copy.deepcopy(model).eval() if config.train.kl_coefficient else None
    chat_format = qwen3_format(tokenizer, config.model.thinking)

    def make_table(engine: LocalEngine) -> Table:
        check_context(engine, chat_format, games, config)
        return matching_table(config, engine, chat_format, config.train.temperature, service)

    parameters = config.work_inputs("seed", "threads", "concurrency", "games", "partner", "model", "train")
    folder = work_folder(Path(".work/train"), parameters, GAMES, BASE)
    service = partner_service(config, folder)
    # Curves are written anew from the run's history, so that an interruption leaves no trace in them.
    with Live(str(CURVES), save_dvc_exp=False, report=None, dvcyaml=None, resume=False) as live:

        def log(metrics: dict[str, float]) -> None:
            for name, value in metrics.items():
                live.log_metric(name.replace(".", "/"), value)
            live.next_step()

        train(config.train, model, reference, games, make_table, config.concurrency, folder, log)
    save_model(TRAINED, model, tokenizer)
    shutil.rmtree(ROLLOUTS, ignore_errors=True)
    shutil.copytree(folder / "rollouts", ROLLOUTS, ignore=shutil.ignore_patterns(".*"))
    write_bill(ROLLOUTS, service)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
