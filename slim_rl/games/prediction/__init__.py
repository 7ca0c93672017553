"""One writes a program, the other says what it prints."""

from typing import Literal

from pydantic import Field, model_validator

from slim_rl.core.game import Taskset
from slim_rl.core.parameters import GameParameters, PlayerName
from slim_rl.sandbox import SandboxConfig


class Parameters(GameParameters):
    seating: tuple[PlayerName, ...] = ("policy", "policy")
    """The author, then the predictors: one, or as many as `predictors` says."""
    reward: Literal["zero_sum", "learnability"] = "zero_sum"
    """Author's reward. `zero_sum`: 1 if the prediction is wrong, -1 if it is right. `learnability`: 1 less the share of
    right predictions, 0 if all are right or none is (Zhao et al. 2025, Absolute Zero, arXiv 2505.03335, eq. 4). A
    predictor earns 1 or -1."""
    predictors: int = Field(1, ge=1)
    """They do not hear of each other. `learnability` needs several."""
    seconds: float = Field(1.0, gt=0)
    """Time limit of a program."""
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _programs_run_here(self) -> "Parameters":
        if self.sandbox.url:
            raise ValueError(
                "sandbox.url must be null: a server's programs can read clocks, so their output is not theirs"
            )
        return self

    @model_validator(mode="after")
    def _the_reward_has_its_predictors(self) -> "Parameters":
        if (self.reward == "learnability") != (self.predictors > 1):
            raise ValueError("reward: learnability needs predictors of 2 or more, and reward: zero_sum one")
        return self


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.prediction.tasks import PredictionTasks

    return PredictionTasks(parameters, seed)
