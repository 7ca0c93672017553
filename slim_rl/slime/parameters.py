"""The parameters that a run of SLIME needs, and their way to the processes in which the hooks run."""

from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator

from slim_rl.core.parameters import GameParameters, Section
from slim_rl.games import game_parameters
from slim_rl.players.config import ModelConfig, ServiceConfig
from slim_rl.runtime.files import write_whole
from slim_rl.slime.config import SlimeConfig
from slim_rl.training.config import TrainConfig

PARAMETERS = "parameters.json"
"""Its file, in the folder of a run."""


class RunParameters(Section):
    seed: int = 0
    games: dict[str, SerializeAsAny[GameParameters]] = Field(default_factory=dict)
    services: dict[str, ServiceConfig] = Field(default_factory=dict)
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    slime: SlimeConfig = SlimeConfig()
    evaluate_temperature: float = Field(1.0, ge=0)

    @field_validator("games", mode="before")
    @classmethod
    def _of_each_game(cls, given: dict[str, Any]) -> dict[str, GameParameters]:
        return {name: game_parameters(name, values) for name, values in given.items()}

    def write(self, path: Path) -> None:
        write_whole(path, lambda part: part.write_text(self.model_dump_json(indent=2), encoding="utf-8"))

    @classmethod
    def read(cls, path: Path) -> "RunParameters":
        return cls.model_validate_json(path.read_text(encoding="utf-8"))
