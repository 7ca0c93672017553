"""The report on calls."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from slim_rl.analysis.comparison import Column, Compared, Point
from slim_rl.analysis.dialogues import Shown, choose, to_json
from slim_rl.analysis.figures import training_figure
from slim_rl.analysis.page import MAX_POINTS, thinned
from slim_rl.studies.calls.measures import MODELS, Calls, read_calls
from slim_rl.studies.study import Found, Report


def report(found: Found) -> Report:
    calls = read_calls(found)
    figures = {}
    if len(calls.training):
        curves, names = thinned(calls.curves, MAX_POINTS), {"calls": "calls", "reward": "reward"}
        figures["training"] = training_figure(curves, names, "mean over an episode")
    values = {"found": calls, "models": MODELS, "parameters": found.parameters, "dialogues": _dialogues(calls)}
    question, templates = f"Does the policy learn to call its tools in {found.game.name}?", Path(__file__).parent
    return Report(question, calls.verdict, figures, calls.tables, calls.metrics, templates, values)


def compared(metrics: Sequence[Mapping[str, Any]]) -> Compared:
    """Calls and rewards."""
    columns = []
    for metric, name in (("calls", "Calls"), ("reward", "Reward")):
        columns += [Column(f"{name}, base", f"base.{metric}"), Column("trained", f"trained.{metric}")]
        columns += [Column("difference", f"comparison.{metric}_difference", "+.3f")]
    return Compared(columns, [Point("", "base.calls", "trained.calls")])


def _dialogues(found: Calls) -> Markup:
    base, trained = (found.episodes[model] for model in MODELS)
    shown = []
    for player, row in choose(base, trained, found.training):
        label = f"{row.calls:.0f} calls"
        shown.append(Shown(player, Path(row.shard), row.episode_id, row.reward, label, f"{label}."))
    return to_json(shown)
