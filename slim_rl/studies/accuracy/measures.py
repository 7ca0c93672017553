"""What is measured of a policy that solves tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import Any

import numpy as np
import pandas as pd

from slim_rl.analysis.statistics import (
    WINDOW,
    Estimate,
    Share,
    estimate,
    paired_difference,
    share,
    step_estimates,
)
from slim_rl.core.errors import UserError
from slim_rl.studies.accuracy.parameters import Parameters
from slim_rl.studies.study import Found

MODELS = ("base", "trained")
_COLUMNS = ("episode_id", "game_id", "game", "series", "arm", "step", "status", "error", "shard")
_PREFIXES = ("seat.", "reward.", "calls.")


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that at least one of k samples passes, without bias from `samples` of which `passed` did
    (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    return 1 - comb(samples - passed, k) / comb(samples, k)


def measured(frame: pd.DataFrame, player: str, pass_reward: float) -> pd.DataFrame:
    """Finished episodes of `player` with `reward` (the mean of its seats), `passed` (0 or 1), `truncated`,
    `malformed_calls` if the game counts calls, and the game's metrics."""
    frame = frame[frame["status"] != "failed"].reset_index(drop=True)
    seats = [column.removeprefix("seat.") for column in frame if column.startswith("seat.")]
    own = {
        s: frame[f"reward.{s}"].where(frame[f"seat.{s}"] == player) for s in seats if f"reward.{s}" in frame
    }
    reward = pd.DataFrame(own).mean(axis=1)
    frame = frame.assign(
        reward=reward,
        passed=(reward >= pass_reward - 1e-9).astype(float),
        truncated=(frame["status"] == "truncated").astype(float),
    )
    malformed = [column for column in frame if column.startswith("calls.")]
    return frame.assign(malformed_calls=frame[malformed].sum(axis=1)) if malformed else frame


@dataclass(frozen=True, eq=False)
class Accuracy:
    episodes: Mapping[str, pd.DataFrame]
    """Of each model, see `measured`."""
    failed: Mapping[str, int]
    """Episodes of each model that failed and were not played again with success."""
    training: pd.DataFrame
    """Empty without any."""

    @cached_property
    def means(self) -> list[str]:
        """What is averaged besides the pass rate: the reward, truncation, and the game's metrics."""
        every = [
            name
            for frame in self.episodes.values()
            for name in frame
            if name not in (*_COLUMNS, "passed", "reward", "truncated") and not name.startswith(_PREFIXES)
        ]
        return ["reward", "truncated", *dict.fromkeys(every)]

    @cached_property
    def rate(self) -> dict[str, Share]:
        return {model: share(frame, "passed") for model, frame in self.episodes.items()}

    def mean(self, model: str, name: str) -> Estimate:
        frame = self.episodes[model]
        return estimate(frame if name in frame else frame.assign(**{name: np.nan}), name)

    @cached_property
    def gains(self) -> dict[str, Estimate]:
        """Trained less base on the same tasks: the pass rate and the reward."""
        frames = [self.episodes[model] for model in reversed(MODELS)]
        return {name: paired_difference(*frames, name) for name in ("passed", "reward")}

    @cached_property
    def pass_at(self) -> dict[str, dict[int, Estimate]]:
        """By model and k: k are the powers of 2 up to the samples of a task, and their number."""
        found = {}
        for model, frame in self.episodes.items():
            tasks = frame.groupby("game_id")["passed"].agg(["size", "sum"])
            most = int(tasks["size"].max())
            found[model] = {}
            for k in sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most}):
                known = tasks[tasks["size"] >= k]
                values = [pass_at_k(int(n), int(c), k) for n, c in known.itertuples(index=False)]
                found[model][k] = estimate(pd.DataFrame({"game_id": known.index, "x": values}), "x")
        return found

    @cached_property
    def outcome(self) -> str:
        gain = self.gains["passed"]
        if np.isnan(gain.low):
            return "too little data"
        return "improved" if gain.low > 0 else "worse" if gain.high < 0 else "no change shown"

    @cached_property
    def verdict(self) -> str:
        rates = [f"{self.rate[model].mean:.1%}" for model in MODELS]
        if self.outcome == "too little data":
            return f"Too little data: the models share {self.gains['passed'].games} tasks."
        difference = self.gains["passed"].hundredfold.text("+.1f")
        where = f"a difference of {difference} points over {self.gains['passed'].games} held-out tasks"
        if self.outcome == "no change shown":
            return f"It is not shown that training changes the pass rate: {rates[0]} before, {rates[1]} after, {where}."
        verb = "raises" if self.outcome == "improved" else "lowers"
        return f"Training {verb} the pass rate from {rates[0]} to {rates[1]}, {where}."

    @cached_property
    def curves(self) -> pd.DataFrame:
        names = ["passed", *(name for name in self.means if name in self.training)]
        return step_estimates(self.training, names, WINDOW)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By file name."""
        players, curve = [], []
        for model in self.episodes:
            row: dict[str, Any] = {"player": model, "episodes": len(self.episodes[model])}
            row |= {"failed": self.failed[model], **self.rate[model].numbers("pass_rate")}
            for name in self.means:
                row |= self.mean(model, name).numbers(name)
            players.append(row)
            curve += [
                [model, k, value.mean, value.low, value.high] for k, value in self.pass_at[model].items()
            ]
        tables = {
            "players": pd.DataFrame(players),
            "pass-at-k": pd.DataFrame(curve, columns=["player", "k", "pass_at_k", "low", "high"]),
        }
        return tables | ({"training": self.curves} if len(self.training) else {})

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """By model, and their difference on the same tasks."""
        found: dict[str, Any] = {
            model: {
                "episodes": len(self.episodes[model]),
                "failed": self.failed[model],
                **self.rate[model].numbers("pass_rate"),
                **{f"pass_at_{k}": value.mean for k, value in self.pass_at[model].items()},
                **self.mean(model, "reward").numbers("reward"),
                **{name: self.mean(model, name).mean for name in self.means[1:]},
            }
            for model in self.episodes
        }
        names = {"passed": "pass_rate_difference", "reward": "reward_difference"}
        gains = {k: v for name, title in names.items() for k, v in self.gains[name].numbers(title).items()}
        return {
            **found,
            "comparison": {"tasks": self.gains["passed"].games, **gains},
            "outcome": self.outcome,
        }


def read_accuracy(found: Found) -> Accuracy:
    """The series `held-out`, and the episodes of training.

    Raises:
        UserError: a model has no finished episode.
    """
    assert isinstance(found.parameters, Parameters)
    least, episodes, failed = found.parameters.pass_reward, {}, {}
    for model in MODELS:
        frame = found.series(f"held-out/{model}")
        if frame.empty or (frame["status"] == "failed").all():
            folder, error = found.episodes / "held-out" / model, "" if frame.empty else frame["error"].iloc[0]
            reason = f"All episodes failed, the first with {error!r}." if error else "`dvc repro` plays them."
            raise UserError(f"There are no finished episodes in {folder} to analyze. {reason}")
        episodes[model], failed[model] = (
            measured(frame, model, least),
            int((frame["status"] == "failed").sum()),
        )
    training = found.training()
    return Accuracy(episodes, failed, training if training.empty else measured(training, "policy", least))
