"""What the figures of all reports share: the size they have in print, colours after Okabe and Ito, and helpers.

Colour never carries a meaning alone. A function that makes a figure runs `with_style`.
"""

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from slim_rl.analysis.statistics import Estimate
from slim_rl.analysis.titles import title
from slim_rl.runtime.files import write_whole

F = TypeVar("F", bound=Callable[..., Any])
BLUE, VERMILLION, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#595959"
PURPLE, YELLOW, SKY = "#cc79a7", "#e69f00", "#56b4e9"
INK, PAPER, LINE = "#1a1a1a", "#ffffff", "#d0d0d0"
THEME = {
    INK: "ink", PAPER: "paper", GREY: "soft", LINE: "line", BLUE: "blue", VERMILLION: "vermillion", GREEN: "green",
    PURPLE: "purple", YELLOW: "yellow", SKY: "sky",
}  # fmt: skip
"""Colours of a figure by the names that a page gives them, so that a page can choose lighter ones in the dark."""
MAX_POINTS = 400
"""Points of a curve: more cannot be told apart, and each adds to the page's size."""
WIDTH = 4.8
"""Inches: a column of print, and legible on a phone."""
LINES = tuple(zip((BLUE, VERMILLION, GREEN, PURPLE, GREY), ("-", "--", "-.", ":", (0, (1, 3))), strict=True))
"""Colour and line style of several curves."""
MODELS = {"base": (VERMILLION, "o", "--"), "trained": (BLUE, "s", "-")}
"""Colour, marker and line of the two models."""
_STYLE = {
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "lines.markersize": 4.5,
    "figure.facecolor": PAPER,
    "hatch.linewidth": 0.5,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
    "svg.hashsalt": "slim_rl",  # the same figure is the same file
}


def with_style(draw: F) -> F:
    """Decorates a function that makes a figure or saves one."""
    return matplotlib.rc_context(_STYLE)(draw)  # type: ignore[arg-type]


def curve(axes: Axes, curves: pd.DataFrame, column: str, label: str, colour: str, line: Any) -> None:
    """A column of `step_estimates` over training, with its band."""
    curves = thinned(curves, MAX_POINTS)
    marker = "o" if len(curves) < 8 else None  # or a line between two points looks like a measured trend
    axes.plot(curves["step"], curves[column], color=colour, linestyle=line, marker=marker, label=label)
    low, high = curves[f"{column}_low"], curves[f"{column}_high"]
    axes.fill_between(curves["step"], low, high, color=colour, alpha=0.2, linewidth=0)


def points(axes: Axes, rows: pd.DataFrame, x: str, y: str, label: str, style: tuple[str, str, str]) -> None:
    """Column `y` with its interval against `x`; `style` is a colour, a marker and a line."""
    colour, marker, line = style
    reach = [rows[y] - rows[f"{y}_low"], rows[f"{y}_high"] - rows[y]]
    axes.errorbar(rows[x], rows[y], reach, label=label, color=colour, marker=marker, linestyle=line, linewidth=1)


def thinned(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """A table over training steps with at most `rows` of its rows; any other whole."""
    every = math.ceil(len(table) / rows)
    return table.iloc[::every] if len(table) and table.columns[0] == "step" else table


def whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend(axes: Axes, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


@with_style
def training_figure(curves: pd.DataFrame, columns: Mapping[str, str], label: str) -> Figure:
    """Columns of `step_estimates`, and what to call each, over training; `label` is the vertical axis'."""
    figure = Figure((WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for (column, name), (colour, line) in zip(columns.items(), LINES, strict=False):
        curve(axes, curves, column, name, colour, line)
    axes.set(xlabel="training step", ylabel=label)
    whole_numbers(axes)
    legend(axes, 2)
    return figure


@with_style
def question_reward_figure(binned: pd.DataFrame, path: pd.DataFrame, noun: str) -> Figure:
    """Reward against questions: the mean reward by their number for base and trained model, and the way of training.

    Args:
        binned: `player`, `question_count`, `reward` with its interval, `episodes`.
        path: `step`, and the means of `question_count` and `reward`.
        noun: what a question is called.
    """
    figure = Figure((WIDTH, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for player, style in MODELS.items():
        points(left, binned[binned["player"] == player], "question_count", "reward", title(player), style)
    legend(left, 1)
    right.plot(path["question_count"], path["reward"], color=GREY, linewidth=1)
    for row, name, marker, colour in ((0, "first", "o", VERMILLION), (-1, "last", "s", BLUE)):
        if len(path):
            step = path.iloc[row]
            label = f"{name} step" if len(path) > 1 else "the step"
            right.plot([step["question_count"]], [step["reward"]], marker, color=colour, label=label)
    legend(right, 1)
    left.set(xlabel=f"{noun}s in a held-out game", ylabel="mean reward")
    right.set(xlabel=f"mean {noun}s in a step")
    return figure


@with_style
def health_figure(curves: pd.DataFrame) -> Figure:
    """A small panel for each column over `step`."""
    names = [name for name in curves if name != "step"]
    figure = Figure((WIDTH, 0.4 + 1.1 * math.ceil(len(names) / 2)), layout="constrained")
    panels = figure.subplots(math.ceil(len(names) / 2), 2, squeeze=False, sharex=True).ravel()
    for axes, name in zip(panels, names, strict=False):
        axes.plot(curves["step"], curves[name], color=BLUE, linewidth=0.8)
        axes.set_title(name.replace("_", " "))
        whole_numbers(axes)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    return figure


@with_style
def runs_figure(runs: Sequence[tuple[str, Estimate, Estimate, float | None]]) -> Figure:
    """For every run its name, reward of base and trained model, and a mark to measure both against."""
    figure = Figure((WIDTH, 0.9 + 0.27 * len(runs)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(runs)), [name for name, *_ in reversed(runs)])
    axes.set(xlabel="reward", ylim=(-0.6, len(runs) - 0.4))
    axes.grid(axis="y", linewidth=0.4, color=LINE)
    axes.set_axisbelow(True)
    for y, (_, base, trained, mark) in enumerate(reversed(runs)):
        if mark is not None:
            axes.plot([mark], [y], "D", color=GREEN)
        for one, sign, colour, face in ((base, "o", VERMILLION, PAPER), (trained, "s", BLUE, BLUE)):
            reach = np.abs([[one.low - one.mean], [one.high - one.mean]])
            axes.errorbar([one.mean], [y], xerr=reach, elinewidth=1, fmt=sign, color=colour, markerfacecolor=face)
    return figure


@with_style
def curves_figure(groups: Mapping[str, Sequence[pd.DataFrame]], columns: Mapping[str, str]) -> Figure:
    """Columns over training, a panel each and a row for each group: a thin line for each run and their mean.

    Args:
        groups: by name, of each run a row a training step, with `step`.
        columns: and what to call them.
    """
    figure = Figure((WIDTH, 0.5 + 1.2 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), len(columns), squeeze=False)
    for (name, runs), row in zip(groups.items(), panels, strict=True):
        mean = pd.concat(runs).groupby("step")[list(columns)].mean()
        for axes, column in zip(row, columns, strict=True):
            for run in runs:
                axes.plot(run["step"], run[column], color=BLUE, linewidth=0.6, alpha=0.6)
            axes.plot(mean.index, mean[column], color=BLUE, linewidth=1.6)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        row[0].set(ylabel=name)
    for axes, label in zip(panels[0], columns.values(), strict=True):
        axes.set_title(label, fontsize="medium")
    for axes in panels[-1]:
        axes.set(xlabel="training step")
    return figure


@with_style
def save(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`, which ends in .svg or .png (300 dots an inch), without a date in it."""
    kind = path.suffix.removeprefix(".")
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
    write_whole(path, lambda part: figure.savefig(part, format=kind, dpi=300, metadata=metadata))


def inline(svg: str, name: str, description: str) -> str:
    """A saved figure as part of a page: in the page's colours, read out as `description`."""
    body = svg[svg.index("<svg") :]
    for colour, variable in THEME.items():
        body = body.replace(colour, f"var(--{variable})")
    # Several figures on one page must not share names.
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    return body.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)
