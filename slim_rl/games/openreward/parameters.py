"""Parameters of an environment, and the one reward of an episode."""

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field, model_validator

from slim_rl.core.parameters import GameParameters


class Parameters(GameParameters):
    """One environment. Where a name is OpenReward's, so is its meaning."""

    variant: str | None = None
    """Which environment of a server with several; null if it has one."""
    splits: tuple[str, ...] = ("train",)
    """Splits of the tasks to train on."""
    evaluation_splits: tuple[str, ...] = ("test",)
    """Splits of the tasks held out. Where a split is in both, no task of it is used for both."""
    num_samples: int | None = Field(None, ge=1)
    """Tasks of each split, drawn by the seed; null for all, up to `train_count` and `eval_count`."""
    nonterminal_reward: float | None = None
    """Added to the rewards of an episode that the environment did not finish."""
    reward_reduction: Literal["sum", "mean", "max", "min"] = "sum"
    """How the rewards of an episode become one."""
    min_reward: float | None = None
    """Lower bound of an episode's reward."""
    max_reward: float | None = None
    """Upper bound of an episode's reward."""
    secrets: dict[str, str | None] = Field(default_factory=dict)
    """By the name that the environment uses: the environment variable that holds the secret. null: the same name in
    capitals."""
    key_variable: str | None = Field(None, pattern=r"^\w+$")
    """The environment variable with the key of a server of one's own. Hosted environments use OPENREWARD_API_KEY."""

    @model_validator(mode="after")
    def _no_reward_is_not_zero(self) -> "Parameters":
        if self.nonterminal_reward is None and (self.min_reward is None or self.min_reward < 0):
            raise ValueError(
                "rewards may be negative, so an episode without any must not pass for 0: set nonterminal_reward, what an "
                "episode earns that the environment did not finish; or min_reward of at least 0, and episodes without a "
                "reward are left out"
            )
        return self


_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda rewards: sum(rewards) / len(rewards),
    "max": max,
    "min": min,
}


def episode_reward(rewards: Sequence[float], finished: bool, parameters: Parameters) -> float | None:
    """The reward of an episode by the arithmetic of OpenReward's cookbook; None without any reward.

    That is the one difference: the cookbook calls it 0.0, so that doing nothing beats trying and earning less.

    Args:
        rewards: from the environment, in order.
        finished: whether the environment finished the episode.
    """
    if not finished and parameters.nonterminal_reward is not None:
        rewards = [*rewards, parameters.nonterminal_reward]
    if not rewards:
        return None
    reward = float(_REDUCTIONS[parameters.reward_reduction](rewards))
    if parameters.min_reward is not None:
        reward = max(reward, parameters.min_reward)
    if parameters.max_reward is not None:
        reward = min(reward, parameters.max_reward)
    return reward
