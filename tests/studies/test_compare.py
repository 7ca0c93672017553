"""Experiments side by side, as DVC's table has them."""

import json

import pandas as pd

from slim_rl.analysis.comparison import grouped
from stages.compare import compared, runs
from tests.studies.runs import report_on, write_matches


def test_paid_runs_that_differ_only_in_their_seed_are_pooled(tmp_path):
    """What a run paid is no parameter."""
    results, rows = {("base", "random"): [-1] * 4, ("trained", "random"): [1] * 4}, []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        write_matches(folder, results)
        bills = {"partner": {"model": "gpt-4.1", "calls": 100 + seed, "dollars": 0.5 + seed}}
        (folder / "data/episodes/bills.json").write_text(json.dumps(bills))
        services = {"partner": {"model": "gpt-4.1"}}
        reports = report_on(folder, {"kuhn": {"seating": ["policy", "policy"]}}, seed=seed, services=services)
        metrics = json.loads((reports / "metrics.json").read_text())
        table = pd.json_normalize({"seed": seed, "services": services, **metrics}).iloc[0]  # metrics come last
        rows.append({"Experiment": f"seed-{seed}", **table})
    [group] = grouped([run for row in rows for run in runs(row)], compared)
    assert [run.name for run in group.runs] == ["seed-0", "seed-1"]
    assert [run.metrics["bills.partner.evaluation.calls"] for run in group.runs] == [100, 101]
    assert "services.partner.model" in group.runs[0].parameters
