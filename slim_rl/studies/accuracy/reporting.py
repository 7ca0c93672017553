"""The report on tasks that are solved or not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from slim_rl.analysis.comparison import Column, Compared, Point
from slim_rl.analysis.dialogues import Shown, choose, to_json
from slim_rl.analysis.figures import training_figure
from slim_rl.analysis.page import MAX_POINTS, thinned
from slim_rl.studies.accuracy.measures import MODELS, Accuracy, read_accuracy
from slim_rl.studies.study import Found, Report


def report(found: Found) -> Report:
    accuracy = read_accuracy(found)
    figures = {}
    if len(accuracy.training):
        curves, names = thinned(accuracy.curves, MAX_POINTS), {"passed": "pass rate", "reward": "reward"}
        figures["training"] = training_figure(curves, names, "mean over an episode")
    values = {"found": accuracy, "models": MODELS, "parameters": found.parameters, "dialogues": _dialogues(accuracy)}
    question, templates = f"Does training make the policy better at {found.game.name}?", Path(__file__).parent
    return Report(question, accuracy.verdict, figures, accuracy.tables, accuracy.metrics, templates, values)


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    """Pass rates and rewards."""
    columns = []
    for metric, name in (("pass_rate", "Pass rate"), ("reward", "Reward")):
        columns += [Column(f"{name}, base", f"base.{metric}"), Column("trained", f"trained.{metric}")]
        columns += [Column("difference", f"comparison.{metric}_difference", "+.3f")]
    return Compared(columns, [Point("", "base.reward", "trained.reward")])


def _dialogues(found: Accuracy) -> Markup:
    base, trained = (found.episodes[model] for model in MODELS)
    shown = []
    for player, row in choose(base, trained, found.training):
        label = "passed" if row.passed else "not passed"
        shown.append(Shown(player, Path(row.shard), row.episode_id, row.reward, label, f"{label}."))
    return to_json(shown)
