"""The stage as a user runs it: what it writes, and what it says when there is nothing to analyze."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from slim_rl.analysis.measures import read_sample
from slim_rl.errors import UserError
from slim_rl.rollout.store import read_episodes, write_shard

ROOT = Path(__file__).parents[2]


def analyze(folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stages.analyze"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory, write_players, write_training):
    """The folder of a run that was analyzed."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "params.yaml").write_text("seed: 7\n")
    write_training(folder / "data/rollouts", steps=6)
    write_players(
        folder / "data/episodes/held-out",
        **{
            "base": dict(reward=0.80, useful=0.5, wasted=1, failed=3),
            "trained": dict(reward=0.95, useful=5),
            "bayes": dict(reward=0.78),
            "own-view": dict(reward=0.78),
            "asks-4-useful": dict(reward=0.93, useful=4),
        },
    )
    write_players(
        folder / "data/episodes/human-boards",
        humans=dict(reward=0.92, useful=3, games=100),
        bayes=dict(reward=0.91, games=100),
    )
    done = analyze(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def page(run):
    return (run / "reports/report.html").read_text()


def test_the_verdict_comes_first(page):
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert re.search(
        r"Does a language model learn to ask questions.*?\?\s+Supported: ", text.split("</h1>")[0]
    )
    assert "The no-question Bayesian player is beaten" in text


def test_everybody_is_in_the_report(page):
    for name in ("Base model", "Trained model", "No-question Bayes", "Asks 4, most useful first", "People"):
        assert f'<th scope="row">{name}</th>' in page


def test_the_report_needs_nothing_else(page):
    assert "<script" not in page
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert page.count("<img") == len(re.findall(r'<img [^>]*alt="[^"]{20,}"', page)) == 4
    assert "prefers-color-scheme: dark" in page


def test_dialogues_are_shown_as_text(page):
    for rule in ("Typical: ", "Best: ", "Bad: "):
        assert page.count(f"<h3>{rule}") == 1
    assert "&lt;b&gt;BLEU: Ava Li" in page


def test_failed_episodes_are_left_out_and_counted(run, page):
    metrics = json.loads((run / "reports/metrics.json").read_text())
    assert (metrics["base"]["episodes"], metrics["base"]["failed"]) == (197, 3)
    assert metrics["comparison"]["games"] == 197
    assert "Base model 197 (3 failed)" in page


def test_metrics(run):
    metrics = json.loads((run / "reports/metrics.json").read_text())
    assert metrics["trained"]["reward"] == pytest.approx(0.95, abs=0.01)
    assert metrics["trained"]["reward_low"] < metrics["trained"]["reward"] < metrics["trained"]["reward_high"]
    assert metrics["trained"]["gap_to_oracle"] == pytest.approx(0.02, abs=0.01)
    assert metrics["base"]["wasted_share"] == pytest.approx(1 / 1.5, abs=0.1)
    assert metrics["bayes"]["wasted_share"] is None
    assert metrics["comparison"]["useful_questions_ratio"] == pytest.approx(10, rel=0.3)
    assert metrics["comparison"]["reward_difference_in_standard_errors"] > 10
    assert metrics["human_boards"]["humans"]["questions"] == pytest.approx(3, abs=0.5)
    assert metrics["training"]["step"] == 5
    assert metrics["verdict"].startswith("Supported: ")


def test_curves_have_a_row_a_step(run):
    curves = pd.read_csv(run / "reports/plots/training.csv")
    assert list(curves["step"]) == [0, 1, 2, 3, 4, 5]
    assert curves["useful_questions"].is_monotonic_increasing


def test_same_episodes_same_bytes(run):
    before = contents(run / "reports")
    assert {path.suffix for path in before} == {".html", ".json", ".csv", ".svg", ".png"}
    shutil.rmtree(run / "reports")
    assert analyze(run).returncode == 0
    assert contents(run / "reports") == before


@pytest.mark.parametrize("missing", ["rollouts", "episodes/held-out/bayes", "episodes/human-boards"])
def test_a_missing_folder_is_told_in_a_sentence(missing, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "data" / missing)
    done = analyze(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: There are no episodes in data/{missing} to analyze")
    assert done.stderr.count("\n") == 1


def test_only_failed_episodes_are_told_with_the_reason(write_players, tmp_path):
    folder = write_players(tmp_path, base=dict(reward=0.8, games=5, failed=5)) / "base"
    with pytest.raises(
        UserError, match=r"All 5 episodes in .* failed, the first with 'TimeoutError: no answer'"
    ):
        read_sample(folder)


def test_an_episode_played_again_with_success_counts_as_played(write_players, tmp_path):
    folder = write_players(tmp_path, base=dict(reward=0.8, games=5, failed=2)) / "base"
    again = write_players(tmp_path / "again", base=dict(reward=0.8, games=5)) / "base"
    write_shard(folder / "00001.parquet", [next(read_episodes(again))])
    sample = read_sample(folder)
    assert (len(sample.episodes), sample.failed) == (4, 1)
