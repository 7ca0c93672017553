"""The report's figures, at the size they have in print; colours after Okabe and Ito, never colour alone."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis.measures import Sample, title
from slim_rl.analysis.statistics import Estimate, estimate
from slim_rl.rollout.store import write_whole

BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#595959"
WINDOW = 5
"""Training steps pooled for one point of a curve, itself in the middle."""
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
    "svg.hashsalt": "slim_rl",  # the same figure is the same file
}


@matplotlib.rc_context(_STYLE)
def training_figure(training: pd.DataFrame, unasked: Estimate) -> Figure:
    """Reward and questions over training, with 95% bands; `unasked` is the no-question player's reward."""
    figure = Figure((_WIDTH, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _curve(above, training, "oracle_given_information", "oracle given information", GREEN, "--")
    _curve(above, training, "reward", "reward", BLUE, "-")
    above.axhline(unasked.mean, color=GREY, linestyle=":", label="no-question Bayes")
    above.set(ylabel="reward")
    _curve(below, training, "questions", "all questions", VERMILLION, "--")
    _curve(below, training, "useful_questions", "useful questions", BLUE, "-")
    below.set(xlabel="training step", ylabel="questions a game", ylim=(0, None))
    below.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, below):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure


def _curve(axes, episodes: pd.DataFrame, column: str, label: str, colour: str, line: str) -> None:
    steps = np.sort(episodes["step"].unique())
    pooled = [episodes[(episodes["step"] - step).abs() <= WINDOW // 2] for step in steps]
    points = [estimate(rows, column) for rows in pooled]
    axes.plot(steps, [p.mean for p in points], color=colour, linestyle=line, label=label)
    axes.fill_between(
        steps, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.2, linewidth=0
    )


@matplotlib.rc_context(_STYLE)
def questions_figure(base: pd.DataFrame, trained: pd.DataFrame) -> Figure:
    """Reward by the number of useful questions, and how many episodes there are of each."""
    figure = Figure((_WIDTH, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for offset, player, episodes in ((-0.12, "base", base), (0.12, "trained", trained)):
        colour, marker = _PLAYERS[player]
        groups = dict(iter(episodes.groupby("useful_questions")))
        shown = {asked: rows for asked, rows in groups.items() if len(rows) >= MIN_EPISODES}
        for column, name, filled in (
            ("oracle_given_information", "oracle given information", "none"),
            ("reward", "reward", colour),
        ):
            _intervals(
                above.errorbar,
                [asked + offset for asked in shown],
                [estimate(rows, column) for rows in shown.values()],
                fmt=marker + ("-" if column == "reward" else ":"),
                color=colour,
                markerfacecolor=filled,
                linewidth=1,
                label=f"{title(player)}: {name}",
            )
        counts = [len(rows) for rows in groups.values()]
        below.bar([asked + 1.6 * offset for asked in groups], counts, 0.36, color=colour)
    above.set(ylabel="reward")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=1, borderaxespad=0.2)
    below.set(xlabel="useful questions in the game", ylabel="episodes")
    below.xaxis.get_major_locator().set_params(integer=True)
    return figure


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
            _intervals(axes.errorbar, [y], [oracle], True, fmt=marker, color=colour, markerfacecolor="white")
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
    axes.grid(axis="y", linewidth=0.4, color="#D0D0D0")
    axes.set_axisbelow(True)
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
        lambda part: figure.savefig(part, format="png", dpi=200, metadata={"Software": None}),
    )
