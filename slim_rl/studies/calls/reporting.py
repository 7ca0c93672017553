"""Did the policy learn to call, and does calling pay? Criteria fixed before the numbers are seen.

As in the study of asking, five things must hold together: it calls clearly more, it earns clearly more, a player that
never calls does not gain most of what it gained, forbidden to call it loses most of that again, and most of it comes to
the base model that is made to call as often.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from slim_rl.analysis.statistics import Estimate, as_metrics, estimate, paired_difference
from slim_rl.evaluation.base_and_trained import MODELS, BaseAndTrained, Criterion, Row, read_players
from slim_rl.evaluation.study import Report, Results, rewarded
from slim_rl.studies.calls.parameters import Parameters

PRICES = (0.05, 0.1, 0.25, 0.5)
"""Prices per call at which free play is valued."""
MIN_TASKS = 100
"""With fewer there is no verdict."""
MIN_RATIO = 2.0
"""Calls must at least double,"""
MIN_MORE = 0.25
"""and grow by one in every fourth task."""
MIN_SHARE = 0.5
"""This share of the gain must lie above the player that never calls, and be lost when calls are forbidden."""

Outcome = Literal["supported", "calls more without gain", "gains without calling", "not supported", "too little data"]
_METHODS = """Forbidden: the token that begins a call is never drawn. Forced-K: the first K turns are calls made for the model;
then it may call no more. A price is deducted from the reward of free play; the policy does not know it."""


def report(results: Results) -> Report:
    calls = read_calls(results)
    return calls.report(
        f"Does the policy learn to call its tools in {results.game.name}?",
        calls.verdict,
        supported=calls.outcome == "supported",
        criteria=calls.criteria,
        methods=_METHODS,
        label=lambda row: f"{row.calls:.0f} calls",
    )


@dataclass(frozen=True, eq=False)
class Calls(BaseAndTrained):
    arms: Mapping[str, Mapping[str, pd.DataFrame]]
    """By model and arm."""
    references: tuple[str, ...]
    """The first player never calls."""

    @cached_property
    def pays(self) -> Estimate | None:
        """Reward of the trained model less that of the player that never calls; None without such a player."""
        return self.difference("reward", self.references[0]) if self.references else None

    @cached_property
    def worth(self) -> Estimate | None:
        """What the trained model earns less when it may not call; None without an intervention."""
        if "forbidden" not in self.arms["trained"]:
            return None
        return paired_difference(self.episodes["trained"], self.arms["trained"]["forbidden"], "reward")

    @cached_property
    def made(self) -> tuple[int, Estimate] | None:
        """Calls that the base model is made to make, about as many as the trained model makes, and what it earns more by it;
        None without such an intervention."""
        often = self.episodes["trained"]["calls"].mean()
        counts = [int(arm.removeprefix("forced-")) for arm in self.arms["base"] if arm.startswith("forced-")]
        if not counts:
            return None
        calls = min(counts, key=lambda count: abs(count - often))
        return calls, paired_difference(self.arms["base"][f"forced-{calls}"], self.episodes["base"], "reward")

    @property
    def cause(self) -> str:
        if self.worth is None:
            return ""
        return f"Forbidden to call, the trained model earns {self.worth.text('.3f')} less."

    @cached_property
    def criteria(self) -> tuple[Criterion, ...]:
        (few, many), (low, high) = (
            tuple(self.episodes[model][column].mean() for model in MODELS) for column in ("calls", "reward")
        )
        calls, gain = self.difference("calls"), self.difference("reward")
        more = calls.low > 0 and calls.mean >= MIN_MORE and many >= MIN_RATIO * few
        criteria = [
            Criterion(
                bool(more),
                f"It calls more: {many:.2f} calls a task after {few:.2f}, a difference of {calls.text('+.2f')}; "
                f"required: at least twice as many, {MIN_MORE} more, and the interval above 0.",
            ),
            Criterion(
                bool(gain.low > 0),
                f"It earns more: reward {high:.3f} after {low:.3f}, a difference of {gain.text('+.3f')}; "
                "required: the interval above 0.",
            ),
        ]
        number, made = self.made or (1, None)
        for value, text in (
            (self.pays, "The player that never calls is out of reach: the trained model earns more by"),
            (self.worth, "Calling causes the gain: forbidden to call, the trained model earns less by"),
            (
                made,
                f"Calling is what the base model lacks: made to call {'once' if number == 1 else f'{number} times'}, it earns more by",
            ),
        ):
            if value is not None:
                met = value.low > 0 and value.mean >= MIN_SHARE * gain.mean
                required = f"required: the interval above 0, and at least {MIN_SHARE:.0%} of the gain."
                criteria.append(Criterion(bool(met), f"{text} {value.text('.3f')}; {required}"))
        return tuple(criteria)

    @cached_property
    def outcome(self) -> Outcome:
        if self.difference("reward").games < MIN_TASKS:
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
        gain = self.difference("reward")
        numbers = f"{many:.2f} calls a task after {few:.2f}, and a reward that differs by {gain.text('+.3f')}"
        sentences = {
            "supported": f"Supported: training makes the policy call its tools, and that is why it earns more: {numbers}.",
            "gains without calling": f"Not supported: it earns more, but calling is not shown to be why: {numbers}.",
            "calls more without gain": f"Not supported: it calls more, but earns no more: {numbers}.",
            "not supported": f"Not supported: {numbers}.",
            "too little data": f"Not supported: too little data. The models share {gain.games} tasks; "
            f"{MIN_TASKS} are needed for a verdict.",
        }
        return sentences[self.outcome]

    def at_prices(self, player: str) -> dict[str, Estimate]:
        """The reward less a price for each call, by price."""
        frame = self.episodes[player]
        return {
            f"{price:g}": estimate(frame.assign(net=frame["reward"] - price * frame["calls"]), "net")
            for price in PRICES
        }

    def in_arms(self, player: str) -> dict[str, Estimate]:
        """The reward in each arm that the player played."""
        return {arm: estimate(frame, "reward") for arm, frame in self.arms.get(player, {}).items()}

    @property
    def rows(self) -> list[Row]:
        *means, count = super().rows
        priced = {player: self.at_prices(player) for player in self.episodes}
        in_arms = {model: self.in_arms(model) for model in MODELS}
        prices = [
            Row(f"Reward at {price} a call", {player: rewards[price] for player, rewards in priced.items()})
            for price in priced["base"]
        ]
        arms = [
            Row(f"Reward, {arm}", {model: rewards[arm] for model, rewards in in_arms.items() if arm in rewards})
            for arm in in_arms["trained"]
        ]
        return [*means, *prices, *arms, count]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        arms = [
            {"player": model, "arm": arm, **as_metrics({"reward": reward})}
            for model in MODELS
            for arm, reward in self.in_arms(model).items()
        ]
        return super().tables | ({"arms": pd.DataFrame(arms)} if arms else {})

    @property
    def metrics(self) -> dict[str, Any]:
        values = super().metrics
        made = self.made[1] if self.made else None
        differences = {"never_calls_difference": self.pays, "forbidden_difference": self.worth, "made_difference": made}
        values["comparison"] |= as_metrics({name: value for name, value in differences.items() if value is not None})
        return {**values, "outcome": self.outcome}

    def numbers(self, player: str) -> dict[str, float]:
        prices = {f"reward_at_price_{price}": reward.mean for price, reward in self.at_prices(player).items()}
        arms = as_metrics({f"reward_{arm}": reward for arm, reward in self.in_arms(player).items()})
        return super().numbers(player) | prices | arms


def read_calls(results: Results) -> Calls:
    """The series `held-out` and `intervention`, and the episodes of training.

    Raises:
        UserError: a player has no finished episode.
    """
    assert isinstance(results.parameters, Parameters)
    references, arms = results.parameters.references, {}
    names = ["forbidden", *(f"forced-{k}" for k in results.parameters.forced)]
    for model in MODELS:
        frames = {arm: results.series(f"intervention/{model}-{arm}") for arm in names}
        arms[model] = {arm: rewarded(frame, model) for arm, frame in frames.items() if len(frame)}
    measures = {"calls": "Calls", "reward": "Reward"}
    return Calls(*read_players(results, (*MODELS, *references)), measures, arms, references)
