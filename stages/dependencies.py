"""The parameters of a run, and what the results of each stage depend on besides the outputs of other stages."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from slim_rl.config import PATH, RUN, Config, checked, composed, load_config
from slim_rl.core.parameters import GameParameters, Section, flat
from slim_rl.games import load_games
from slim_rl.runtime.code import dependencies, file_lines, fingerprint, module_file, work_folder
from slim_rl.runtime.files import write_text
from slim_rl.runtime.imports import folders_in
from slim_rl.studies import parameters_of, study_module

LISTS = Path("data/code")
RUN_VARIABLE = "SLIM_RL_RUN"
"""The environment variable with the path of the run.yaml that a run has composed and checked."""
_NOTE = "# What a run reads. The next run writes it anew. Composed of params.yaml and "
SECTIONS = {
    "games": ("seed", "games"),
    "base_model": ("seed", "cores", "games", "model", "warmstart"),
    "train": ("seed", "cores", "concurrency", "games", "services", "model", "train", "slime", "tinker", "evaluate"),
    "evaluate": ("seed", "cores", "concurrency", "games", "services", "model", "evaluate", "studies"),
    "analyze": tuple(Config.model_fields),
}
"""The parameters that each stage reads. `values` leaves out those that don't change its results."""
_OF_A_SERVICE = {"model", "base_url", "temperature", "max_reply_tokens"}
"""What changes a service's replies: not how fast it is asked, nor what it may cost."""
_OF_A_TRAINING = {"base_url", "base_model", "rank", "seed", "loss_scale"}
"""The same of `tinker`."""
_OF_NO_RESULT = ("checkpoint_minutes", "max_logprob_gap", "wandb_project")
"""Parameters of `train` that may change while a training lasts. `steps` and `snapshot_every` may not: a shorter training would
get a longer one's model, and copies of steps that have been taken would be missing."""
_RATES = ("parameter train.learning_rate ", "parameter warmstart.learning_rate ")


def parameters_of_the_run() -> Config:
    """The parameters of the run that a stage belongs to. A stage that is started by itself (`dvc repro --single-item`)
    belongs to the last run, but sees what params.yaml says now.

    Raises:
        UserError: a parameter is wrong.
    """
    if RUN_VARIABLE not in os.environ and RUN.is_file():
        note, _, _ = RUN.read_text(encoding="utf-8").partition("\n")
        if note.startswith(_NOTE):
            last = json.loads(note.removeprefix(_NOTE))
            values = composed(last["profile"], last["set"])
            if values != composed(path=RUN):
                config = checked(values, str(PATH))
                write_run(values, **last)
                write_lists(config)
    return load_config()


def write_run(values: Mapping[str, Any], profile: str | None, set: Mapping[str, Any]) -> None:
    """Write run.yaml, and what it was composed of besides params.yaml."""
    note = _NOTE + json.dumps({"profile": profile, "set": set}, default=str)
    write_text(RUN, f"{note}\n{yaml.safe_dump(dict(values), sort_keys=False)}")


def write_lists(config: Config) -> None:
    for stage in SECTIONS:
        write_text(LISTS / f"{stage}.txt", "\n".join(lines(stage, config)) + "\n")


def lines(stage: str, config: Config) -> list[str]:
    """A line for each module, package, parameter, file and checkpoint, in a fixed order."""
    files = [file for section in _read_by(stage, config) for file in section.files() if file.is_file()]
    names, beside = [f"stages.{stage}", *_named_modules(stage, config)], []
    if stage == "analyze":
        for study in _studies(config):
            reporting = module_file(study_module(study, "reporting"))
            folder = reporting.parent if reporting else Path()
            beside += [file for file in folder.glob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    return [
        *dependencies(names),
        *(f"parameter {name} {value!r}" for name, value in flat(values(stage, config))),
        *file_lines({*files, *beside, *checkpoints_read(stage, config)}),
    ]


def training_work(stage: str, config: Config, *inputs: Any) -> tuple[Path, str]:
    """The folder of a training's unfinished work, and what names the training whatever its learning rate."""
    depends, data = lines(stage, config), fingerprint(*inputs)
    others = [line for line in depends if not line.startswith(_RATES)]
    return work_folder(stage, depends, data), fingerprint(others, data)


def values(stage: str, config: Config) -> dict[str, Any]:
    """The parameters that the results of a stage depend on. They identify a run of it, also for services' budgets."""
    values = config.model_dump(mode="json", include=set(SECTIONS[stage]))
    if stage == "analyze":
        return values
    if "services" in values:
        values["services"] = {name: s.model_dump(include=_OF_A_SERVICE) for name, s in config.services.items()}
    if "studies" in values:
        studies = {name: parameters_of(name, config.studies) for name in _studies(config)}
        values["studies"] = {name: parameters.model_dump(mode="json") for name, parameters in studies.items()}
    if stage == "evaluate":
        for name in ("every_steps", "benchmarks", "allow_failed"):
            del values["evaluate"][name]
        values["model"]["context_tokens"] = config.context_limit
    if stage == "train":
        for name in _OF_NO_RESULT:
            del values["train"][name]
        evaluate, on_slime = values.pop("evaluate"), config.train.backend == "slime"
        if config.evaluate.every_steps:
            values["evaluate"] = {name: evaluate[name] for name in ("every_steps", "benchmarks")}
        if not on_slime:
            del values["slime"]
        values["tinker"] = config.tinker_server.model_dump(include=_OF_A_TRAINING)
        if config.train.backend != "tinker":
            del values["tinker"]
        if on_slime and config.slime.evaluate_every:
            values["evaluate"] = {"temperature": evaluate["temperature"]}
            return values
    if stage in ("base_model", "train"):
        for game in values["games"].values():
            del game["eval_count"]
    return values


def _read_by(stage: str, config: Config) -> Iterator[Section]:
    """The sections that may name files."""
    yield from _played(stage, config).values()
    if stage == "evaluate":
        yield from (parameters_of(study, config.studies) for study in _studies(config))


def checkpoints_read(stage: str, config: Config) -> set[Path]:
    """The checkpoints of this machine that a stage reads and that no other stage has written: files, or folders."""
    named = {config.model.base} if stage == "base_model" else set()
    if stage in ("train", "evaluate"):
        seated = {name for game in _played(stage, config).values() for name in game.seating}
        named = {name.removeprefix("checkpoint:") for name in seated if name.startswith("checkpoint:")}
    return {Path(name) for name in named - {"tiny"} if Path(name).exists()}


def _played(stage: str, config: Config) -> dict[str, GameParameters]:
    benchmarks = config.evaluate.benchmarks.values() if stage == "train" else ()
    return {**{benchmark.game: benchmark.parameters for benchmark in benchmarks}, **config.games}


def _named_modules(stage: str, config: Config) -> Iterator[str]:
    """The modules that a stage loads by the names that the parameters have: of ours, or the user's own."""
    games = _played(stage, config)
    for name in games:
        yield _module("slim_rl.games", name.partition(":")[0])
    functions = [game.reward_function.function for game in games.values() if game.reward_function]
    functions += [name.partition(":")[2] for name in games]  # a variant may be a function of the user's own
    if stage == "train":
        functions += [*config.train.filters, config.train.advantage]
        if ":" not in config.train.advantage:
            yield f"slim_rl.training.advantages.{config.train.advantage}"
    yield from (function.partition(":")[0] for function in functions if ":" in function)
    for part in {"evaluate": ("parameters", "plan"), "analyze": ("parameters", "reporting")}.get(stage, ()):
        for study in _studies(config):
            yield study_module(study, part)


def _studies(config: Config) -> list[str]:
    """The studies that judge the games."""
    return sorted({game.taskset.study for game in load_games(config.games, config.seed).values()})


def _module(package: str, name: str) -> str:
    return f"{package}.{name}" if name in folders_in(package) else name
