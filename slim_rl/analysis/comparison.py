"""Several runs on one page: each by itself, and those that differ only in their seed pooled."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis import figures
from slim_rl.analysis.page import template
from slim_rl.analysis.statistics import Estimate, pooled

NOT_COMPARED = {"seed", "cores", "concurrency"}
"""Parameters in which runs of a group may differ: the seed, and what depends on the machine."""


class Column(NamedTuple):
    title: str
    metric: str
    """In metrics.json, by dotted name; with `_low` and `_high` if it has an interval."""
    spec: str = ".3f"


class Point(NamedTuple):
    """A reward of the base and the trained model, by the names of their metrics."""

    label: str
    """What sets it apart from other points of its run; empty if the run has one."""
    base: str
    trained: str
    mark: str = ""
    """A metric to measure both against."""


class Compared(NamedTuple):
    """What a study compares of several runs."""

    columns: Sequence[Column]
    points: Sequence[Point]
    mark: str = ""
    """What the points' marks mean: a sentence."""
    verdict: str = ""
    """A sentence on all runs together, the run as the unit, if there are several."""
    table: str = ""
    """A table over training, by file name, whose columns are drawn with a line for each run."""
    curves: Mapping[str, str] = {}
    """Columns of `table`, and what to call them."""


CORRELATIONS = (
    Column("Questions and reward over training steps: Pearson", "question_reward.training_steps.pearson", "+.2f"),
    Column("Over held-out games: base model", "question_reward.held_out.base.pearson", "+.2f"),
    Column("Over held-out games: trained model", "question_reward.held_out.trained.pearson", "+.2f"),
    Column("Within the same task", "question_reward.same_task.pearson", "+.2f"),
    Column("Within the same task: reward a question", "question_reward.same_task.slope", "+.3f"),
)
"""Correlations of questions, or calls, with reward; see `slim_rl.analysis.correlations`."""


def differences(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    """What most studies compare: base, trained and their difference, for each `comparison.NAME_difference`."""
    matches = [re.fullmatch(r"comparison\.(\w+)_difference", metric) for run in metrics for metric in run]
    columns = []
    for name in dict.fromkeys(match[1] for match in matches if match):
        title = name.replace("_", " ").capitalize()
        columns += [
            Column(f"{title}: base model", f"base.{name}"),
            Column(f"{title}: trained", f"trained.{name}"),
            Column(f"{title}: difference", f"comparison.{name}_difference", "+.3f"),
        ]
    return Compared([*columns, *CORRELATIONS], [Point("", "base.reward", "trained.reward")])


class Run(NamedTuple):
    """One game of one experiment."""

    name: str
    game: str
    study: str
    metrics: Mapping[str, Any]
    """By dotted name."""
    parameters: Mapping[str, Any]
    """By dotted name, `seed` among them."""
    read: Callable[[str], pd.DataFrame | None] = lambda table: None
    """A table of its report, by file name; None if it is not at hand."""

    def estimate(self, metric: str) -> Estimate:
        values = (self.metrics.get(metric + end) for end in ("", "_low", "_high", "_se"))
        mean, low, high, se = (math.nan if value is None else float(value) for value in values)
        return Estimate(mean, low, high, se, 0)


class Group(NamedTuple):
    """Runs of a game that differ in nothing but `NOT_COMPARED`."""

    name: str
    """The names of its runs without their numbers, "seed" of "seed-0" and "seed-1"; with its label where another group
    has the same."""
    label: str
    """What sets them apart from other groups of their game."""
    runs: tuple[Run, ...]
    compared: Compared

    @property
    def columns(self) -> list[Column]:
        """What any of its runs has measured."""
        return [c for c in self.compared.columns if any(run.metrics.get(c.metric) is not None for run in self.runs)]

    @property
    def curves(self) -> list[pd.DataFrame]:
        """The study's table over training, of each run that has it at hand."""
        return [table for run in self.runs if (table := run.read(self.compared.table)) is not None]

    @property
    def pooled_runs(self) -> list[Run]:
        """The runs that are independent of each other."""
        return one_of_each_seed(self.runs)

    def pooled(self, metric: str) -> Estimate:
        return pooled([run.estimate(metric).mean for run in self.pooled_runs])


def one_of_each_seed(runs: Sequence[Run]) -> list[Run]:
    """The first run of each seed: another one has the same boards and the same base model."""
    return list({run.parameters["seed"]: run for run in reversed(runs)}.values())[::-1]


def grouped(runs: Sequence[Run], compared: Callable[[str, Sequence[Mapping[str, Any]]], Compared]) -> list[Group]:
    """The runs by what they have in common, in the order of their names; the group with the most runs first.

    Args:
        compared: what the study of this name compares of runs with these metrics.
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.name, run.game)):
        settings = [f"{name} = {value}" for name, value in sorted(run.parameters.items()) if name not in NOT_COMPARED]
        groups.setdefault((run.game, *settings), []).append(run)
    games: dict[str, list[set[str]]] = {}
    for game, *settings in groups:
        games.setdefault(game, []).append(set(settings))
    names = [", ".join(dict.fromkeys(re.sub(r"(?<=\w)-\d+$", "", r.name) for r in runs)) for runs in groups.values()]
    named = []
    for name, ((game, *settings), members) in zip(names, groups.items(), strict=True):
        shared = set.intersection(*games[game])
        apart = ", ".join(setting for setting in settings if setting not in shared)
        label = ": ".join([game] * (len(games) > 1) + [apart] * bool(apart)) or "all runs"
        of_study = compared(members[0].study, [run.metrics for run in one_of_each_seed(members)])
        named.append(Group(f"{name} ({label})" if names.count(name) > 1 else name, label, tuple(members), of_study))
    return sorted(named, key=lambda group: -len(group.pooled_runs))


def draw(groups: Sequence[Group]) -> Figure:
    """Rewards of base and trained model in every run."""
    return figures.runs_figure(
        [
            (
                f"{run.name} {point.label}".strip(),
                run.estimate(point.base),
                run.estimate(point.trained),
                run.metrics.get(point.mark),
            )
            for group in groups
            for run in group.runs
            for point in group.compared.points
        ]
    )


def draw_curves(groups: Sequence[Group]) -> list[tuple[Figure, str]]:
    """A figure, and what it shows, for the groups of each study whose tables over training are at hand: a row of small
    panels for each group, a thin line for each run."""
    drawn = []
    for columns in {tuple(curves.items()): curves for g in groups if (curves := g.compared.curves)}.values():
        rows = {g.name: tables for g in groups if g.compared.curves == columns and (tables := g.curves)}
        if rows:
            drawn.append((figures.curves_figure(rows, columns), " and ".join(columns.values())))
    return drawn


def render(groups: Sequence[Group], folder: Path) -> str:
    """One HTML page that needs no other file. Its figures are also saved in `folder`."""
    figures.save(draw(groups), folder / "runs.svg")
    curves = {}
    for number, (figure, description) in enumerate(draw_curves(groups)):
        curves[f"runs-{number}"] = description
        figures.save(figure, folder / f"runs-{number}.svg")
    marks = dict.fromkeys(
        group.compared.mark
        for group in groups
        if any(point.mark in run.metrics for run in group.runs for point in group.compared.points)
    )
    return template("comparison.html.j2", folder).render(
        question="Runs compared", groups=groups, curves=curves, marks=[m for m in marks if m]
    )
