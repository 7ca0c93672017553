"""The findings for people: figures, one HTML page that needs no other file, and a short version in Markdown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from slim_rl.analysis import figures, matches, statistics, verdict
from slim_rl.analysis.findings import CURVES, NAMES, Findings, kind_rows, tables
from slim_rl.analysis.intervention import FORBIDDEN, FREE, MODELS
from slim_rl.analysis.matches import Matches, name_of
from slim_rl.analysis.measures import KIND_COLUMNS, MEASURES, TALK_MEASURES, title
from slim_rl.analysis.selfplay import MEASURES as SEAT_MEASURES
from slim_rl.analysis.selfplay import PAIRINGS
from slim_rl.analysis.shyness import KINDS
from slim_rl.config import MatchingConfig

QUESTION = "Does a language model learn to ask questions when only asking pays?"
_NONE = "\u2013"
MAX_ROWS = 40
"""Of a table beside a figure; the CSV has them all."""
MAX_POINTS = 400
"""Of a curve: more cannot be told apart on the page, and each weighs."""


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from."""

    parameters: Mapping[str, Any]
    """By dotted name."""
    commit: str
    hashes: Mapping[str, str]
    """DVC's, of the data and models behind the report, by path."""


def draw(findings: Findings) -> dict[str, Figure]:
    """The figures by file name."""
    curves = _thinned(findings.curves, MAX_POINTS)
    drawn = {
        "training": figures.training_figure(curves, findings.lines),
        "held-out": figures.players_figure(findings.held_out),
        "human-boards": figures.players_figure(findings.human_boards),
        "kinds": figures.kinds_figure(curves),
        "questions": figures.dose_figure(findings.doses),
    }
    if findings.intervention:
        drawn["intervention"] = figures.intervention_figure(findings.intervention)
    return drawn


def render(
    template: str,
    findings: Findings,
    figure_folder: Path,
    board: MatchingConfig,
    provenance: Provenance,
    dialogues: str = "",
) -> str:
    """`report.html.j2` or `report.md.j2`, filled in.

    Args:
        figure_folder: holds the figures of `draw` as SVG.
        dialogues: of `slim_rl.analysis.dialogues.to_json`.
    """

    return _filled(
        template,
        figure_folder,
        question=QUESTION,
        findings=findings,
        verdict=findings.verdict,
        tables={name: _thinned(table) for name, table in tables(findings).items()},
        measures=MEASURES,
        talk_measures=TALK_MEASURES,
        kinds=KIND_COLUMNS,
        kind_rows=kind_rows(findings),
        curves=CURVES,
        models=MODELS,
        free=FREE,
        forbidden=FORBIDDEN,
        names=NAMES,
        title=title,
        shy_kinds=KINDS,
        pairings=PAIRINGS,
        seat_measures=SEAT_MEASURES,
        dialogues=Markup(dialogues),
        board=board,
        provenance=provenance,
        steps=findings.training.episodes["step"].nunique(),
        window=statistics.WINDOW,
        min_episodes=figures.MIN_EPISODES,
        min_games=verdict.MIN_GAMES,
        resamples=statistics.RESAMPLES,
    )


def draw_matches(found: Matches) -> dict[str, Figure]:
    """The figures of a game with winners, by file name."""
    drawn = {
        "learning": figures.learning_figure(found),
        "training": figures.rollouts_figure(_thinned(found.curves, MAX_POINTS), found.followed),
    }
    if found.solved:
        drawn["exploitability"] = figures.exploitability_figure(found.exactly)
    return drawn


def render_matches(
    template: str, found: Matches, game: str, figure_folder: Path, provenance: Provenance
) -> str:
    """`matches.html.j2` or `matches.md.j2`, filled in."""
    return _filled(
        template,
        figure_folder,
        question=f"Does self-play make a better player of {game}?",
        found=found,
        tables={name: _thinned(table) for name, table in found.tables.items()},
        name_of=name_of,
        models=matches.MODELS,
        outcomes=(*matches.OUTCOMES, matches.UNFINISHED),
        provenance=provenance,
        resamples=statistics.RESAMPLES,
        window=statistics.WINDOW,
    )


def _filled(template: str, figure_folder: Path, **values: Any) -> str:
    def picture(name: str, description: str) -> Markup:
        svg = (figure_folder / f"{name}.svg").read_text(encoding="utf-8")
        return Markup(figures.inline(svg, name, description))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "p": _p}
    return environment.get_template(template).render(picture=picture, **values)


def _thinned(table: pd.DataFrame, rows: int = MAX_ROWS) -> pd.DataFrame:
    """A table over training steps with at most so many of its rows; any other whole."""
    every = math.ceil(len(table) / rows)
    return table.iloc[::every] if table.columns[0] == "step" else table


def _number(value: Any, spec: str = ".3f") -> str:
    """A number as text, a dash for none."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return _NONE
    if isinstance(value, int) or (spec == ".3f" and float(value).is_integer() and abs(value) >= 2):
        return f"{int(value):,}"
    return f"{value:{spec}}"


def _p(value: float) -> str:
    if math.isnan(value):
        return _NONE
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
