"""The report on a game with winners."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from slim_rl.analysis import figures
from slim_rl.analysis.comparison import Column, Compared, Point
from slim_rl.analysis.figures import BLUE, GREY, VERMILLION, WIDTH, with_style
from slim_rl.analysis.titles import title
from slim_rl.evaluation.base_and_trained import MODELS
from slim_rl.evaluation.study import Report, Results
from slim_rl.studies.matches.measures import OUTCOMES, UNFINISHED, Matches, read_matches

_PLAYED = re.compile(r"trained\.([^.]+)\.([^.]+)\.reward")
_SOLVED = "trained.exactly."


def report(results: Results) -> Report:
    matches = read_matches(results)
    drawn = {"learning": _learning_figure(matches)}
    if matches.followed:
        drawn["training"] = figures.training_figure(matches.curves, matches.followed, "a game")
    if matches.solved:
        drawn["exactly"] = _exact_figure(matches.exactly)
    return Report(
        question=f"Does training make a better player of {results.game.name}?",
        verdict=matches.verdict,
        figures=drawn,
        tables=matches.tables,
        metrics=matches.metrics,
        templates=Path(__file__).parent,
        values={"matches": matches, "players": (*MODELS, *matches.rules), "outcomes": (*OUTCOMES, UNFINISHED)},
    )


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    """Rewards against each opponent from each seat, and exact solutions."""
    names = list(dict.fromkeys(name for run in metrics for name in run))
    columns, points = [], []
    for opponent, seat in (match.groups() for match in map(_PLAYED.fullmatch, names) if match):
        label, place = f"against {title(opponent).lower()} as {seat}", f"{opponent}.{seat}."
        points.append(Point(label, f"base.{place}reward", f"trained.{place}reward"))
        columns += [
            Column(f"Reward {label}: base", f"base.{place}reward"),
            Column(f"Reward {label}: trained", f"trained.{place}reward"),
            Column(f"Reward {label}: difference", f"comparison.{place}reward_difference", "+.3f"),
        ]
    for name in (name.removeprefix(_SOLVED) for name in names if name.startswith(_SOLVED)):
        label = name.replace("_", " ").capitalize()
        columns += [Column(f"{label}: base", f"base.exactly.{name}"), Column(f"{label}: trained", _SOLVED + name)]
    return Compared(columns, points)


@with_style
def _learning_figure(matches: Matches) -> Figure:
    """Reward against every opponent over training, by seat, and that of rules."""
    opponents, table = matches.opponents, matches.learning
    figure = Figure((WIDTH, 0.8 + 2 * len(opponents)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(opponents), 1, sharex=True))
    for axes, opponent in zip(panels, opponents, strict=True):
        for seat, colour, line in zip(matches.seats, (BLUE, VERMILLION), ("-", "--"), strict=False):
            rows = table[(table["opponent"] == opponent) & (table["seat"] == seat)]
            figures.curve(axes, rows, "reward", seat, colour, line)
            for rule, (_, style) in zip(matches.rules, figures.LINES[2:], strict=False):
                if len(matches.rows(rule, opponent, seat)):
                    earned = matches.reward(rule, opponent, seat).mean
                    axes.axhline(earned, color=colour, linestyle=style, linewidth=1, label=title(rule).lower())
        axes.set(ylabel=f"reward against\n{title(opponent).lower()}")
    axes.set(xlabel="training step")
    figures.whole_numbers(axes)
    figures.legend(panels[0], 2)
    return figure


@with_style
def _exact_figure(exactly: pd.DataFrame) -> Figure:
    """What was computed of the policy, over training."""
    figure = Figure((WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    names = [name for name in exactly if name not in ("player", "step", "other")]
    for name, (colour, line), marker in zip(names, figures.LINES, "os^Dv", strict=False):
        axes.plot(exactly["step"], exactly[name], marker, ls=line, color=colour, label=name.replace("_", " of the "))
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set(xlabel="training step", ylabel="a game, in the game's units")
    figures.whole_numbers(axes)
    figures.legend(axes, 2)
    return figure
