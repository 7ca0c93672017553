"""All experiments that DVC has on one page, reports/comparison.html: `make compare`. Not a stage of dvc.yaml."""

from pathlib import Path

import dvc.api

from slim_rl.analysis.comparison import Run, draw, grouped, render
from slim_rl.analysis.figures import save
from slim_rl.config import Config
from slim_rl.errors import UserError, told_in_a_sentence
from slim_rl.files import write_whole

REPORTS = Path("reports")


def main() -> None:
    runs = [run(row) for row in dvc.api.exp_show() if row["Experiment"] and row["State"] != "Running"]
    runs = [run for run in runs if run.metrics.get("verdict")]
    if not runs:
        raise UserError(
            "There are no finished experiments to compare; `make seeds` and `make trap` run some."
        )
    groups = grouped(runs)
    save(draw(groups), REPORTS / "figures", "runs")
    page = render(groups, REPORTS / "figures/runs.svg")
    write_whole(REPORTS / "comparison.html", lambda part: part.write_text(page, encoding="utf-8"))
    print(f"{REPORTS / 'comparison.html'}: {len(runs)} experiments in {len(groups)} groups")


def run(row: dict) -> Run:
    """One row of DVC's table, in which metrics and parameters stand side by side, those of other games among them."""
    told = {name: value for name, value in row.items() if value not in (None, "None")}
    sections = tuple(f"{name}." for name in Config.model_fields)
    parameters = {
        name: value
        for name, value in told.items()
        if name in Config.model_fields or name.startswith(sections)
    }
    return Run(row["Experiment"], {n: v for n, v in told.items() if n not in parameters}, parameters)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
