"""Did the policy learn to call, and does calling pay? Criteria fixed before the numbers are seen.

As in the study of asking, four things must hold together: it calls clearly more, it earns clearly more, a player that
never calls does not gain most of what it gained, and forbidden to call it loses most of that again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pandas as pd

from slim_rl.analysis.statistics import WINDOW, Estimate, estimate, paired_difference, step_estimates
from slim_rl.core.errors import UserError
from slim_rl.studies.calls.parameters import Parameters
from slim_rl.studies.study import Found, rewarded

MODELS = ("base", "trained")
MIN_TASKS = 100
"""With fewer there is no verdict."""
MIN_RATIO = 2.0
"""Calls must at least double,"""
MIN_MORE = 0.25
"""and grow by one in every fourth task."""
MIN_SHARE = 0.5
"""This share of the gain must lie above the player that never calls, and be lost when calls are forbidden."""

Outcome = Literal["supported", "calls more without gain", "gains without calling", "not supported", "too little data"]


class Criterion(NamedTuple):
    met: bool
    text: str


@dataclass(frozen=True, eq=False)
class Calls:
    episodes: Mapping[str, pd.DataFrame]
    """Free play, by player."""
    arms: Mapping[str, Mapping[str, pd.DataFrame]]
    """By model and arm."""
    training: pd.DataFrame
    parameters: Parameters

    def mean(self, player: str, name: str) -> Estimate:
        return estimate(self.episodes[player], name)

    def price_of(self, player: str, price: float) -> Estimate:
        """The reward less `price` for each call."""
        frame = self.episodes[player]
        return estimate(frame.assign(net=frame["reward"] - price * frame["calls"]), "net")

    def arm(self, model: str, arm: str) -> Estimate:
        return estimate(self.arms[model][arm], "reward")

    @cached_property
    def calls(self) -> Estimate:
        """Calls a task, trained less base."""
        return paired_difference(self.episodes["trained"], self.episodes["base"], "calls")

    @cached_property
    def gain(self) -> Estimate:
        """Reward, trained less base."""
        return paired_difference(self.episodes["trained"], self.episodes["base"], "reward")

    @cached_property
    def pays(self) -> Estimate | None:
        """Reward of the trained model less that of the player that never calls; None without such a player."""
        reference = next(iter(self.parameters.references), None)
        if reference is None:
            return None
        return paired_difference(self.episodes["trained"], self.episodes[reference], "reward")

    @cached_property
    def worth(self) -> Estimate | None:
        """What the trained model earns less when it may not call; None without an intervention."""
        if "forbidden" not in self.arms.get("trained", {}):
            return None
        return paired_difference(self.episodes["trained"], self.arms["trained"]["forbidden"], "reward")

    @cached_property
    def criteria(self) -> tuple[Criterion, ...]:
        (few, many), (low, high) = (
            tuple(self.episodes[model][column].mean() for model in MODELS) for column in ("calls", "reward")
        )
        more = self.calls.low > 0 and self.calls.mean >= MIN_MORE and many >= MIN_RATIO * few
        found = [
            Criterion(
                bool(more),
                f"It calls more: {many:.2f} calls a task after {few:.2f}, a difference of {self.calls.text('+.2f')}; "
                f"required: at least twice as many, {MIN_MORE} more, and the interval above 0.",
            ),
            Criterion(
                bool(self.gain.low > 0),
                f"It earns more: reward {high:.3f} after {low:.3f}, a difference of {self.gain.text('+.3f')}; "
                "required: the interval above 0.",
            ),
        ]
        for value, text in (
            (self.pays, "The player that never calls is out of reach: the trained model earns more by"),
            (self.worth, "Calling is why: forbidden to call, the trained model earns less by"),
        ):
            if value is not None:
                met = value.low > 0 and value.mean >= MIN_SHARE * self.gain.mean
                required = f"required: the interval above 0, and at least {MIN_SHARE:.0%} of the gain."
                found.append(Criterion(bool(met), f"{text} {value.text('.3f')}; {required}"))
        return tuple(found)

    @cached_property
    def outcome(self) -> Outcome:
        if self.gain.games < MIN_TASKS:
            return "too little data"
        more, gain, *because = (criterion.met for criterion in self.criteria)
        if more and gain and all(because):
            return "supported"
        if gain:
            return "gains without calling"
        return "calls more without gain" if more else "not supported"

    @cached_property
    def verdict(self) -> str:
        few, many = (self.episodes[model]["calls"].mean() for model in MODELS)
        numbers = f"{many:.2f} calls a task after {few:.2f}, and a reward that differs by {self.gain.text('+.3f')}"
        told = {
            "supported": f"Supported: training makes the policy call its tools, and that is why it earns more: {numbers}.",
            "gains without calling": f"Not supported: it earns more, but calling is not shown to be why: {numbers}.",
            "calls more without gain": f"Not supported: it calls more, but earns no more: {numbers}.",
            "not supported": f"Not supported: {numbers}.",
            "too little data": f"Not supported: too little data. The models share {self.gain.games} tasks; "
            f"{MIN_TASKS} are needed for a verdict.",
        }
        return told[self.outcome]

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Calls and reward over training with 95% intervals; a point pools WINDOW steps."""
        return step_estimates(self.training, ["reward", "calls"], WINDOW)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By file name."""
        players = [{"player": player, **self._numbers(player)} for player in self.episodes]
        arms = [
            {"player": model, "arm": arm, **self.arm(model, arm).numbers("reward")}
            for model, by_arm in self.arms.items()
            for arm in by_arm
        ]
        tables = {"players": pd.DataFrame(players)}
        tables |= {"arms": pd.DataFrame(arms)} if arms else {}
        return tables | ({"training": self.curves} if len(self.training) else {})

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """By player, the arms of each model, and trained against base."""
        values: dict[str, Any] = {player: self._numbers(player) for player in self.episodes}
        for model, by_arm in self.arms.items():
            for arm in by_arm:
                values[model] |= self.arm(model, arm).numbers(f"reward_{arm}")
        comparison: dict[str, float] = {"tasks": self.gain.games}
        named = {"calls": self.calls, "reward": self.gain, "never_calls": self.pays, "forbidden": self.worth}
        for name, value in named.items():
            if value is not None:
                comparison |= value.numbers(f"{name}_difference")
        return {**values, "comparison": comparison, "outcome": self.outcome}

    def _numbers(self, player: str) -> dict[str, float]:
        numbers: dict[str, float] = {"episodes": len(self.episodes[player])}
        for name in ("calls", "reward"):
            numbers |= self.mean(player, name).numbers(name)
        for price in self.parameters.prices:
            numbers[f"reward_at_price_{price:g}"] = self.price_of(player, price).mean
        return numbers


def read_calls(found: Found) -> Calls:
    """The series `held-out` and `intervention`, and the episodes of training.

    Raises:
        UserError: a player has no finished episode.
    """
    assert isinstance(found.parameters, Parameters)
    episodes, arms = {}, {}
    for player in (*MODELS, *found.parameters.references):
        frame = found.series(f"held-out/{player}")
        episodes[player] = rewarded(frame, player) if len(frame) else frame
        if episodes[player].empty:
            folder = found.episodes / "held-out" / player
            raise UserError(f"There are no finished episodes in {folder} to analyze; `dvc repro` plays them.")
    for model in MODELS:
        names = ["forbidden", *(f"forced-{k}" for k in found.parameters.forced)]
        frames = {arm: found.series(f"intervention/{model}-{arm}") for arm in names}
        arms[model] = {arm: rewarded(frame, model) for arm, frame in frames.items() if len(frame)}
    training = found.training()
    return Calls(episodes, arms, rewarded(training, "policy") if len(training) else training, found.parameters)
