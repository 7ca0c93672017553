"""The report on tasks that are solved or not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from slim_rl.analysis.comparison import Column, Compared, Point
from slim_rl.analysis.dialogues import Shown, choose, to_json
from slim_rl.analysis.figures import PLAYERS, WIDTH, intervals, legend, training_figure, with_style
from slim_rl.analysis.page import MAX_POINTS, thinned
from slim_rl.analysis.titles import title
from slim_rl.studies.accuracy.measures import MODELS, Accuracy, read_accuracy
from slim_rl.studies.study import Found, Report


def report(found: Found) -> Report:
    accuracy = read_accuracy(found)
    figures = {"pass-at-k": _pass_figure(accuracy)}
    if len(accuracy.training):
        curves, names = thinned(accuracy.curves, MAX_POINTS), {"passed": "pass rate", "reward": "reward"}
        figures["training"] = training_figure(curves, names, "mean over an episode")
    return Report(
        question=f"Does training make the policy better at {found.game.name}?",
        verdict=accuracy.verdict,
        figures=figures,
        tables=accuracy.tables,
        metrics=accuracy.metrics,
        templates=Path(__file__).parent,
        values={
            "found": accuracy,
            "models": MODELS,
            "parameters": found.parameters,
            "dialogues": _dialogues(accuracy),
        },
    )


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    """Pass rates and rewards."""
    pairs = ("pass_rate", "Pass rate"), ("reward", "Reward")
    columns = [
        column
        for metric, name in pairs
        for column in (
            Column(f"{name}, base", f"base.{metric}"),
            Column("trained", f"trained.{metric}"),
            Column("difference", f"comparison.{metric}_difference", "+.3f"),
        )
    ]
    return Compared(columns, [Point("", "base.reward", "trained.reward")])


@with_style
def _pass_figure(found: Accuracy) -> Figure:
    """pass@k of both models."""
    figure = Figure((WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for model, values in found.pass_at.items():
        colour, marker = PLAYERS[model]
        style = {"fmt": f"{marker}-", "color": colour, "linewidth": 1, "label": title(model)}
        intervals(axes.errorbar, list(values), list(values.values()), **style)
    axes.set_xscale("log", base=2)
    ks = sorted({k for values in found.pass_at.values() for k in values})
    axes.set_xticks(ks, list(map(str, ks)))
    axes.set(xlabel="k", ylabel="pass@k", ylim=(-0.05, 1.05))
    legend(axes, 2)
    return figure


def _dialogues(found: Accuracy) -> str:
    chosen = choose(*(found.episodes[model] for model in MODELS), found.training)
    shown = []
    for player, row in chosen:
        label = "passed" if row.passed else "not passed"
        shown.append(Shown(player, Path(row.shard), row.episode_id, row.reward, label, f"{label}."))
    return to_json(shown)
