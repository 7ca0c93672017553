"""What training added to the reward, by transplant: one model's questions in the other one's mouth, on the same boards.

R(q, p) is the reward when model p proposes after the questions of model q, and the answers to them. R(base, base) and
R(trained, trained) are free play. How the others are played: `slim_rl.studies.asking.forced`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from slim_rl.analysis.statistics import Estimate, estimate
from slim_rl.evaluation.base_and_trained import MODELS

ARMS = ("base-free", "trained-free", "base-given-base", "base-given-trained", "trained-given-base", "base-as-many",
        "base-forbidden", "trained-forbidden")  # fmt: skip
"""MODEL-HOW: who plays, and what was taken from it."""
DIFFERENCES = {
    "gain": ("trained-free", "base-free"),
    "has_to_propose": ("base-given-base", "base-free"),
    "asks": ("base-given-trained", "base-given-base"),
    "asks_more": ("base-as-many", "base-given-base"),
    "asks_better": ("base-given-trained", "base-as-many"),
    "uses_answers_better": ("trained-free", "base-given-trained"),
    "own_questions": ("trained-free", "trained-given-base"),
    "same_questions": ("trained-given-base", "base-free"),
    "worth_of_asking_base": ("base-free", "base-forbidden"),
    "worth_of_asking_trained": ("trained-free", "trained-forbidden"),
}
"""What the first arm earns more than the second.

The gain of training is the sum of four parts: what the base model gains when it has to propose after the questions that it
asked in free play (`has_to_propose`: no asking, so no part of `asks`); when it is made to ask for as many cells as the trained
one did on that board, in its own order and words (`asks_more`); from the trained model's questions instead (`asks_better`); and
trained less base, after the same questions (`uses_answers_better`). `asks` is the second and third together. In the other order the gain is the sum of `own_questions` and `same_questions`.
"""


class Transplant(NamedTuple):
    games: int
    """Boards that all of ARMS played; the numbers are of these."""
    rewards: Mapping[str, Estimate]
    """By arm."""
    differences: Mapping[str, Estimate]
    """See DIFFERENCES."""


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
    if rewards.empty:
        return None
    differences = pd.DataFrame({name: rewards[one] - rewards[other] for name, (one, other) in DIFFERENCES.items()})
    return Transplant(len(rewards), _means(rewards), _means(differences))


def _means(by_board: pd.DataFrame) -> dict[str, Estimate]:
    rows = by_board.rename_axis("game_id").reset_index()
    return {str(name): estimate(rows, str(name)) for name in by_board}
