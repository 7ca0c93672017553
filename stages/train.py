"""Stage `train`: the policy learns from the rewards of the games alone."""

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dvclive import Live

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import checkpoint_config, checkpoint_folder, choose, load_model, load_tokenizer
from slim_rl.games import NamedGame, load_games
from slim_rl.players.ledger import Ledger
from slim_rl.players.renderer import renderer_of
from slim_rl.players.services import Services, ledgers
from slim_rl.rollout.context import check_context
from slim_rl.rollout.filters import find_filter
from slim_rl.rollout.rewards import find_reward
from slim_rl.rollout.seating import PolicyRules, Seating, checkpoint_makers, service_makers
from slim_rl.rollout.shards import BEGAN, HELD_OUT_CSV, MACHINE, began
from slim_rl.rollout.store import Store
from slim_rl.rollout.tasks import Mixture, TaskFile, tasks_path
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.code import fingerprint, work_root
from slim_rl.runtime.files import write_text
from slim_rl.runtime.machine import machine
from slim_rl.runtime.team import Team, run_as_team
from slim_rl.slime import launch
from slim_rl.slime.parameters import RunParameters, identity
from slim_rl.slime.progress import held_out
from slim_rl.training.advantages import find_estimator
from slim_rl.training.backend import LocalBackend
from slim_rl.training.benchmarks import Benchmarks
from slim_rl.training.checkpoint import PRECISION, after_divergence, began_in, copy_checkpoint
from slim_rl.training.config import TINKER
from slim_rl.training.grpo import Rollouts, Trainer
from slim_rl.training.memory import check_trainable
from slim_rl.training.tinker import TinkerBackend
from slim_rl.training.weights import Weights
from stages.dependencies import checkpoints_read, parameters_of_the_run, training_work, values
from stages.services import services_of
from stages.workspace import sole_stage

GAMES, BASE = Path("data/games"), Path("models/base")
TRAINED, SNAPSHOTS = Path("models/trained"), Path("models/snapshots")
ROLLOUTS, CURVES = Path("data/rollouts"), Path("reports/training")

Games = Mapping[str, NamedGame]
Tasks = Mapping[str, Sequence[Task]]


@sole_stage()
def main() -> None:
    """Check everything first, train, and only then replace the results of the last run."""
    config = parameters_of_the_run()
    here = config.train.backend == "local"
    run_as_team(partial(run, config), config.playing_processes if here else 1)


async def run(config: Config, team: Team) -> None:
    torch.set_num_threads(config.cores // team.size)
    find_estimator(config.train.advantage)
    for name in config.train.filters:
        find_filter(name)
    for game in config.games.values():
        if game.reward_function:
            find_reward(game.reward_function)
    if config.train.backend == "local" and team.leads:
        kind = checkpoint_config(str(BASE))
        dtype, _ = choose(config.model.computes_in, kind)
        check_trainable(str(BASE), kind, config.train, dtype=dtype)
    games = load_games(config.games, config.seed)
    tasks = {name: TaskFile(tasks_path(GAMES, game, "train"), game) for name, game in games.items()}
    folder, key = work(config, games)
    if config.train.backend == "local":
        paid = services_of(config, "train")
    else:  # the folder names the run, for SLIME's processes too
        paid = Services(config.services, f"train/{folder.name}", ledgers())
    tinker = Ledger(ledgers() / "train.tinker.jsonl", config.tinker.price, f"train/{folder.name}")
    async with paid as services:
        if config.train.backend == "slime":
            await train_on_slime(config, games, tasks, folder)
        else:
            async with after_divergence(folder, key, config.train.learning_rate, team):
                await train_here(config, games, tasks, folder, services, tinker, team)
        if team.leads:
            publish_snapshots(folder)
            bills = services.bills()
            if tinker.totals:
                bills[TINKER] = {"model": config.tinker_server.base_model, **tinker.bill()}
            Store(folder / "rollouts").publish(ROLLOUTS, bills)
            write_text(ROLLOUTS / BEGAN, began(folder / "rollouts").isoformat() + "\n")
            precision = f", in {(folder / PRECISION).read_text()}" if (folder / PRECISION).exists() else ""
            write_text(ROLLOUTS / MACHINE, f"{machine()}{precision}\n")


def work(config: Config, games: Games) -> tuple[Path, str]:
    """The folder of the run's unfinished work, and what names the run whatever its learning rate."""
    files = [tasks_path(GAMES, game, "train") for game in games.values()]
    base = checkpoint_folder(str(BASE))
    if config.train.backend == "local":
        return training_work("train", config, *files, base)
    # A run of days or dollars goes on also after a change of code.
    weights = [[file.name, file.stat().st_size] for file in sorted(base.iterdir())]
    inputs, frozen = remote_inputs(config), sorted(checkpoints_read("train", config))
    folder, key = (
        fingerprint({**inputs, "train": train}, *files, base / "config.json", weights, *frozen)
        for train in (inputs["train"], {**inputs["train"], "learning_rate": None})
    )
    return Path(work_root(), config.train.backend, folder), key


def remote_inputs(config: Config) -> dict[str, Any]:
    inputs = values("train", config)
    sections = ("seed", "games", "services", "model", "train", "tinker")
    return identity({name: inputs[name] for name in sections if name in inputs})


async def backend_of(
    config: Config, folder: Path, ledger: Ledger, team: Team
) -> tuple[LocalBackend | TinkerBackend, Any]:
    """What trains, and the tokenizer. The ledger counts what a Tinker server does."""
    if config.train.backend == "tinker":
        base, tokens = checkpoint_folder(str(BASE)), config.model.context_tokens
        return TinkerBackend(config.train, config.tinker_server, base, folder, tokens, ledger), load_tokenizer(BASE)
    model, tokenizer = load_model(BASE)
    found = began_in(folder, config.model.computes_in, model.config) if team.leads else (torch.float32, "")
    dtype, why = await team.lead(found)
    if team.leads:
        print(f"Precision: {why}.")
    weights = Weights(model, dtype, config.train.lora, reference=bool(config.train.kl_coefficient), seed=config.seed)
    return LocalBackend(config.train, weights, LocalEngine(weights.sampler), team), tokenizer


async def train_here(
    config: Config, games: Games, tasks: Tasks, folder: Path, services: Services, ledger: Ledger, team: Team
) -> None:
    backend, tokenizer = await backend_of(config, folder, ledger, team)
    engine = backend.engine
    rules = PolicyRules(renderer_of(config.model, tokenizer), config.model.turn_tokens, config.train.temperature)
    for name, game in games.items():
        context_tokens, limit = engine.max_context_tokens, config.context_limit
        await check_context(game, tasks[name], rules.renderer, context_tokens, config.model.turn_tokens, limit)
    benchmarks = config.evaluate.benchmarks
    seated = {name for benchmark in benchmarks.values() for name in benchmark.parameters.seating}
    names = config.players | seated
    paid = service_makers(names, services)
    turn = engine.turn if isinstance(engine, LocalEngine) else asyncio.Lock()
    others = {**paid, **checkpoint_makers(names, config.model, config.train.temperature, turn)}
    bought = [services.status] * bool(paid) + [ledger.status] * isinstance(backend, TinkerBackend)
    rollouts = Rollouts(
        Mixture(tasks, {name: game.parameters.weight for name, game in games.items()}),
        Seating(games, {**others, "policy": rules.maker(engine)}, config.seed),
        config.concurrency,
        bool(bought),
        lambda: "; ".join(filter(None, (status() for status in bought))),
    )
    measured = None
    if config.evaluate.every_steps:
        measured = Benchmarks(
            benchmarks,
            config.evaluate.every_steps,
            config.seed,
            lambda temperature: replace(rules, temperature=temperature),
            others,
            config.concurrency,
            folder / "benchmarks",
            team,
        )
    trainer = Trainer(config.train, backend, rollouts, folder, measured, team)
    project = config.train.wandb_project if team.leads else None
    with curves() as log, wandb_curves(project, folder) as log_too:

        def on_step(metrics: dict[str, float]) -> None:
            if team.leads:
                log(metrics)
                log_too(metrics)

        await trainer.train(on_step)
    if team.leads:
        await backend.export(TRAINED, tokenizer)


async def train_on_slime(config: Config, games: Games, tasks: Tasks, folder: Path) -> None:
    made = config.model
    renderer = renderer_of(made, load_tokenizer(BASE))
    for name, game in games.items():
        await check_context(game, tasks[name], renderer, made.context_tokens, made.turn_tokens, made.context_tokens)
    kept_apart = {name: TaskFile(tasks_path(GAMES, game, "evaluate"), game) for name, game in games.items()}
    with curves() as log:
        checkpoint = await launch.run(RunParameters.of(config), BASE, tasks, kept_apart, folder, log)
    evaluated = held_out(folder)
    if len(evaluated):
        write_text(folder / "rollouts" / HELD_OUT_CSV, evaluated.to_csv(index=False))
    copy_checkpoint(checkpoint, TRAINED)


@contextmanager
def curves() -> Iterator[Callable[..., None]]:
    """A function that adds a step's metrics to the training curves: of the next step, or of the step that it is given.

    The first call replaces the curves of the last run. A resumed run logs its history first, so an
    interruption leaves no trace in them.
    """
    with ExitStack() as opened:
        live: Live | None = None

        def log(metrics: Mapping[str, float], step: int | None = None) -> None:
            nonlocal live
            if live is None:
                new = Live(str(CURVES), save_dvc_exp=False, report=None, dvcyaml=None, resume=False)
                live = opened.enter_context(new)
            if step is not None:
                live.step = step
            for name, value in metrics.items():
                live.log_metric(name, value)
            live.next_step()

        yield log


@contextmanager
def wandb_curves(project: str | None, folder: Path) -> Iterator[Callable[[dict[str, float]], None]]:
    """The same for Weights & Biases; nothing without a project. A resumed run goes on in the same curves.

    Raises:
        UserError: the package is not installed.
    """
    if project is None:
        yield lambda metrics: None
        return
    try:
        import wandb
    except ImportError:
        raise UserError("train.wandb_project needs the package wandb: pip install wandb==0.31.0.") from None
    with wandb.init(project=project, id=folder.name, dir=str(folder), resume="allow") as run:
        steps = itertools.count()
        yield lambda metrics: run.log(metrics, step=next(steps))


def publish_snapshots(folder: Path) -> None:
    shutil.rmtree(SNAPSHOTS, ignore_errors=True)
    SNAPSHOTS.mkdir(parents=True)
    for snapshot in sorted((folder / "snapshots").glob("step-*")):
        copy_checkpoint(snapshot, SNAPSHOTS / snapshot.name)
        load_tokenizer(BASE).save_pretrained(SNAPSHOTS / snapshot.name)


if __name__ == "__main__":
    run_stage(main, __doc__)
