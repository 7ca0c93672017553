"""The parameters of a run as one checked model, and how they are composed of `params.yaml` and profiles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator
from rapidfuzz import fuzz, process

from slim_rl.core.errors import UserError
from slim_rl.core.parameters import GameParameters, Section
from slim_rl.evaluation.config import EvaluateConfig
from slim_rl.games import game_parameters
from slim_rl.players.config import ModelConfig, ServiceConfig
from slim_rl.slime.config import SlimeConfig
from slim_rl.studies import study_parameters
from slim_rl.training.config import TinkerConfig, TrainConfig, WarmstartConfig

PATH, RUN, PROFILES = Path("params.yaml"), Path("run.yaml"), Path("conf")
"""The user's parameters; those of the run, composed of them, which all stages read; and the folder of profiles."""
_SHOWN, _TOLD = 100, 1200  # characters of a wrong value that a sentence repeats, and of all that is wrong


class Config(Section):
    """All parameters of a run."""

    seed: int = Field(0, ge=0)
    cores: int = Field(2, ge=1)
    """Processor cores that a stage uses: for a tiny model one process on each, which is faster than threads; for a
    checkpoint, a GPU, `services` or `evaluate.server` one process with a thread on each. Another number changes the last
    digits of sums, and with them the sampled episodes."""
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
    tinker: TinkerConfig = TinkerConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    studies: dict[str, SerializeAsAny[Section]] = Field(default_factory=dict)
    """Parameters of studies, by name; a study that is left out has its defaults."""

    @field_validator("games", mode="before")
    @classmethod
    def _of_each_game(cls, values: Any, info: ValidationInfo) -> Any:
        games, shared = _each("games", values, game_parameters), info.data.get("secrets")
        if not shared or not isinstance(games, dict):
            return games
        taking = {name: own for name, game in games.items() if (own := getattr(game, "secrets", None)) is not None}
        return games | {name: games[name].model_copy(update={"secrets": {**shared, **taking[name]}}) for name in taking}

    @field_validator("studies", mode="before")
    @classmethod
    def _of_each_study(cls, values: Any) -> Any:
        return _each("studies", values, study_parameters)

    @property
    def players(self) -> set[str]:
        """Everybody who is seated in some game while the policy is trained."""
        return {name for game in self.games.values() for name in game.seating}

    @property
    def evaluate_temperature(self) -> float:
        """For SLIME's evaluations."""
        return self.evaluate.temperature

    @property
    def playing_processes(self) -> int:
        """How many processes play episodes. One, where a service counts its calls and budget, or a server holds the model."""
        return self.cores if self.model.base == "tiny" and not (self.services or self.evaluate.server) else 1

    @property
    def context_limit(self) -> int | None:
        """`model.context_tokens`; None where it does not count, because the checkpoint brings its own context."""
        brings_its_own = self.train.backend == "local" and self.model.base != "tiny"
        return None if brings_its_own else self.model.context_tokens

    @property
    def tinker_server(self) -> TinkerConfig:
        """`tinker`, with the values of what is left out."""
        own = self.tinker
        seed = self.seed if own.seed is None else own.seed
        return own.model_copy(update={"base_model": own.base_model or self.model.base, "seed": seed})

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
    def _the_backend_can_do_it(self) -> "Config":
        train, backend = self.train, self.train.backend
        if backend == "local":
            return self
        local_alone = {
            "train.lora": train.lora,
            "train.importance_cap": train.importance_cap,
            "train.averaging_decay": train.averaging_decay,
            "train.optimizer: muon": train.optimizer == "muon",
            "evaluate.every_steps": self.evaluate.every_steps,
        }
        if backend == "tinker":
            local_alone |= {
                "train.temperature other than 1": train.temperature != 1,
                "train.gradient_checkpointing": train.gradient_checkpointing,
                "train.microbatch_tokens": train.microbatch_tokens,
                "train.snapshot_every": train.snapshot_every,
                "train.kl_coefficient with several train.minibatches": train.kl_coefficient and train.minibatches > 1,
                "a checkpoint in a seat": any(name.startswith("checkpoint:") for name in self.players),
            }
        for name, asked in local_alone.items():
            if asked:
                other = "; with slime give slime.evaluate_every"
                on_slime = name == "evaluate.every_steps" and backend == "slime"
                raise ValueError(f"{name} needs train.backend: local{other if on_slime else ''}")
        if backend == "tinker":
            if not self.tinker.base_url and (self.model.base == "tiny" or self.warmstart.checkpoint):
                raise ValueError(
                    "train.backend: tinker trains a model that the service has; name it in model.base, without "
                    "warmstart.checkpoint, or give the address of a server of your own, tinker.base_url"
                )
            return self
        rewards = [game.reward_function for game in self.games.values() if game.reward_function]
        if self.slime.evaluate_every and any(reward.scope == "group" for reward in rewards):
            raise ValueError(
                "slime.evaluate_every needs rewards whose scope is episode; SLIME does not judge groups there"
            )
        if "no_failed_episode" not in train.filters:
            raise ValueError("train.filters must have no_failed_episode with train.backend: slime")
        return self


def _each(section: str, values: Any, parse: Any) -> Any:
    """The values of a mapping by name, each parsed by its own class."""
    if not isinstance(values, Mapping):
        return values  # pydantic says what is wrong with it
    parsed = {}
    for name, value in values.items():
        try:
            parsed[name] = value if isinstance(value, BaseModel) else parse(str(name), value)
        except ValidationError as error:
            raise ValueError("; ".join(_sentence(e, (section, name)) for e in error.errors())) from None
        except ValueError as error:
            raise ValueError(f"{section}: {error}") from None
    return parsed


def load_config(path: Path | None = None) -> Config:
    """Read and check the parameters of the run; where none has been composed, those of `params.yaml`.

    Raises:
        UserError: the file is missing or not YAML, or a parameter is unknown, of the wrong type or out of
            bounds; the sentence names it.
    """
    path = path or (RUN if RUN.exists() else PATH)
    return checked(composed(path=path), str(path))


def checked(values: Mapping[str, Any], source: str) -> Config:
    """The values as parameters. Raises UserError: one is wrong; the sentence names it and `source`."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        reasons = "; ".join(_sentence(e) for e in error.errors())
        raise UserError(f"{source}: {reasons if len(reasons) <= _TOLD else reasons[:_TOLD] + ' ...'}.") from None


def composed(
    profile: str | None = None, settings: Mapping[str, Any] | None = None, path: Path = PATH
) -> dict[str, Any]:
    """The parameters of a run. Each of these lies over those before it, section by section:

    1. the profile that `params.yaml` names (`profile: asking`), unless `profile` takes its place,
    2. `params.yaml`,
    3. `profile`, a file of conf/; it may name another one below it in the same way,
    4. `settings`, single parameters by dotted name.

    Where several of 1 to 3 have `games`, the last one says which are played. A preset (`selection`) also covers what lies
    below it.

    Raises:
        UserError: there is no such profile, a file cannot be read, or a setting has no place.
    """
    own, single = _sections(path), dict(settings or {})
    named, profile = own.pop("profile", None), single.pop("profile", profile)
    if profile is None:
        values = own if named is None else _over(_profile(named), own)
    else:
        values = _over(own, _profile(profile))
    for name, value in single.items():
        values = _over(values, _nested(values, name, value, name), chooses_games=False)
    return values


def _profile(name: Any, above: tuple[str, ...] = ()) -> dict[str, Any]:
    path = PROFILES / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in PROFILES.glob("*.yaml")))
        raise UserError(f"There is no profile {name}; {PROFILES}/ has {names}.")
    if name in above:
        raise UserError(f"{path} stands on itself: {' -> '.join([*above, name])}.")
    values = _sections(path)
    named = values.pop("profile", None)
    return values if named is None else _over(_profile(named, (*above, name)), values)


def _over(below: dict[str, Any], above: dict[str, Any], chooses_games: bool = True) -> dict[str, Any]:
    games = below.get("games")
    if isinstance(games, dict) and isinstance(above.get("games"), dict):
        left = {
            name: _left_by_presets(name, games[name], over) for name, over in above["games"].items() if name in games
        }
        below = {**below, "games": left if chooses_games else {**games, **left}}
    return _merged(below, above)


def _left_by_presets(game: str, below: Any, above: Any) -> Any:
    """The parameters of a game without those that a preset of the layer above decides."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return below
    try:
        presets = type(game_parameters(game, {})).presets
    except ValueError:  # an unknown game; `Config` says so
        return below
    decided = {name for preset in presets if preset in above for values in presets[preset].values() for name in values}
    return {name: value for name, value in below.items() if name not in decided}


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict | None):
        return above
    return {**below, **{name: _merged(below.get(name), value) for name, value in (above or {}).items()}}


def _nested(values: Any, name: str, value: Any, whole: str) -> dict[str, Any]:
    """A value by its dotted name as sections. A section's name may have dots, too: a game's import path."""
    if not isinstance(values, dict):
        section = whole.removesuffix(name).rstrip(".")
        raise UserError(f"{whole} cannot be set: {section} is not a section.")
    known = [key for key in values if name.startswith(f"{key}.")]
    section = max(known, key=len) if known else name.partition(".")[0]
    if section == name:
        return {name: value}
    inner = values.get(section)
    return {section: _nested({} if inner is None else inner, name[len(section) + 1 :], value, whole)}


def _sections(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must have sections such as `train:`, but is a {type(values).__name__}.")
    return values


def read_yaml(path: Path) -> Any:
    """What a file says; an empty one says {}.

    Raises:
        UserError: it is missing or not YAML, or it has a key twice.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
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


class _Loader(yaml.SafeLoader):
    """YAML in which no mapping has a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[Any, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in lines and key.value != "<<":
                problem = f"{key.value} is there twice, in line {lines[key.value]} and in line {line}"
                raise yaml.constructor.ConstructorError(None, None, problem)
            lines[str(key.value)] = line
        return super().construct_mapping(node, deep)


def _sentence(error: Any, prefix: tuple[str, ...] = ()) -> str:
    location = (*prefix, *error["loc"])
    name = ".".join(map(str, location))
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        near = process.extractOne(str(location[-1]), _fields(location[:-1]), scorer=fuzz.ratio, score_cutoff=60)
        return f"there is no parameter {name}" + (f"; did you mean {near[0]}?" if near else "")
    if error["type"] == "value_error":  # the reason names the parameter
        return reason if not prefix else f"{name}: {reason}"
    written = repr(error["input"])
    return f"{name} is {written if len(written) <= _SHOWN else written[:_SHOWN] + '...'}: {reason}" if name else reason


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
