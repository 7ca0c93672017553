"""The figures of the study's report."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis import figures
from slim_rl.analysis.figures import BLUE, GREEN, GREY, VERMILLION, WIDTH, curve, legend, with_style
from slim_rl.studies.asking.findings import VARIED
from slim_rl.studies.asking.measures import Sample, title

_PLAYERS = figures.MODELS | {"optimal": (GREEN, "D", "-.")}
_LINES = {"optimal": "-.", "base-asks-on": "--", "bayes": ":"}
"""References in the training figure: those that a policy should reach, beat and leave behind."""


@with_style
def training_figure(curves: pd.DataFrame, players: Mapping[str, Sample]) -> Figure:
    """Reward and questions over training, with 95% bands.

    Args:
        curves: of `step_estimates`.
        players: on held-out boards; some are drawn as lines.
    """
    figure = Figure((WIDTH, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    curve(above, curves, "reward", "in training", BLUE, "-")
    curve(below, curves, "question_count", "questions", VERMILLION, "--")
    curve(below, curves, "useful_cells", "useful ones", BLUE, "-")
    for name, style in _LINES.items():
        if name in players:
            colour = GREEN if name == "optimal" else GREY
            line: dict[str, Any] = dict(color=colour, linestyle=style, linewidth=1)
            above.axhline(players[name].estimates["reward"].mean, label=title(name), **line)
            if name == "optimal":
                below.axhline(players[name].estimates["question_count"].mean, label=title(name), **line)
    above.set(ylabel="reward")
    below.set(xlabel="training step", ylabel="a game", ylim=(0, None))
    figures.whole_numbers(below)
    for axes in (above, below):
        legend(axes, 2)
    return figure


@with_style
def follows_figure(follows: pd.DataFrame) -> Figure:
    """Questions against what varies from game to game, for each player; a panel for each of what varies."""
    varied = list(dict.fromkeys(follows["varied"]))
    figure = Figure((WIDTH, 0.6 + 2.2 * len(varied)), layout="constrained")
    panels = figure.subplots(len(varied), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, varied, strict=True):
        for player, style in _PLAYERS.items():
            rows = follows[(follows["varied"] == name) & (follows["player"] == player)]
            if len(rows):
                figures.points(axes, rows, "at", "question_count", title(player), style)
        axes.set(xlabel=VARIED[name], ylabel="questions a game", ylim=(0, None))
        figures.whole_numbers(axes)
    legend(panels[0], 2)
    return figure
