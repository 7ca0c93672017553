"""Experiments side by side, as DVC's table has them."""

import json

import pandas as pd

from slim_rl.analysis.comparison import Run, draw_curves, grouped, render
from slim_rl.studies.asking.verdict import CRITERIA
from stages.compare import compared, runs
from tests.studies.asking.made import NUMBERS
from tests.studies.runs import report_on, write_matches


def test_paid_runs_that_differ_only_in_their_seed_are_pooled(tmp_path):
    """What a run paid is no parameter."""
    results, found = {("base", "random"): [-1] * 4, ("trained", "random"): [1] * 4}, []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        write_matches(folder, results)
        bills = {"partner": {"model": "gpt-4.1", "calls": 100 + seed, "dollars": 0.5 + seed}}
        (folder / "data/episodes/bills.json").write_text(json.dumps(bills))
        services = {"partner": {"model": "gpt-4.1"}}
        report_on(folder, {"kuhn": {"seating": ["policy", "policy"]}}, seed=seed, services=services)
        (folder / "params.yaml").rename(folder / "run.yaml")
        found += runs(f"seed-{seed}", lambda path, folder=folder: (folder / path).read_text())
    assert list(runs("unfinished", lambda path: None)) == []
    [group] = grouped(found, compared)
    assert [run.name for run in group.runs] == ["seed-0", "seed-1"]
    assert [run.metrics["bills.partner.evaluation.calls"] for run in group.runs] == [100, 101]
    assert "services.partner.model" in group.runs[0].parameters
    assert not group.runs[0].read("players").empty and list(
        json.loads((folder / "reports/summary.json").read_text())
    ) == ["verdict"]


def test_seeds_are_thin_lines_with_a_verdict_over_them(tmp_path):
    """In the study asking, whose tables over training are drawn."""

    def run(seed, version=CRITERIA.version):
        metrics = {f"comparison.{name}": value + 0.001 * seed for name, value in NUMBERS.items()}
        curves = pd.DataFrame({"step": [0, 1], "reward": [0.8, 0.9 + seed / 100], "question_count": [1, 2]})
        verdict = {"verdict": "Supported: yes.", "outcome": "supported", "criteria": version}
        return Run(f"seed-{seed}", "matching", "asking", metrics | verdict, {"seed": seed}, lambda table: curves)

    [group] = grouped([run(seed) for seed in range(3)], compared)
    assert group.compared.verdict.startswith("Supported: the model learnt to ask, and which cells to ask for.")
    assert "Of 3 runs, 3: supported." in group.compared.verdict
    assert "over the base model +0.121 ± 0.001" in group.compared.verdict
    [(figure, _)] = draw_curves([group])
    assert [len(axes.lines) for axes in figure.axes] == [4, 4]  # three runs and their mean
    page = render([group], tmp_path)
    assert page.count("<svg") == 2 and "a thin line for each run" in page and "seed-2" in page
    [copied] = grouped([*map(run, range(3)), run(2)._replace(name="seed-2 again")], compared)
    assert len(copied.runs) == 4 and copied.compared.verdict == group.compared.verdict
    assert copied.pooled("comparison.gain") == group.pooled("comparison.gain")
    [older] = grouped([run(0), run(1, version=1)], compared)
    assert older.compared.verdict.startswith(
        "Not pooled: some of these runs were not judged by the criteria of version"
    )
    [alone] = grouped([run(0)], compared)
    assert alone.compared.verdict == ""
    without = alone._replace(runs=(alone.runs[0]._replace(read=lambda table: None),))
    assert draw_curves([without]) == []
