"""What asking is worth to a model: the same boards with questions forbidden and with k of them forced.

Every number is a mean over boards that all arms share, so its interval is that of paired differences. How the arms are
played: `slim_rl.studies.asking.forced`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from slim_rl.analysis.statistics import Estimate, estimate

MODELS = ("base", "trained")
FREE, FORBIDDEN = "free", "forbidden"


@dataclass(frozen=True, eq=False)
class Intervention:
    """Episodes by model and arm: `free`, `forbidden`, and `forced-K`."""

    rewards: Mapping[tuple[str, str], pd.Series]
    """By board."""
    questions: Mapping[tuple[str, str], pd.Series]

    @cached_property
    def boards(self) -> list[str]:
        """Those that both models played in every arm."""
        return sorted(set.intersection(*(set(arm.index) for arm in self.rewards.values())))

    @cached_property
    def forced(self) -> list[int]:
        """The numbers of questions that were forced on both models."""
        both = [{arm for model, arm in self.rewards if model == name} for name in MODELS]
        return sorted(int(arm.removeprefix("forced-")) for arm in both[0] & both[1] if arm.startswith("forced"))

    def reward(self, model: str, arm: str) -> Estimate:
        return self._mean(self._of(model, arm))

    def asked(self, model: str, arm: str) -> Estimate:
        return self._mean(self.questions[model, arm][self.boards])

    def worth_of_asking(self, model: str) -> Estimate:
        """Reward in free play less that when it may not ask."""
        return self._mean(self._of(model, FREE) - self._of(model, FORBIDDEN))

    def worth_of_a_question(self, model: str) -> Estimate:
        """Slope of the reward over the number of forced questions."""
        k = np.array(self.forced, float)
        weights = (k - k.mean()) / ((k - k.mean()) ** 2).sum()
        return self._mean(sum(w * self._of(model, f"forced-{n}") for w, n in zip(weights, self.forced, strict=True)))

    @cached_property
    def parts(self) -> dict[str, Estimate]:
        """The gain of training on these boards, in three parts that sum to it.

        `asks more`: what the base model gains when it is made to ask as much as the trained one does in free play,
        instead of as much as it does itself. `uses answers better`: trained less base, both made to ask that much.
        `the rest`: what these leave; forced questions come in random order, a model's own do not.
        """
        many, few = (float(self.questions[model, FREE][self.boards].mean()) for model in ("trained", "base"))
        gain = self._of("trained", FREE) - self._of("base", FREE)
        more = self._at("base", many) - self._at("base", few)
        better = self._at("trained", many) - self._at("base", many)
        return {
            "gain": self._mean(gain),
            "asks more": self._mean(more),
            "uses answers better": self._mean(better),
            "the rest": self._mean(gain - more - better),
        }

    def table(self) -> pd.DataFrame:
        """A row for each model and arm: `model`, `arm`, `forced`, `questions`, `reward` and its interval."""
        rows = []
        for model, arm in self.rewards:
            forced = int(arm.removeprefix("forced-")) if arm.startswith("forced") else math.nan
            row: dict[str, object] = {
                "model": model,
                "arm": arm,
                "forced": forced,
                "questions": self.asked(model, arm).mean,
            }
            rows.append(row | self.reward(model, arm).interval("reward"))
        return pd.DataFrame(rows)

    def _of(self, model: str, arm: str) -> pd.Series:
        return self.rewards[model, arm][self.boards]

    def _at(self, model: str, questions: float) -> pd.Series:
        """Reward by board after that many forced questions, between two numbers of them by a straight line."""
        questions = min(max(questions, self.forced[0]), self.forced[-1])
        below = max(k for k in self.forced if k <= questions)
        above = min(k for k in self.forced if k >= questions)
        share = (questions - below) / (above - below) if above > below else 0.0
        return (1 - share) * self._of(model, f"forced-{below}") + share * self._of(model, f"forced-{above}")

    def _mean(self, by_board: pd.Series) -> Estimate:
        return estimate(pd.DataFrame({"game_id": by_board.index, "x": by_board.to_numpy(float)}), "x")


def read_intervention(arms: pd.DataFrame, free: Mapping[str, pd.DataFrame]) -> Intervention | None:
    """The intervention of these episodes, with free play on the same boards; None if an arm is missing.

    Args:
        arms: `Sample.episodes` of MODELS.
        free: the same of each model in free play.
    """
    found = {key: episodes for key, episodes in arms.groupby(["player", "arm"])}
    if not {(model, arm) for model in MODELS for arm in (FORBIDDEN, "forced-0")} <= found.keys():
        return None
    found |= {(model, FREE): free[model] for model in MODELS}

    def by_board(column: str) -> dict[tuple[str, str], pd.Series]:
        return {key: found[key].groupby("game_id")[column].mean() for key in sorted(found)}

    return Intervention(by_board("reward"), by_board("questions"))
