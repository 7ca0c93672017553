"""`params.yaml` as one checked model: the sections of all rooms, composed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator
from rapidfuzz import process

from slim_rl.core.errors import UserError
from slim_rl.core.parameters import GameParameters, Section
from slim_rl.evaluation.config import EvaluateConfig
from slim_rl.games import game_parameters, load_games
from slim_rl.players.config import ModelConfig, ServiceConfig
from slim_rl.runtime.imports import folders_in, own_files
from slim_rl.slime.config import SlimeConfig
from slim_rl.studies import study_parameters
from slim_rl.training.config import TrainConfig, WarmstartConfig

PATH = Path("params.yaml")
_SHOWN = 100  # characters of a wrong value that a sentence repeats


class Config(Section):
    """All of `params.yaml`."""

    seed: int = Field(0, ge=0)
    threads: int = Field(2, ge=1)
    """Torch threads of each process. Another number changes the last digits of sums, and with them the sampled
    episodes."""
    processes: int = Field(1, ge=1)
    """Processes that share the warm start, the training on this machine and the evaluation; each has a model of its own.
    On few cores a small model trains faster with more processes than with more threads. With a GPU there is one; `train`
    and `evaluate` also run in one with `services` or `evaluate.server`. One process takes the threads of all."""
    concurrency: int = Field(256, ge=1)
    """Episodes played at once."""
    secrets: dict[str, str | None] = Field(default_factory=dict)
    """For every game that takes secrets; those of the game itself come first."""
    games: dict[str, SerializeAsAny[GameParameters]] = Field(min_length=1)
    """By name: a folder of `slim_rl/games`, with what comes after a colon for that game ("cards:bridge"); or the
    import path of a module of your own."""
    services: dict[str, ServiceConfig] = Field(default_factory=dict)
    """Models behind an API, by the name that seats call them: `service:NAME`."""
    model: ModelConfig = ModelConfig()
    warmstart: WarmstartConfig = WarmstartConfig()
    train: TrainConfig = TrainConfig()
    slime: SlimeConfig = SlimeConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    studies: dict[str, SerializeAsAny[Section]] = Field(default_factory=dict)
    """Parameters of studies, by name; a study that is left out has its defaults."""

    @field_validator("games", mode="before")
    @classmethod
    def _of_each_game(cls, given: Any, info: ValidationInfo) -> Any:
        games, shared = _each("games", given, game_parameters), info.data.get("secrets")
        if not shared or not isinstance(games, dict):
            return games
        taking = {name: own for name, game in games.items() if (own := getattr(game, "secrets", None)) is not None}
        return games | {name: games[name].model_copy(update={"secrets": {**shared, **taking[name]}}) for name in taking}

    @field_validator("studies", mode="before")
    @classmethod
    def _of_each_study(cls, given: Any) -> Any:
        return _each("studies", given, study_parameters)

    @property
    def players(self) -> set[str]:
        """Everybody who is seated in some game while the policy is trained."""
        return {name for game in self.games.values() for name in game.seating}

    def own_code(self) -> list[Path]:
        """The user's own code, which the import paths in the parameters name: whole modules and packages."""
        benchmarks = self.evaluate.benchmarks.values()
        given = [*self.games.values(), *(benchmark.parameters for benchmark in benchmarks)]
        rewards = [game.reward_function.function for game in given if game.reward_function]
        functions = [name for name in (self.train.advantage, *self.train.filters, *rewards) if ":" in name]
        played = {*self.games, *(benchmark.game for benchmark in benchmarks)}
        games = {name.partition(":")[0] for name in played} - set(folders_in("slim_rl.games"))
        judged_by = {game.taskset.study for game in load_games(self.games, self.seed).values()}
        studies = {*self.studies, *judged_by} - set(folders_in("slim_rl.studies"))
        return own_files([*functions, *games, *studies])

    @property
    def evaluate_temperature(self) -> float:
        """For SLIME's evaluations."""
        return self.evaluate.temperature

    @property
    def playing_processes(self) -> int:
        """`processes`, but one where a service counts its calls and budget, or a server holds the model."""
        return 1 if self.services or self.evaluate.server else self.processes

    def threads_of(self, processes: int) -> int:
        """Torch threads of each process, if a stage runs in so many."""
        return self.threads * self.processes // processes

    def work_inputs(self, *sections: str) -> dict[str, Any]:
        """What identifies a run's saved work: the values of `sections`, or of all, without `services`. How fast a
        service is asked, and what it may cost, can change before work is resumed; `service_models` has the rest."""
        values = self.model_dump(mode="json", include=set(sections) or None, exclude={"services"})
        return {**values, "service_models": {name: _model_of(s) for name, s in self.services.items()}}

    @model_validator(mode="after")
    def _services_exist(self) -> "Config":
        benchmarks = self.evaluate.benchmarks.items()
        seatings = {f"games.{name}": game.seating for name, game in self.games.items()}
        seatings |= {f"evaluate.benchmarks.{name}.parameters": given.parameters.seating for name, given in benchmarks}
        for name, seating in seatings.items():
            for player in seating:
                service = player.removeprefix("service:")
                if player.startswith("service:") and service not in self.services:
                    raise ValueError(f"{name}.seating has {player}, but services has no {service}; describe it there")
        return self

    @model_validator(mode="after")
    def _a_pool_has_snapshots(self) -> "Config":
        if "pool" not in self.players:
            return self
        if not (self.train.snapshot_every and self.train.pool_size and self.train.backend == "local"):
            raise ValueError(
                "the player pool needs train.snapshot_every, a train.pool_size above 0 and train.backend: local"
            )
        return self

    @model_validator(mode="after")
    def _slime_can_do_it(self) -> "Config":
        if self.train.backend != "slime":
            return self
        if self.train.averaging_decay:
            raise ValueError("train.averaging_decay needs train.backend: local")
        if self.evaluate.every_steps:
            raise ValueError("evaluate.every_steps needs train.backend: local; with slime give slime.evaluate_every")
        if self.slime.evaluate_every and any(
            g.reward_function and g.reward_function.scope == "group" for g in self.games.values()
        ):
            raise ValueError(
                "slime.evaluate_every needs rewards whose scope is episode; SLIME does not judge groups there"
            )
        if self.train.optimizer == "muon":
            raise ValueError("train.optimizer: muon needs train.backend: local")
        if self.train.trained_layers:
            raise ValueError("train.trained_layers needs train.backend: local")
        if "no_failed_episode" not in self.train.filters:
            raise ValueError("train.filters must have no_failed_episode with train.backend: slime")
        return self


def _model_of(service: ServiceConfig) -> dict[str, Any]:
    """What of a service changes its replies."""
    return service.model_dump(include={"model", "base_url", "temperature", "max_reply_tokens"})


def _each(section: str, given: Any, parse: Any) -> Any:
    """The values of a mapping by name, each parsed by its own class."""
    if not isinstance(given, Mapping):
        return given  # pydantic says what is wrong with it
    found = {}
    for name, value in given.items():
        try:
            found[name] = value if isinstance(value, BaseModel) else parse(str(name), value)
        except ValidationError as error:
            raise ValueError("; ".join(_sentence(e, (section, name)) for e in error.errors())) from None
        except ValueError as error:
            raise ValueError(f"{section}: {error}") from None
    return found


def load_config(path: Path = PATH) -> Config:
    """Read and check the parameters.

    Raises:
        UserError: the file is missing or not YAML, or a parameter is unknown, of the wrong type or out of
            bounds; the sentence names it.
    """
    try:
        return Config.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(_sentence(e) for e in error.errors()) + ".") from None


def read_yaml(path: Path) -> Any:
    """What a file says; an empty one says {}.

    Raises:
        UserError: it is missing or not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    except ValueError as error:  # an integer of thousands of digits
        raise UserError(f"{path} cannot be read: {error}.") from None


def _sentence(error: Any, prefix: tuple[str, ...] = ()) -> str:
    location = (*prefix, *error["loc"])
    name = ".".join(map(str, location))
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        near = process.extractOne(str(location[-1]), _fields(location[:-1]), score_cutoff=60)
        return f"there is no parameter {name}" + (f"; is it {near[0]} that was meant?" if near else "")
    if error["type"] == "value_error":  # the reason names the parameter
        return reason if not prefix else f"{name}: {reason}"
    shown = repr(error["input"])
    return f"{name} is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}: {reason}" if name else reason


def _fields(location: tuple[str, ...]) -> list[str]:
    """The names of the parameters at a place."""
    if not location:
        return list(Config.model_fields)
    section, *rest = location
    if section in ("games", "studies") and rest:
        parse = game_parameters if section == "games" else study_parameters
        return list(type(parse(rest[0], {})).model_fields)
    if section == "services":
        return list(ServiceConfig.model_fields)
    return list(getattr(Config.model_fields[section].annotation, "model_fields", ()))
