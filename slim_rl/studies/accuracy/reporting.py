"""The report on tasks that are solved or not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from slim_rl.analysis.statistics import MIN_TASKS, WINDOW, Estimate, as_metrics, estimate, share, step_estimates
from slim_rl.evaluation.base_and_trained import MODELS, BaseAndTrained, Row, read_players
from slim_rl.evaluation.study import Report, Results
from slim_rl.rollout.shards import read_dialogues, shards
from slim_rl.rollout.summary import pass_at_k

MOSTLY = 0.5
"""Share of the episodes from which on a policy has collapsed; see `Accuracy.collapsed`."""
_NO_MEANS = ("episode_id", "game_id", "game", "series", "arm", "step", "status", "error", "shard", "pass_rate")
"""Columns that are not averaged, besides those of seats, their rewards, and calls by status."""
_METHODS = """A task is solved with a reward of at least {right}. The interval of a pass rate is Wilson's, with the effective
sample size that follows from the variance between tasks. pass@k, the probability that at least one of k samples solves a
task, is the unbiased estimate of Chen et al. (2021). Where both models meet at a large k, training makes solutions likelier
that the base model already finds."""


def report(results: Results) -> Report:
    accuracy = read_accuracy(results)
    return accuracy.report(
        f"Does training make the policy better at {results.game.name}?",
        accuracy.verdict,
        supported=accuracy.outcome == "improved",
        methods=_METHODS.format(right=results.game.taskset.pass_reward),
        label=lambda row: "passed" if row.pass_rate else "not passed",
    )


@dataclass(frozen=True, eq=False)
class Accuracy(BaseAndTrained):
    """`episodes` and `training` have the columns of `graded`."""

    replies: Mapping[str, Counter[str]]
    """By model, all that it said in an episode, and in how many."""

    @cached_property
    def means(self) -> list[str]:
        """Columns that are averaged: the reward, truncation, and the game's metrics."""
        every = dict.fromkeys(["reward", "truncated", *(c for f in self.episodes.values() for c in f)])
        return [c for c in every if c not in _NO_MEANS and not c.startswith(("seat.", "reward.", "calls."))]

    @cached_property
    def rate(self) -> dict[str, Estimate]:
        """The pass rate of each model."""
        return {model: share(frame, "pass_rate") for model, frame in self.episodes.items()}

    @cached_property
    def pass_at(self) -> dict[str, dict[int, Estimate]]:
        """By model and k: the powers of 2 up to the samples of a task, and their number."""
        rates: dict[str, dict[int, Estimate]] = {}
        for model, frame in self.episodes.items():
            tasks = frame.groupby("game_id")["pass_rate"].agg(["size", "sum"]).astype(int)
            most = int(tasks["size"].max())
            for k in sorted({*(2**i for i in range(most.bit_length())), most}):
                known = tasks[tasks["size"] >= k]
                values = [pass_at_k(n, c, k) for n, c in known.itertuples(index=False)]
                rows = pd.DataFrame({"game_id": known.index, "x": values})
                rates.setdefault(model, {})[k] = estimate(rows, "x")
        return rates

    @cached_property
    def repeated(self) -> dict[str, float]:
        """The share of each model's episodes with its most common reply."""
        return {m: max(count.values(), default=0) / max(count.total(), 1) for m, count in self.replies.items()}

    @cached_property
    def collapsed(self) -> str:
        """How the trained model earns its reward without solving tasks, if it does and the base model does not: one
        reply in most episodes, or a game that reports the metric `degenerate` reports it of most."""
        base, trained = (self.repeated[model] for model in MODELS)
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
        gain = self.difference("pass_rate")
        if gain.games < MIN_TASKS:
            return "too little data"
        return "improved" if gain.low > 0 else "worse" if gain.high < 0 else "no change shown"

    @cached_property
    def verdict(self) -> str:
        if self.collapsed:
            before, after = (len(self.replies[model]) for model in MODELS)
            return (
                f"The policy has collapsed: {self.collapsed}. Distinct replies: {before} before and {after} after; "
                f"reward: a difference of {self.difference('reward').text('+.3f')}."
            )
        gain, (low, high) = self.difference("pass_rate"), (f"{self.rate[model].mean:.1%}" for model in MODELS)
        difference = f"a difference of {gain.text('+.3f')} over {gain.games} held-out tasks."
        return {
            "too little data": f"Too little data: the models share {gain.games} held-out tasks; {MIN_TASKS} are needed for a verdict.",
            "improved": f"Training raises the pass rate from {low} to {high}, {difference}",
            "worse": f"Training lowers the pass rate from {low} to {high}, {difference}",
            "no change shown": f"It is not shown that training changes the pass rate: {low} before, {high} after, {difference}",
        }[self.outcome]

    @property
    def rows(self) -> list[Row]:
        _, reward, count = super().rows
        rate = Row("Pass rate", self.rate, ".1%", self.difference("pass_rate"))
        every = sorted({k for by_k in self.pass_at.values() for k in by_k if k > 1})
        at = [Row(f"Pass@{k}", {m: by_k[k] for m, by_k in self.pass_at.items() if k in by_k}, ".1%") for k in every]
        others = [self.row(name, name.replace("_", " ").capitalize()) for name in self.means if name != "reward"]
        replies = Row("Distinct replies", {model: str(len(self.replies[model])) for model in MODELS})
        return [rate, *at, reward, *others, replies, count]

    @cached_property
    def curves(self) -> pd.DataFrame:
        names = ["pass_rate", *(name for name in self.means if name in self.training)]
        return step_estimates(self.training, names, WINDOW)

    @property
    def metrics(self) -> dict[str, Any]:
        return {**super().metrics, "outcome": self.outcome}

    def numbers(self, player: str) -> dict[str, float]:
        means = {"pass_rate": self.rate[player], **{name: self.mean(player, name) for name in self.means}}
        return {
            **super().numbers(player),
            "distinct_replies": len(self.replies[player]),
            "most_common_reply": self.repeated[player],
            **{f"pass_at_{k}": value.mean for k, value in self.pass_at[player].items()},
            **as_metrics(means),
        }


def graded(frame: pd.DataFrame, right: float) -> pd.DataFrame:
    """What `rewarded` gives, with `pass_rate` (0 or 1), `truncated`, and `malformed_calls` if the game counts calls by
    status.

    Args:
        right: the least reward of a solved task.
    """
    passed, truncated = frame["reward"] >= right - 1e-9, frame["status"] == "truncated"
    frame = frame.assign(truncated=truncated.astype(float), pass_rate=passed.astype(float))
    malformed = [column for column in frame if column.startswith("calls.")]
    return frame.assign(malformed_calls=frame[malformed].sum(axis=1)) if malformed else frame


def read_accuracy(results: Results) -> Accuracy:
    """The series `held-out`, and the episodes of training.

    Raises:
        UserError: a model has no finished episode with a reward.
    """
    right = results.game.taskset.pass_reward
    episodes, failed, training = read_players(results)
    replies = {}
    for model in MODELS:
        folder = results.episodes / "held-out" / model
        dialogues = (turns for path in shards(folder) for _, turns in read_dialogues(path) if turns)
        replies[model] = Counter("\n\n".join(text for _, text in turns) for turns in dialogues)
    return Accuracy(
        {model: graded(frame, right) for model, frame in episodes.items()},
        failed,
        graded(training, right) if len(training) else training,
        {"pass_rate": "Pass rate", "reward": "Reward"},
        replies,
    )
