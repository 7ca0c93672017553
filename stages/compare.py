"""All experiments that DVC has on one page, reports/comparison.html: `make compare`. Not a stage of dvc.yaml."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import dvc.api
import pandas as pd
from dvc.exceptions import DvcException

from slim_rl.analysis.comparison import Compared, Run, differences, draw, draw_curves, grouped, render
from slim_rl.analysis.figures import save
from slim_rl.config import PATH, RUN, Config
from slim_rl.core.errors import UserError
from slim_rl.games import file_name
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.files import write_text
from slim_rl.studies import load_study

REPORTS = Path("reports")


def main() -> None:
    rows = [row for row in dvc.api.exp_show() if row["Experiment"] and row["State"] != "Running"]
    found = [run for row in rows for run in runs(row)]
    if not found:
        raise UserError(
            "The commit that is checked out has no finished experiments; `make seeds` and `make controls` run some."
        )
    groups = grouped(found, compared)
    figures, curves = REPORTS / "figures", {}
    save(draw(groups), figures, "runs")
    for number, (figure, shown) in enumerate(draw_curves(groups)):
        save(figure, figures, f"runs-{number}")
        curves[f"runs-{number}"] = shown
    write_text(REPORTS / "comparison.html", render(groups, figures / "runs.svg", curves))
    print(f"Compared {', '.join(run.name for run in found)}: {REPORTS / 'comparison.html'}")


def compared(study: str, metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return getattr(load_study(study, "reporting"), "compared", differences)(metrics)


def runs(row: Mapping[str, Any]) -> Iterator[Run]:
    """The games of a row of DVC's table, in which metrics and parameters stand side by side.

    What only other rows have comes from DVC as None, the word or the value.
    """
    # DVC puts the file before the names that params.yaml and run.yaml both have; run.yaml is what the run read.
    known = {
        name.removeprefix(f"{RUN}:"): value
        for name, value in row.items()
        if value not in (None, "None") and not name.startswith(f"{PATH}:")
    }
    sections = tuple(f"{name}." for name in Config.model_fields)
    of_config = {n: v for n, v in known.items() if n in Config.model_fields or n.startswith(sections)}
    metrics = {name: value for name, value in known.items() if name not in of_config}
    for name, study in metrics.items():
        if name == "study" or name.endswith(".study"):
            place = name.removesuffix("study")  # "" with one game, "GAME." with several
            mine = {n.removeprefix(place): v for n, v in metrics.items() if n.startswith(place)}
            folder = Path("reports/data") / (file_name(mine["game"]) if place else "")
            yield Run(row["Experiment"], mine["game"], study, mine, of_config, partial(_table, row, folder))


def _table(row: Mapping[str, Any], folder: Path, name: str) -> pd.DataFrame | None:
    """A table of an experiment's report; None if DVC's cache does not have it."""
    try:
        return pd.read_csv(StringIO(dvc.api.read(str(folder / f"{name}.csv"), rev=row["rev"])))
    except (DvcException, OSError):
        return None


if __name__ == "__main__":
    run_stage(main, __doc__)
