"""`params.yaml` as typed, frozen models: the one place where a parameter has its name and bounds."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class MatchingConfig(Section):
    """The boards of the paper-reviewer matching game.

    Fields left out take the values that belong to the selection: `dialop` is DialOp's own game
    (both players see .4 of the cells on private scales), `stakes` the one that does not leak.
    """

    size: int = Field(3, ge=2, le=8)
    """Reviewers, and as many papers."""
    selection: Literal["stakes", "dialop"] = "stakes"
    """Which boards are kept; see `slim_rl.games.matching.board`."""
    p_agent: float = Field(0.2, ge=0, le=1)
    """Probability that player 1 sees a cell."""
    p_partner: float = Field(0.8, ge=0, le=1)
    """Probability that player 2 sees a cell."""
    scale_range: tuple[float, float] = (1.0, 1.0)
    """Bounds of each player's private scale factor, drawn uniformly."""
    stake: float = Field(1.4, ge=1)
    """How many times the pooled optimum must beat the yardstick: for `stakes` the mean over all
    assignments, for `dialop` what either player would choose alone."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_selection(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("selection") == "dialop":
            faithful = dict(p_agent=0.4, p_partner=0.4, scale_range=(1.0, 10.0), stake=1.25)
            return {**faithful, **given}
        return given

    @model_validator(mode="after")
    def _scales_in_order(self) -> "MatchingConfig":
        low, high = self.scale_range
        if not 1 <= low <= high:
            raise ValueError(f"scale_range must be two numbers with 1 <= low <= high, not {low}, {high}")
        return self
