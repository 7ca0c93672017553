"""Pages that need no other file: what all reports have in common, and how a study's templates are filled in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from slim_rl.analysis import figures, statistics
from slim_rl.analysis.titles import title

MAX_ROWS = 40
"""Rows shown of a table over training; the CSV has all of them."""
_TEMPLATES = Path(__file__).parent / "templates"
_NONE = "\u2013"


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from."""

    parameters: Mapping[str, Any]
    """By dotted name."""
    commit: str
    hashes: Mapping[str, str]
    """DVC's, of the data and models behind the report, by path."""
    bills: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Calls to paid services, by service and stage."""
    training_time: str = ""


def template(name: str, figure_folder: Path, *folders: Path) -> Template:
    """A template from `folders` or from those that all pages share.

    `picture(name, description)` in it is a figure saved in `figure_folder` as SVG.
    """

    def picture(name: str, description: str) -> Markup:
        svg = (figure_folder / f"{name}.svg").read_text(encoding="utf-8")
        return Markup(figures.inline(svg, name, description))

    environment = Environment(
        loader=FileSystemLoader([*folders, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.globals |= {
        "picture": picture,
        "title": title,
        "resamples": statistics.RESAMPLES,
        "window": statistics.WINDOW,
    }
    return environment.get_template(name)


def render(
    templates: Path | None,
    figure_folder: Path,
    tables: Mapping[str, pd.DataFrame],
    provenance: Provenance,
    **values: Any,
) -> str:
    """The page of a study: `report.html.j2` of `templates`, or else `study.html.j2`.

    Args:
        figure_folder: holds the report's figures as SVG.
        values: `question`, `verdict`, `data_path` (from the repository), and what the study's template uses.
    """
    shortened = {name: figures.thinned(table, MAX_ROWS) for name, table in tables.items()}
    name, folders = ("report.html.j2", [templates]) if templates else ("study.html.j2", [])
    return template(name, figure_folder, *folders).render(tables=shortened, provenance=provenance, **values)


def plain(value: Any) -> Any:
    """`value` for JSON: keys in order, numbers rounded to 6 digits, None where there is none."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in sorted(value.items())}
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def number(value: Any, spec: str = ".3f") -> str:
    """A number as text, a dash for none."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return _NONE
    if isinstance(value, int) or (spec == ".3f" and float(value).is_integer() and abs(value) >= 2):
        return f"{int(value):,}"
    return f"{value:{spec}}"
