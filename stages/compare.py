"""All experiments that DVC has on one page, reports/comparison.html: `make compare`. Not a stage of dvc.yaml."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import dvc.api
import pandas as pd
import yaml
from dvc.exceptions import DvcException
from dvc.scm import SCMError

from slim_rl.analysis.comparison import Compared, Run, differences, grouped, render
from slim_rl.config import RUN
from slim_rl.core.errors import UserError
from slim_rl.core.parameters import flat
from slim_rl.games import file_name
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.files import write_text
from slim_rl.studies import load_study

REPORTS = Path("reports")


def main() -> None:
    try:
        experiments = dvc.api.exp_show()
    except SCMError:
        raise UserError(
            f"{Path.cwd()} is no git repository in which DVC keeps experiments; in a folder that `slim-rl init` made, "
            "`git init` and `dvc config core.no_scm false` make it one."
        ) from None
    rows = [row for row in experiments if row["Experiment"] and row["State"] != "Running"]
    every_run = [
        run for row in rows for run in runs(row["Experiment"], partial(_read, dvc.api.DVCFileSystem(rev=row["rev"])))
    ]
    if not every_run:
        raise UserError(
            "The commit that is checked out has no finished experiments; `slim-rl run --experiment NAME` runs one, "
            "`make seeds` and `make controls` several."
        )
    groups = grouped(every_run, compared)
    write_text(REPORTS / "comparison.html", render(groups, REPORTS / "comparison"))
    print(f"Compared {', '.join(run.name for run in every_run)}: {REPORTS / 'comparison.html'}")


def compared(study: str, metrics: Sequence[Mapping[str, Any]]) -> Compared:
    return getattr(load_study(study, "reporting"), "compared", differences)(metrics)


def runs(experiment: str, read: Callable[[Path], str | None]) -> Iterator[Run]:
    """The games of an experiment; none if it has no report.

    Args:
        read: the text of a file of the experiment; None if it is not at hand.
    """
    metrics, parameters = read(REPORTS / "metrics.json"), read(RUN)
    if metrics is None or parameters is None:
        return
    whole, settings = json.loads(metrics), dict(flat(yaml.safe_load(parameters)))
    for name, game in [("", whole)] if "study" in whole else whole.items():
        if name != "bills":
            folder = REPORTS / "data" / (file_name(name) if name else "")
            own = dict(flat(game))
            yield Run(experiment, own["game"], own["study"], own, settings, partial(_table, read, folder))


def _table(read: Callable[[Path], str | None], folder: Path, name: str) -> pd.DataFrame | None:
    text = read(folder / f"{name}.csv")
    return None if text is None else pd.read_csv(StringIO(text))


def _read(files: dvc.api.DVCFileSystem, path: Path) -> str | None:
    try:
        return files.read_text(path.as_posix(), encoding="utf-8")
    except (DvcException, OSError):
        return None


if __name__ == "__main__":
    run_stage(main, __doc__)
