"""The report on tasks that are solved or not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slim_rl.analysis.comparison import Compared, Point, differences
from slim_rl.analysis.dialogues import of_models
from slim_rl.analysis.figures import training_figure
from slim_rl.analysis.page import MAX_POINTS, thinned
from slim_rl.studies.accuracy.measures import MODELS, read_accuracy
from slim_rl.studies.study import Found, Report


def report(found: Found) -> Report:
    accuracy = read_accuracy(found)
    figures = {}
    if len(accuracy.training):
        curves, names = thinned(accuracy.curves, MAX_POINTS), {"passed": "pass rate", "reward": "reward"}
        figures["training"] = training_figure(curves, names, "mean over an episode")
    base, trained = (accuracy.episodes[model] for model in MODELS)
    dialogues = of_models(base, trained, accuracy.training, lambda row: "passed" if row.passed else "not passed")
    values = {"found": accuracy, "models": MODELS, "parameters": found.parameters, "dialogues": dialogues}
    question, templates = f"Does training make the policy better at {found.game.name}?", Path(__file__).parent
    return Report(question, accuracy.verdict, figures, accuracy.tables, accuracy.metrics, templates, values)


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return Compared(
        differences({"pass_rate": "Pass rate", "reward": "Reward"}), [Point("", "base.reward", "trained.reward")]
    )
