"""Several runs on one page: each apart, and those that differ in nothing but their seed pooled."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from slim_rl.analysis import figures
from slim_rl.analysis.statistics import Estimate, pooled


class Column(NamedTuple):
    title: str
    metric: str
    """In metrics.json, by dotted name; with `_low` and `_high` if it has an interval."""
    spec: str = ".3f"


COLUMNS = (
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


class Run(NamedTuple):
    name: str
    metrics: Mapping[str, Any]
    """By dotted name."""
    parameters: Mapping[str, Any]
    """By dotted name, `seed` among them."""

    def estimate(self, metric: str) -> Estimate:
        values = (self.metrics.get(metric + end) for end in ("", "_low", "_high", "_se"))
        return Estimate(*(math.nan if v is None else float(v) for v in values), 0)


class Group(NamedTuple):
    """Runs that differ in nothing but their seed."""

    label: str
    """What sets them apart from other groups."""
    runs: tuple[Run, ...]

    def pooled(self, metric: str) -> Estimate:
        return pooled([run.estimate(metric).mean for run in self.runs])


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The runs by what they have in common, each group and all groups in the order of their names."""
    groups: dict[tuple, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        key = tuple(sorted((name, str(value)) for name, value in run.parameters.items() if name != "seed"))
        groups.setdefault(key, []).append(run)
    shared = set.intersection(*map(set, groups)) if groups else set()
    return [
        Group(", ".join(f"{n} = {v}" for n, v in key if (n, v) not in shared) or "all runs", tuple(members))
        for key, members in groups.items()
    ]


def draw(groups: Sequence[Group]) -> Figure:
    """Reward of base and trained model in every run."""
    return figures.runs_figure(
        [
            (
                run.name,
                run.estimate("base.reward"),
                run.estimate("trained.reward"),
                run.metrics.get("bayes.reward"),
            )
            for group in groups
            for run in group.runs
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
        groups=groups, columns=COLUMNS, picture=Markup(svg), isnan=math.isnan
    )
