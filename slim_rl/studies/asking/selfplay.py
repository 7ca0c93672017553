"""A policy that was trained in both seats: with itself, and with partners it never met.

A pair that invents a shorthand of its own does worse with a stranger. So what the pair earns together is compared, in
both seats, with what the policy earns beside a scripted player.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from slim_rl.analysis.statistics import Estimate, as_columns, as_metrics, estimate, paired_difference
from slim_rl.evaluation.base_and_trained import MODELS
from slim_rl.games.matching.rules import SEATS
from slim_rl.rollout.shards import read_frame

PAIRINGS = {
    "self-play": "with itself",
    "held-out": "first, with the scripted partner",
    "second-seat": "second, with a scripted asker",
}
"""Series of episodes, and how the model is seated there."""
MEASURES = {
    "reward": "Reward",
    "told": "Scores told",
    "told_first": "told by the first",
    "told_second": "told by the second",
    "question_count_first": "Questions of the first",
    "question_count_second": "of the second",
    "turn_count": "Turns",
    "errors": "Errors",
}
"""Columns of what is counted in a game, and what to call them."""


@dataclass(frozen=True, eq=False)
class SelfPlay:
    episodes: dict[tuple[str, str], pd.DataFrame]
    """By pairing and model: a row for each episode that did not fail, with `game_id` and MEASURES. `reward` is that of
    the model's seat, of the first one if it has both; `reward_second` of the second seat."""

    def mean(self, pairing: str, model: str, measure: str) -> Estimate:
        return estimate(self.episodes[pairing, model], measure)

    @cached_property
    def gains(self) -> dict[str, Estimate]:
        """By pairing: what training added to the reward on the same boards."""
        frames = self.episodes
        return {p: paired_difference(frames[p, "trained"], frames[p, "base"], "reward") for p in PAIRINGS}

    @cached_property
    def own(self) -> dict[str, Estimate]:
        """By pairing with a stranger: how much more the trained model earns with itself, on the same boards."""
        itself, first, second = (self.episodes[p, "trained"] for p in ("self-play", "held-out", "second-seat"))
        itself_second = itself.assign(reward=itself["reward_second"])
        return {
            "held-out": paired_difference(itself, first, "reward"),
            "second-seat": paired_difference(itself_second, second, "reward"),
        }

    @cached_property
    def verdict(self) -> str:
        """Whether the two understand each other better than strangers do."""
        if not self.gains["self-play"].low > 0:
            return "It is not shown that the pair earns more with itself than before training."
        seats = dict(zip(("first", "second"), self.own.values(), strict=True))
        better = [seat for seat, more in seats.items() if more.low > 0]
        unclear = [seat for seat in seats if seat not in better]
        if not (better and unclear):
            return (
                f"The pair learnt to play, and is {'not shown to be ' * bool(unclear)}better with itself than with a "
                "scripted partner, in either seat."
            )
        return (
            f"The pair learnt to play, and is better with itself than with a scripted partner in the {better[0]} seat; in the "
            f"{unclear[0]} that is not shown."
        )

    @property
    def table(self) -> pd.DataFrame:
        return pd.DataFrame(
            [
                {"pairing": pairing, "model": model, **as_columns({m: self.mean(pairing, model, m) for m in MEASURES})}
                for pairing, model in self.episodes
            ]
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """The verdict; by pairing, the rewards of both models and the gain."""
        pairings = {
            pairing: {model: self.mean(pairing, model, "reward").mean for model in MODELS} | as_metrics({"gain": gain})
            for pairing, gain in self.gains.items()
        }
        return {"verdict": self.verdict, **pairings}


def read_selfplay(folder: Path) -> SelfPlay | None:
    """The episodes of all PAIRINGS; None if the model was not trained in both seats."""
    if not (folder / "self-play").exists():
        return None
    return SelfPlay({(pairing, model): _measured(folder / pairing / model) for pairing in PAIRINGS for model in MODELS})


def _measured(folder: Path) -> pd.DataFrame:
    frame = read_frame(folder)
    frame = frame[frame["status"] != "failed"]
    columns = {"game_id": frame["game_id"], "turn_count": frame["turn_count"]}
    for place, seat in zip(("first", "second"), SEATS, strict=True):
        columns |= {f"{name}_{place}": frame[f"{seat}.{name}"] for name in ("told", "question_count", "errors")}
        columns[f"reward_{place}"] = frame[f"reward.{seat}"]
    measured = pd.DataFrame(columns)
    return measured.assign(
        told=measured["told_first"] + measured["told_second"],
        errors=measured["errors_first"] + measured["errors_second"],
        reward=measured["reward_second" if folder.parent.name == "second-seat" else "reward_first"],
    )
