"""What training added to the reward, by transplant: one model's questions in the other one's mouth, on the same boards.

R(q, p) is the reward when model p proposes after the questions of model q, and the answers to them. R(base, base) and
R(trained, trained) are free play. How the others are played: `slim_rl.studies.asking.forced`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from slim_rl.analysis.statistics import Estimate, estimate
from slim_rl.evaluation.base_and_trained import MODELS

ARMS = ("base-free", "trained-free", "base-given-trained", "trained-given-base", "base-as-many",
        "base-forbidden", "trained-forbidden")  # fmt: skip
"""MODEL-HOW: who plays, and what was taken from it."""


@dataclass(frozen=True, eq=False)
class Transplant:
    rewards: pd.DataFrame
    """A row for each board that all of ARMS played, a column for each arm."""

    def reward(self, arm: str) -> Estimate:
        return _mean(self.rewards[arm])

    def worth_of_asking(self, model: str) -> Estimate:
        """Reward in free play less that when the model may not ask."""
        return _mean(self.rewards[f"{model}-free"] - self.rewards[f"{model}-forbidden"])

    @cached_property
    def parts(self) -> dict[str, Estimate]:
        """The gain of training on these boards, `asks` and what it consists of, in parts that sum to the gain.

        `asks more`: what the base model gains when it is made to ask for as many cells as the trained one did on that
        board, in its own order and words. `asks better`: what it gains from the trained model's questions instead.
        `uses answers better`: trained less base, after the same questions.
        """
        r = self.rewards
        return {
            "gain": _mean(r["trained-free"] - r["base-free"]),
            "asks": _mean(r["base-given-trained"] - r["base-free"]),
            "asks more": _mean(r["base-as-many"] - r["base-free"]),
            "asks better": _mean(r["base-given-trained"] - r["base-as-many"]),
            "uses answers better": _mean(r["trained-free"] - r["base-given-trained"]),
        }

    @cached_property
    def other_way(self) -> dict[str, Estimate]:
        """The gain once more, in the other order: what the trained model's own questions are worth to it in place of the
        base model's, and trained less base after the base model's questions."""
        r = self.rewards
        return {
            "own questions": _mean(r["trained-free"] - r["trained-given-base"]),
            "same questions": _mean(r["trained-given-base"] - r["base-free"]),
        }


def read_transplant(arms: pd.DataFrame, free: Mapping[str, pd.DataFrame]) -> Transplant | None:
    """The transplant of these episodes, with free play on the same boards; None if an arm is missing.

    Args:
        arms: `Sample.episodes` of MODELS; `arm` is that of ARMS without the model.
        free: the same of each model in free play.
    """
    by_arm = {f"{model}-{arm}": episodes for (model, arm), episodes in arms.groupby(["player", "arm"])}
    by_arm |= {f"{model}-free": free[model] for model in MODELS}
    if not set(ARMS) <= by_arm.keys():
        return None
    rewards = pd.DataFrame({arm: by_arm[arm].groupby("game_id")["reward"].mean() for arm in ARMS}).dropna()
    return Transplant(rewards) if len(rewards) else None


def _mean(by_board: pd.Series) -> Estimate:
    return estimate(pd.DataFrame({"game_id": by_board.index, "x": by_board.to_numpy(float)}), "x")
