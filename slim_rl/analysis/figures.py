"""The report's figures, at the size they have in print; colours after Okabe and Ito, never colour alone."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from slim_rl.analysis.intervention import FORBIDDEN, FREE, MODELS, Intervention
from slim_rl.analysis.matches import Matches, name_of
from slim_rl.analysis.measures import KIND_COLUMNS, Sample, title
from slim_rl.analysis.statistics import Estimate
from slim_rl.files import write_whole

BLUE, VERMILLION, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#595959"
PURPLE, YELLOW, SKY = "#cc79a7", "#e69f00", "#56b4e9"
INK, PAPER, LINE = "#1a1a1a", "#ffffff", "#d0d0d0"
THEME = {
    INK: "ink", PAPER: "paper", GREY: "soft", LINE: "line", BLUE: "blue", VERMILLION: "vermillion", GREEN: "green",
    PURPLE: "purple", YELLOW: "yellow", SKY: "sky",
}  # fmt: skip
"""Colours of a figure by the names that a page gives them, so that it can choose lighter ones in the dark."""
MIN_EPISODES = 10
"""A mean of fewer is not drawn."""
_WIDTH = 4.8  # inches: a column of print, and legible on a phone
_PLAYERS = {"base": (VERMILLION, "o"), "trained": (BLUE, "s"), "bayes": (GREEN, "D"), "humans": (BLUE, "s")}
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
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"),
        INK,
    ),
    "svg.hashsalt": "slim_rl",  # the same figure is the same file
}


@matplotlib.rc_context(_STYLE)
def training_figure(curves: pd.DataFrame, lines: Mapping[str, Estimate]) -> Figure:
    """Reward and questions over training, with 95% bands.

    Args:
        curves: of `step_estimates`.
        lines: rewards that do not change with training, by name.
    """
    figure = Figure((_WIDTH, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _curve(above, curves, "oracle_given_information", "oracle given information", GREEN, "--")
    _curve(above, curves, "reward", "reward", BLUE, "-")
    for (name, reward), style in zip(lines.items(), (":", "-.", (0, (1, 3))), strict=False):
        above.axhline(reward.mean, color=GREY, linestyle=style, linewidth=1, label=name)
    above.set(ylabel="reward")
    _curve(below, curves, "questions", "all questions", VERMILLION, "--")
    _curve(below, curves, "useful_questions", "useful questions", BLUE, "-")
    below.set(xlabel="training step", ylabel="questions a game", ylim=(0, None))
    _whole_numbers(below)
    for axes in (above, below):
        _legend(axes, 2)
    return figure


def _curve(axes, curves: pd.DataFrame, column: str, label: str, colour: str, line: str) -> None:
    axes.plot(curves["step"], curves[column], color=colour, linestyle=line, label=label)
    low, high = curves[f"{column}_low"], curves[f"{column}_high"]
    axes.fill_between(curves["step"], low, high, color=colour, alpha=0.2, linewidth=0)


@matplotlib.rc_context(_STYLE)
def intervention_figure(found: Intervention) -> Figure:
    """Reward after k forced questions, and of free play at the number of questions that it asks."""
    figure = Figure((_WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for offset, model in zip((-0.06, 0.06), MODELS, strict=True):
        colour, marker = _PLAYERS[model]
        forced = [found.reward(model, f"forced-{k}") for k in found.forced]
        style = dict(color=colour, linewidth=1)
        places = [k + offset for k in found.forced]
        _intervals(
            axes.errorbar, places, forced, fmt=f"{marker}-", label=f"{title(model)}: k forced", **style
        )
        free = found.asked(model, FREE).mean
        _intervals(
            axes.errorbar, [free], [found.reward(model, FREE)],
            fmt="*", markersize=9, label=f"{title(model)}: free", **style,
        )  # fmt: skip
        _intervals(
            axes.errorbar, [-1.2 + 2 * offset], [found.reward(model, FORBIDDEN)],
            fmt=marker, markerfacecolor=PAPER, label=f"{title(model)}: forbidden", **style,
        )  # fmt: skip
    most = max([*found.forced, *(math.ceil(found.asked(model, FREE).mean) for model in MODELS)])
    axes.set_xticks([-1.2, *range(most + 1)], ["forbidden", *map(str, range(most + 1))])
    axes.set(xlabel="questions in the game", ylabel="reward")
    _legend(axes, 2)
    return figure


@matplotlib.rc_context(_STYLE)
def kinds_figure(curves: pd.DataFrame) -> Figure:
    """Questions a game by kind, and what became of them, over training."""
    figure = Figure((_WIDTH, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    layers = above.stackplot(
        curves["step"], *(curves[name] for name in KIND_COLUMNS),
        labels=[name.removeprefix("kind_") for name in KIND_COLUMNS],
        colors=(BLUE, SKY, GREEN, YELLOW, VERMILLION, PURPLE), edgecolor=INK, linewidth=0.3,
    )  # fmt: skip
    for layer, hatch in zip(layers, ("", "//", "..", "\\\\", "xx", "--"), strict=True):
        layer.set_hatch(hatch)
    above.set(ylabel="questions a game", ylim=(0, None))
    for name, label, colour, line in (
        ("useful_questions", "useful", BLUE, "-"),
        ("answered_with_number", "answered with a number", GREEN, "--"),
        ("unanswerable", "unanswerable", VERMILLION, "-."),
        ("repeated", "repeated", PURPLE, ":"),
        ("known", "about something known", GREY, (0, (1, 3))),
    ):
        _curve(below, curves, name, label, colour, line)
    below.set(xlabel="training step", ylabel="questions a game", ylim=(0, None))
    _whole_numbers(below)
    _legend(above, 3)
    _legend(below, 2)
    return figure


@matplotlib.rc_context(_STYLE)
def dose_figure(doses: Mapping[str, Mapping[str, pd.DataFrame]]) -> Figure:
    """Reward by the number of useful questions, and how many episodes there are of each.

    Args:
        doses: by model and column, of `dose_response`.
    """
    figure = Figure((_WIDTH, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for offset, (model, by_column) in zip((-0.12, 0.12), doses.items(), strict=True):
        colour, marker = _PLAYERS[model]
        for column, name in (("oracle_given_information", "oracle given information"), ("reward", "reward")):
            curve = by_column[column]
            points = [
                Estimate(row.mean, row.low, row.high, 0, 0)
                for row in curve.itertuples(index=False, name="Dose")
            ]
            _intervals(
                above.errorbar,
                [dose + offset for dose in curve["useful_questions"]],
                points,
                fmt=marker + ("-" if column == "reward" else ":"),
                color=colour,
                markerfacecolor=colour if column == "reward" else PAPER,
                linewidth=1,
                label=f"{title(model)}: {name}",
            )
        below.bar(curve["useful_questions"] + 1.6 * offset, curve["episodes"], 0.36, color=colour)
    above.set(ylabel="reward")
    _legend(above, 1)
    below.set(xlabel="useful questions in the game", ylabel="episodes")
    _whole_numbers(below)
    return figure


def _whole_numbers(axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(axes, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


@matplotlib.rc_context(_STYLE)
def players_figure(players: Mapping[str, Sample]) -> Figure:
    """Everybody's reward on the same boards, best at the top; hollow: a model's oracle given information."""
    ranked = sorted(players, key=lambda player: players[player].estimates["reward"].mean)
    figure = Figure((_WIDTH, 0.9 + 0.27 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    for y, player in enumerate(ranked):
        colour, marker = _PLAYERS.get(player, (GREY, "o"))
        reward = players[player].estimates["reward"]
        if player in ("base", "trained"):
            oracle = players[player].estimates["oracle_given_information"]
            axes.plot([reward.mean, oracle.mean], [y, y], color=colour, linewidth=0.8, linestyle=":")
            _intervals(axes.errorbar, [y], [oracle], True, fmt=marker, color=colour, markerfacecolor=PAPER)
        _intervals(axes.errorbar, [y], [reward], True, fmt=marker, color=colour)
        axes.annotate(
            f"{reward.mean:.3f}",
            (1.01, y),
            xycoords=("axes fraction", "data"),
            verticalalignment="center",
            color=colour,
        )
    axes.set_yticks(range(len(ranked)), [title(player) for player in ranked])
    axes.set(xlabel="reward", ylim=(-0.6, len(ranked) - 0.4))
    axes.grid(axis="y", linewidth=0.4, color=LINE)
    axes.set_axisbelow(True)
    return figure


@matplotlib.rc_context(_STYLE)
def runs_figure(runs: Sequence[tuple[str, Estimate, Estimate, float | None]]) -> Figure:
    """Of every run its name, reward of base and trained model, and that of the no-question player."""
    figure = Figure((_WIDTH, 0.9 + 0.27 * len(runs)), layout="constrained")
    axes = figure.subplots()
    for y, (_, base, trained, unasked) in enumerate(reversed(runs)):
        if unasked is not None:
            axes.plot([unasked], [y], "D", color=GREEN)
        _intervals(axes.errorbar, [y], [base], True, fmt="o", color=VERMILLION, markerfacecolor=PAPER)
        _intervals(axes.errorbar, [y], [trained], True, fmt="s", color=BLUE)
    axes.set_yticks(range(len(runs)), [name for name, *_ in reversed(runs)])
    axes.set(xlabel="reward", ylim=(-0.6, len(runs) - 0.4))
    axes.grid(axis="y", linewidth=0.4, color=LINE)
    axes.set_axisbelow(True)
    return figure


@matplotlib.rc_context(_STYLE)
def learning_figure(found: Matches) -> Figure:
    """Reward against every opponent that needs no model, over training, by seat."""
    opponents, table = found.opponents, found.learning
    figure = Figure((_WIDTH, 0.8 + 2 * len(opponents)), layout="constrained")
    for axes, opponent in zip(
        np.atleast_1d(figure.subplots(len(opponents), 1, sharex=True)), opponents, strict=True
    ):
        for seat, colour, line in zip(found.seats, (BLUE, VERMILLION), ("-", "--"), strict=True):
            _curve(
                axes,
                table[(table["opponent"] == opponent) & (table["seat"] == seat)],
                "reward",
                seat,
                colour,
                line,
            )
        axes.set(ylabel=f"reward against\n{name_of(opponent).lower()}")
    axes.set(xlabel="training step")
    _whole_numbers(axes)
    _legend(figure.axes[0], 2)
    return figure


@matplotlib.rc_context(_STYLE)
def exploitability_figure(exactly: pd.DataFrame) -> Figure:
    """What the best answers win from the policy, and what the first seat wins, by computation."""
    figure = Figure((_WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, colour, line in (("exploitability", BLUE, "o-"), ("value_first", VERMILLION, "s--")):
        axes.plot(exactly["step"], exactly[name], line, color=colour, label=name.replace("_", " of the "))
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set(xlabel="training step", ylabel="a game, in the game's units")
    _whole_numbers(axes)
    _legend(axes, 2)
    return figure


@matplotlib.rc_context(_STYLE)
def rollouts_figure(curves: pd.DataFrame, columns: Mapping[str, str]) -> Figure:
    """What was seen in the games that were trained on; `columns` and what to call each."""
    figure = Figure((_WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    styles = zip((BLUE, VERMILLION, GREEN, PURPLE, GREY), ("-", "--", "-.", ":", (0, (1, 3))), strict=True)
    for (column, label), (colour, line) in zip(columns.items(), styles, strict=False):
        _curve(axes, curves, column, label, colour, line)
    axes.set(xlabel="training step", ylabel="a game")
    _whole_numbers(axes)
    _legend(axes, 2)
    return figure


@matplotlib.rc_context(_STYLE)
def seeds_figure(name: str, runs: Mapping[str, Sequence[pd.DataFrame]]) -> Figure:
    """Several seeds of several variants, a thin line a seed: `learning` or `exactly` of `Matches.tables`, or
    `training`, the matching game's curves."""
    columns = {
        "exactly": {"exploitability": "exploitability", "value_first": "value, first seat"},
        "training": {"reward": "reward", "useful_questions": "useful questions\na game"},
    }
    if name in columns:
        panels = [(column, lambda t: t, label) for column, label in columns[name].items()]
    else:
        one = next(iter(runs.values()))[0]
        pairs = one[["opponent", "seat"]].drop_duplicates().itertuples(index=False)
        panels = [
            (
                "reward",
                lambda t, o=o, s=s: t[(t["opponent"] == o) & (t["seat"] == s)],
                f"reward, {s},\n{name_of(o).lower()}",
            )
            for o, s in pairs
        ]
    figure = Figure((_WIDTH, 0.6 + 1.5 * len(panels)), layout="constrained")
    for axes, (column, chosen, label) in zip(
        figure.subplots(len(panels), 1, sharex=True), panels, strict=True
    ):
        for (variant, tables), colour, line in zip(
            runs.items(), (BLUE, VERMILLION), ("-", "--"), strict=False
        ):
            for number, table in enumerate(tables):
                rows = chosen(table)
                axes.plot(
                    rows["step"],
                    rows[column],
                    line,
                    color=colour,
                    linewidth=1,
                    label="" if number else variant,
                )
        axes.set(ylabel=label)
    axes.set(xlabel="training step")
    _whole_numbers(axes)
    _legend(figure.axes[0], 2)
    return figure


def _intervals(errorbar, places: list, points: list[Estimate], along_x: bool = False, **style) -> None:
    """Draw means with their intervals at `places` on the other axis."""
    means = np.array([p.mean for p in points])
    reach = np.abs(np.array([[p.low, p.high] for p in points]).reshape(-1, 2).T - means)
    x, y = (means, places) if along_x else (places, means)
    errorbar(x, y, **{"xerr" if along_x else "yerr": reach}, elinewidth=1, **style)


@matplotlib.rc_context(_STYLE)
def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `figure` to `folder` as SVG and PNG, without a date in either."""
    write_whole(
        folder / f"{name}.svg",
        lambda part: figure.savefig(part, format="svg", metadata={"Date": None, "Creator": None}),
    )
    write_whole(
        folder / f"{name}.png",
        lambda part: figure.savefig(part, format="png", dpi=300, metadata={"Software": None}),
    )


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
