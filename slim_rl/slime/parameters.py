"""The parameters that the hooks need in SLIME's processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator

from slim_rl.core.parameters import GameParameters, Section
from slim_rl.games import game_parameters
from slim_rl.players.config import ModelConfig, ServiceConfig
from slim_rl.runtime.files import write_text
from slim_rl.slime.config import SlimeConfig
from slim_rl.training.config import TrainConfig


class RunParameters(Section):
    """Sections of the run's parameters; `RunParameters.of(config)` takes them from the whole."""

    seed: int = 0
    games: dict[str, SerializeAsAny[GameParameters]] = Field(default_factory=dict)
    services: dict[str, ServiceConfig] = Field(default_factory=dict)
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    slime: SlimeConfig = SlimeConfig()
    evaluate_temperature: float = Field(1.0, ge=0)

    @field_validator("games", mode="before")
    @classmethod
    def _parse_games(cls, games: dict[str, Any]) -> dict[str, GameParameters]:
        return {
            name: values if isinstance(values, GameParameters) else game_parameters(name, values)
            for name, values in games.items()
        }

    @property
    def several_policies(self) -> bool:
        """Whether an episode may fill several samples: a game seats the policy more than once, or adds seats."""
        return any(game.adds_seats or game.seating.count("policy") > 1 for game in self.games.values())

    @classmethod
    def of(cls, config: Section) -> "RunParameters":
        return cls.model_validate(config, from_attributes=True)

    def write(self, path: Path) -> None:
        write_text(path, self.model_dump_json(indent=2))

    @classmethod
    def read(cls, path: Path) -> "RunParameters":
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


_MAY_CHANGE = {"steps", "microbatch_tokens", "gradient_checkpointing", "snapshot_every", "lora", "importance_cap"}
"""Parameters of `train` that may change while a run lasts: its length, and what the local backend alone reads."""


def identity(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the sections `inputs` that a run's episodes and updates depend on."""
    games = {
        name: {key: value for key, value in game.items() if key != "eval_count"}  # held-out tasks change no update
        for name, game in inputs["games"].items()
    }
    train = {name: value for name, value in inputs["train"].items() if name not in _MAY_CHANGE}
    model = {name: value for name, value in inputs["model"].items() if name != "precision"}
    return {**inputs, "games": games, "model": model, "train": train}
