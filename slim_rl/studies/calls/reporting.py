"""The report on calls."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slim_rl.analysis.comparison import Compared, Point, differences
from slim_rl.analysis.dialogues import of_models
from slim_rl.analysis.figures import training_figure
from slim_rl.analysis.page import MAX_POINTS, thinned
from slim_rl.studies.calls.measures import MODELS, read_calls
from slim_rl.studies.study import Found, Report


def report(found: Found) -> Report:
    calls = read_calls(found)
    figures = {}
    if len(calls.training):
        curves, names = thinned(calls.curves, MAX_POINTS), {"calls": "calls", "reward": "reward"}
        figures["training"] = training_figure(curves, names, "mean over an episode")
    base, trained = (calls.episodes[model] for model in MODELS)
    dialogues = of_models(base, trained, calls.training, lambda row: f"{row.calls:.0f} calls")
    values = {"found": calls, "models": MODELS, "parameters": found.parameters, "dialogues": dialogues}
    question, templates = f"Does the policy learn to call its tools in {found.game.name}?", Path(__file__).parent
    return Report(question, calls.verdict, figures, calls.tables, calls.metrics, templates, values)


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return Compared(differences({"calls": "Calls", "reward": "Reward"}), [Point("", "base.calls", "trained.calls")])
