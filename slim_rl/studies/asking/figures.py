"""The figures of the study's report."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis import figures
from slim_rl.analysis.figures import BLUE, GREEN, GREY, PAPER, VERMILLION, WIDTH, curve, intervals, legend, with_style
from slim_rl.analysis.statistics import Estimate
from slim_rl.studies.asking.intervention import FORBIDDEN, FREE, MODELS, Intervention
from slim_rl.studies.asking.measures import Sample, title

_PLAYERS = {**figures.PLAYERS, "bayes": (GREEN, "D"), "humans": (BLUE, "s")}


@with_style
def training_figure(curves: pd.DataFrame, lines: Mapping[str, Estimate]) -> Figure:
    """Reward and questions over training, with 95% bands.

    Args:
        curves: of `step_estimates`.
        lines: rewards that do not change with training, by name.
    """
    figure = Figure((WIDTH, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    curve(above, curves, "oracle_given_information", "oracle given information", GREEN, "--")
    curve(above, curves, "reward", "reward", BLUE, "-")
    for (name, reward), style in zip(lines.items(), (":", "-.", (0, (1, 3))), strict=False):
        above.axhline(reward.mean, color=GREY, linestyle=style, linewidth=1, label=name)
    above.set(ylabel="reward")
    curve(below, curves, "questions", "all questions", VERMILLION, "--")
    curve(below, curves, "useful_questions", "useful questions", BLUE, "-")
    below.set(xlabel="training step", ylabel="questions a game", ylim=(0, None))
    figures.whole_numbers(below)
    for axes in (above, below):
        legend(axes, 2)
    return figure


@with_style
def uses_figure(curves: pd.DataFrame) -> Figure:
    """What became of the questions over training, with 95% bands."""
    names = {
        "useful_questions": "useful",
        "answered_with_number": "answered with a number",
        "unanswerable": "unanswerable",
        "repeated": "repeated",
        "known": "about something known",
    }
    figure = figures.training_figure(curves, names, "questions a game")
    figure.axes[0].set(ylim=(0, None))
    return figure


@with_style
def intervention_figure(found: Intervention) -> Figure:
    """Reward after k forced questions, and of free play at the number of questions that it asks."""
    figure = Figure((WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for offset, model in zip((-0.06, 0.06), MODELS, strict=True):
        colour, marker = _PLAYERS[model]

        def draw(places: list[float], arms: list[str], label: str, model: str = model, **style: Any) -> None:
            points = [found.reward(model, arm) for arm in arms]
            intervals(axes.errorbar, places, points, label=f"{title(model)}: {label}", linewidth=1, **style)

        forced = [f"forced-{k}" for k in found.forced]
        draw([k + offset for k in found.forced], forced, "k forced", fmt=f"{marker}-", color=colour)
        draw([found.asked(model, FREE).mean], [FREE], "free", fmt="*", markersize=9, color=colour)
        hollow = dict(fmt=marker, markerfacecolor=PAPER, color=colour)
        draw([-1.2 + 2 * offset], [FORBIDDEN], "forbidden", **hollow)
    most = max([*found.forced, *(math.ceil(found.asked(model, FREE).mean) for model in MODELS)])
    axes.set_xticks([-1.2, *range(most + 1)], ["forbidden", *map(str, range(most + 1))])
    axes.set(xlabel="questions in the game", ylabel="reward")
    legend(axes, 2)
    return figure


@with_style
def players_figure(players: Mapping[str, Sample]) -> Figure:
    """Every player's reward on the same boards, best at the top; hollow: a model's oracle given information."""
    ranked = sorted(players, key=lambda player: players[player].estimates["reward"].mean)
    figure, axes = figures.dot_plot([title(player) for player in ranked], "reward")
    for y, player in enumerate(ranked):
        colour, marker = _PLAYERS.get(player, (GREY, "o"))
        reward = players[player].estimates["reward"]
        if player in MODELS:
            oracle = players[player].estimates["oracle_given_information"]
            axes.plot([reward.mean, oracle.mean], [y, y], color=colour, linewidth=0.8, linestyle=":")
            intervals(axes.errorbar, [y], [oracle], True, fmt=marker, color=colour, markerfacecolor=PAPER)
        intervals(axes.errorbar, [y], [reward], True, fmt=marker, color=colour)
        place: dict[str, Any] = dict(xycoords=("axes fraction", "data"), verticalalignment="center")
        axes.annotate(f"{reward.mean:.3f}", (1.01, y), color=colour, **place)
    return figure
