"""The base classes of all parameters. Each room and each game derives its own section."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class Section(BaseModel):
    """A part of `params.yaml`: frozen, and without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `yes` and `on` as true, which pydantic takes for 1."""
        kind = str(cls.model_fields[info.field_name or ""].annotation)
        several = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, bool) for one in several) and ("int" in kind or "float" in kind) and "bool" not in kind:
            raise ValueError(f"{info.field_name} is {value!r}, but must be a number")
        return value

    def files(self) -> list[Path]:
        """The files that a stage reads because of these parameters."""
        return [value for _, value in self if isinstance(value, Path)]


PlayerName = Annotated[str, Field(pattern=r"^(policy|\w[\w-]*|checkpoint:.+|service:\w+)$")]
"""`policy`; `checkpoint:PATH`, a frozen model; `service:NAME`, one of `services`; or a player that the game knows:
`scripted`, `random`."""


class RewardConfig(Section):
    """A reward of one's own, in place of the game's; see `slim_rl/rollout/rewards.py`."""

    function: str
    """One of ours by name (exact_match, number, boxed, remote), or the import path of your own."""
    scope: Literal["episode", "group"] = "episode"
    """`episode`: judged as soon as it ends; `group`: all episodes of a task together, in training."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The function's arguments, by name."""


class GameParameters(Section):
    """What every game has. A game derives its own from this."""

    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    """Parameters whose value decides others: by name and value, the values that others take where they are left out."""
    adds_seats: ClassVar[bool] = False
    """Whether a game may add seats while it is played, `solver#2`."""

    seating: tuple[PlayerName, ...] = ("policy",)
    """Who plays, in the order of the game's seats."""
    weight: float = Field(1.0, gt=0)
    """Share of the training groups, relative to the other games'."""
    train_count: int = Field(4096, ge=1)
    """Tasks to train on."""
    eval_count: int = Field(1024, ge=1)
    """Tasks held out."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """Format of the files of tasks."""
    reward_function: RewardConfig | None = None
    """null: the game's own."""
    max_turns: int = Field(20, ge=1)
    """Turns of all seats together. A game that reaches it is truncated."""

    @model_validator(mode="before")
    @classmethod
    def _take_what_presets_say(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        decided: dict[str, Any] = {}
        for name, preset in cls.presets.items():
            decided |= preset.get(str(values.get(name)), {})
        return {**decided, **values}

    @model_validator(mode="after")
    def _the_policy_plays(self) -> "GameParameters":
        if "policy" not in self.seating:
            raise ValueError("one of seating must be policy, or there is nobody to train")
        return self


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested parameters with their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
