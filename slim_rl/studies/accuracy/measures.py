"""What is measured of a policy that solves tasks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from slim_rl.analysis.statistics import WINDOW, Estimate, Share, estimate, paired_difference, share, step_estimates
from slim_rl.core.errors import UserError
from slim_rl.rollout.shards import Shard, shards
from slim_rl.rollout.summary import pass_at_k
from slim_rl.studies.accuracy.parameters import Parameters
from slim_rl.studies.study import Found, rewarded

MODELS = ("base", "trained")
MOSTLY = 0.5
"""Share of the episodes from which on a policy has collapsed; see `Accuracy.collapsed`."""
_OTHERS = ("episode_id", "game_id", "game", "series", "arm", "step", "status", "error", "shard", "passed")
"""Columns that are no means of their own, besides those of seats, their rewards, and calls by status."""


def measured(frame: pd.DataFrame, player: str, pass_reward: float) -> pd.DataFrame:
    """What `rewarded` gives, with `passed` (0 or 1), `truncated`, `malformed_calls` if the game counts calls by status,
    and the game's metrics."""
    frame = rewarded(frame, player)
    passed, truncated = frame["reward"] >= pass_reward - 1e-9, frame["status"] == "truncated"
    frame = frame.assign(truncated=truncated.astype(float), passed=passed.astype(float))
    malformed = [column for column in frame if column.startswith("calls.")]
    return frame.assign(malformed_calls=frame[malformed].sum(axis=1)) if malformed else frame


@dataclass(frozen=True, eq=False)
class Accuracy:
    episodes: Mapping[str, pd.DataFrame]
    """By model; see `measured`."""
    failed: Mapping[str, int]
    """Episodes of each model that failed and were not played again with success."""
    training: pd.DataFrame
    """Those of training; empty without any."""
    replies: Mapping[str, Counter[str]]
    """By model, all that it said in an episode, and in how many."""

    @cached_property
    def means(self) -> list[str]:
        """Columns that are averaged: the reward, truncation, and the game's metrics."""
        every = dict.fromkeys(["reward", "truncated", *(c for f in self.episodes.values() for c in f)])
        return [c for c in every if c not in _OTHERS and not c.startswith(("seat.", "reward.", "calls."))]

    @cached_property
    def rate(self) -> dict[str, Share]:
        """The pass rate of each model."""
        return {model: share(frame, "passed") for model, frame in self.episodes.items()}

    def mean(self, model: str, name: str) -> Estimate:
        frame = self.episodes[model]
        return estimate(frame if name in frame else frame.assign(**{name: np.nan}), name)

    @cached_property
    def gains(self) -> dict[str, Estimate]:
        """Trained less base on the same tasks: the pass rate and the reward."""
        base, trained = (self.episodes[model] for model in MODELS)
        names = {"pass_rate": "passed", "reward": "reward"}
        return {name: paired_difference(trained, base, column) for name, column in names.items()}

    @cached_property
    def pass_at(self) -> dict[str, dict[int, Estimate]]:
        """By model and k: the powers of 2 up to the samples of a task, and their number."""
        found: dict[str, dict[int, Estimate]] = {}
        for model, frame in self.episodes.items():
            tasks = frame.groupby("game_id")["passed"].agg(["size", "sum"]).astype(int)
            most = int(tasks["size"].max())
            for k in sorted({*(2**i for i in range(most.bit_length())), most}):
                known = tasks[tasks["size"] >= k]
                values = [pass_at_k(n, c, k) for n, c in known.itertuples(index=False)]
                rows = pd.DataFrame({"game_id": known.index, "x": values})
                found.setdefault(model, {})[k] = estimate(rows, "x")
        return found

    def repeated(self, model: str) -> float:
        """The share of episodes with the model's most common reply."""
        counts = self.replies[model]
        return max(counts.values(), default=0) / max(counts.total(), 1)

    @cached_property
    def collapsed(self) -> str:
        """How the trained model earns its reward without solving tasks, if it does and the base model does not: one
        reply in most episodes, or a game that reports the metric `degenerate` reports it of most."""
        base, trained = (self.repeated(model) for model in MODELS)
        if trained >= MOSTLY > base and len(self.replies["base"]) > 1:
            return f"one reply makes up {trained:.0%} of its episodes, before training {base:.0%}"
        base, trained = (self.mean(model, "degenerate").mean for model in MODELS)
        if trained >= MOSTLY > base:  # not so without that metric, which is then NaN
            return f"{trained:.0%} of its replies do not depend on the task, before training {base:.0%}"
        return ""

    @cached_property
    def outcome(self) -> str:
        if self.collapsed:
            return "collapsed"
        gain = self.gains["pass_rate"]
        if isnan(gain.low):
            return "too little data"
        return "improved" if gain.low > 0 else "worse" if gain.high < 0 else "no change shown"

    @cached_property
    def verdict(self) -> str:
        if self.collapsed:
            counts = " and ".join(
                f"{len(self.replies[model])} {when}" for model, when in zip(MODELS, ("before", "after"), strict=True)
            )
            reward = self.gains["reward"].text("+.3f")
            return f"The policy has collapsed: {self.collapsed}. Distinct replies: {counts}; reward: a difference of {reward}."
        gain, (before, after) = self.gains["pass_rate"], (f"{self.rate[model].mean:.1%}" for model in MODELS)
        if self.outcome == "too little data":
            return f"Too little data: the models share {gain.games} held-out tasks."
        difference = f"a difference of {gain.text('+.3f')} over {gain.games} held-out tasks."
        if self.outcome == "no change shown":
            return f"It is not shown that training changes the pass rate: {before} before, {after} after, {difference}"
        verb = "raises" if self.outcome == "improved" else "lowers"
        return f"Training {verb} the pass rate from {before} to {after}, {difference}"

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Means over training with 95% intervals; a point pools WINDOW steps."""
        names = ["passed", *(name for name in self.means if name in self.training)]
        return step_estimates(self.training, names, WINDOW)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By file name."""
        tables = {"players": pd.DataFrame([{"player": model, **self._numbers(model)} for model in MODELS])}
        return tables | ({"training": self.curves} if len(self.training) else {})

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """By model, and their difference on the same tasks."""
        comparison: dict[str, float] = {"tasks": self.gains["reward"].games}
        for name, gain in self.gains.items():
            comparison |= gain.numbers(f"{name}_difference")
        return {**{model: self._numbers(model) for model in MODELS}, "comparison": comparison, "outcome": self.outcome}

    def _numbers(self, model: str) -> dict[str, float]:
        numbers: dict[str, float] = {"episodes": len(self.episodes[model]), "failed": self.failed[model]}
        numbers |= {"distinct_replies": len(self.replies[model]), "most_common_reply": self.repeated(model)}
        numbers |= self.rate[model].numbers("pass_rate")
        numbers |= {f"pass_at_{k}": value.mean for k, value in self.pass_at[model].items()}
        for name in self.means:
            numbers |= self.mean(model, name).numbers(name)
        return numbers


def read_accuracy(found: Found) -> Accuracy:
    """The series `held-out`, and the episodes of training.

    Raises:
        UserError: a model has no finished episode.
    """
    assert isinstance(found.parameters, Parameters)
    least, episodes, failed, replies = found.parameters.pass_reward, {}, {}, {}
    for model in MODELS:
        frame = found.series(f"held-out/{model}")
        wrong = frame[frame["status"] == "failed"] if len(frame) else frame
        if len(wrong) == len(frame):
            folder = found.episodes / "held-out" / model
            reason = f"the first failed with {wrong['error'].iloc[0]!r}" if len(wrong) else "`dvc repro` plays them"
            raise UserError(f"There are no finished episodes in {folder} to analyze; {reason}.")
        episodes[model], failed[model] = measured(frame, model, least), len(wrong)
        said = (said for path in shards(found.episodes / "held-out" / model) for _, said in Shard(path).dialogues())
        replies[model] = Counter("\n\n".join(turns) for turns in said if turns)
        if episodes[model].empty:
            raise UserError(
                f"No episode in {found.episodes / 'held-out' / model} has a reward, so there is no pass rate."
            )
    training = found.training()
    return Accuracy(episodes, failed, measured(training, "policy", least) if len(training) else training, replies)
