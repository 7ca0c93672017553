"""Several runs on one page: each apart, and those that differ in nothing but their seed pooled."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from slim_rl.analysis import figures
from slim_rl.analysis.matches import name_of
from slim_rl.analysis.statistics import Estimate, pooled


class Column(NamedTuple):
    title: str
    metric: str
    """In metrics.json, by dotted name; with `_low` and `_high` if it has an interval."""
    spec: str = ".3f"


MATCHING = (
    Column("Questions, base", "base.questions", ".2f"),
    Column("trained", "trained.questions", ".2f"),
    Column("Reward, base", "base.reward"),
    Column("trained", "trained.reward"),
    Column("difference", "comparison.reward_difference", "+.3f"),
    Column("Useful questions, difference", "comparison.useful_questions_difference", "+.2f"),
    Column("Oracle given information", "trained.oracle_given_information"),
    Column("No-question Bayes", "bayes.reward"),
    Column("Forbidden to ask, it loses", "intervention.trained.worth_of_asking", "+.3f"),
    Column("Uses answers better", "intervention.uses_answers_better", "+.3f"),
)
_PLAYED = re.compile(r"trained\.([^.]+)\.([^.]+)\.reward")
_SOLVED = "trained.exactly."
_CALLED = {
    "exploitability": "Exploitability",
    "value_first": "Value of the first seat",
    "other": "Largest chance of an illegal move",
}


class Run(NamedTuple):
    name: str
    metrics: Mapping[str, Any]
    """By dotted name."""
    parameters: Mapping[str, Any]
    """By dotted name, `seed` among them."""

    @property
    def game(self) -> str:
        return self.parameters.get("game", "matching")

    @property
    def opponents(self) -> dict[str, str]:
        """In a game with winners, what the metrics of each opponent and seat begin with, and what to call the two."""
        played = (found.groups() for found in map(_PLAYED.fullmatch, self.metrics) if found)
        return {
            f"{opponent}.{seat}.": f"against {name_of(opponent).lower()} as {seat}"
            for opponent, seat in played
        }

    @property
    def solved(self) -> list[str]:
        """What was computed of the models of a small game."""
        return [name.removeprefix(_SOLVED) for name in self.metrics if name.startswith(_SOLVED)]

    def estimate(self, metric: str) -> Estimate:
        values = (self.metrics.get(metric + end) for end in ("", "_low", "_high", "_se"))
        return Estimate(*(math.nan if v is None else float(v) for v in values), 0)


class Group(NamedTuple):
    """Runs that differ in nothing but their seed."""

    label: str
    """What sets them apart from other groups of their game."""
    runs: tuple[Run, ...]

    @property
    def columns(self) -> Sequence[Column]:
        """What is told of each run of this game."""
        found: list[Column] = []
        played = {place: called for run in self.runs for place, called in run.opponents.items()}
        for place, called in played.items():
            found += (
                Column(f"Reward {called}: base", f"base.{place}reward"),
                Column("trained", f"trained.{place}reward"),
                Column("difference", f"comparison.{place}reward_difference", "+.3f"),
            )
        for name in dict.fromkeys(name for run in self.runs for name in run.solved):
            called = _CALLED.get(name, name)
            found += (
                Column(f"{called}: base", f"base.exactly.{name}"),
                Column("trained", f"{_SOLVED}{name}"),
            )
        return found or MATCHING

    def pooled(self, metric: str) -> Estimate:
        return pooled([run.estimate(metric).mean for run in self.runs])


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The runs by what they have in common, each group and all groups in the order of their names."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        key = tuple(f"{name} = {value}" for name, value in sorted(run.parameters.items()) if name != "seed")
        groups.setdefault(key, []).append(run)
    keys_of: dict[str, list[set[str]]] = {}
    for key, members in groups.items():
        keys_of.setdefault(members[0].game, []).append(set(key))
    labelled = []
    for key, members in groups.items():
        game = members[0].game
        shared = set.intersection(*keys_of[game])
        apart = ", ".join(setting for setting in key if setting not in shared)
        named = [game] * (len(keys_of) > 1) + [apart] * bool(apart)
        labelled.append(Group(": ".join(named) or "all runs", tuple(members)))
    return labelled


def draw(groups: Sequence[Group]) -> Figure:
    """Reward of base and trained model in every run; in a game with winners, against each opponent and from each seat."""
    return figures.runs_figure(
        [
            (
                f"{run.name} {called}".strip(),
                run.estimate(f"base.{place}reward"),
                run.estimate(f"trained.{place}reward"),
                run.metrics.get("bayes.reward"),
            )
            for group in groups
            for run in group.runs
            for place, called in (run.opponents or {"": ""}).items()
        ]
    )


def render(groups: Sequence[Group], figure: Path) -> str:
    """One HTML page that needs no other file; `figure` is that of `draw` as SVG."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    description = (
        "Dot plot of the reward of the base and the trained model in every run; the table has the numbers."
    )
    svg = figures.inline(figure.read_text(encoding="utf-8"), "runs", description)
    return environment.get_template("comparison.html.j2").render(
        groups=groups,
        picture=Markup(svg),
        isnan=math.isnan,
        bayes=any("bayes.reward" in run.metrics for group in groups for run in group.runs),
    )
