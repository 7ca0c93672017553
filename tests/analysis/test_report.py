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
from PIL import Image

from slim_rl.analysis.measures import read_sample
from slim_rl.errors import UserError
from slim_rl.rollout.episode import Turn
from slim_rl.rollout.store import read_episodes, write_shard
from tests.analysis.conftest import make_episodes

ROOT = Path(__file__).parents[2]


def analyze(folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stages.analyze"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory, write_players, write_training, write_intervention):
    """The folder of a run that was analyzed."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "params.yaml").write_text("seed: 7\n")
    write_training(folder / "data/rollouts", steps=9)
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
    write_intervention(folder / "data/episodes/intervention", base=0.02, trained=0.03)
    done = analyze(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def page(run):
    return (run / "reports/report.html").read_text()


@pytest.fixture(scope="module")
def metrics(run):
    return json.loads((run / "reports/metrics.json").read_text())


def test_the_verdict_comes_first(page):
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert re.search(
        r"Does a language model learn to ask questions.*?\?\s+Supported: ", text.split("</h1>")[0]
    )
    assert "The no-question Bayesian player is beaten" in text
    assert "forbidden to ask, the trained model earns less by 0.1" in text


def test_the_sections_stand_in_the_order_in_which_a_sceptic_asks(page):
    assert re.findall(r'<h2 id="(\w+)">', page) == [
        "curves", "worth", "players", "kinds", "statistics", "browser", "methods",
    ]  # fmt: skip


def test_everybody_is_in_the_report(page):
    for name in ("Base model", "Trained model", "No-question Bayes", "Asks 4, most useful first", "People"):
        assert f'<th scope="row">{name}</th>' in page


def test_the_report_needs_nothing_else_and_every_figure_is_described(page):
    assert all(
        source.startswith(("data:", "#")) for source in re.findall(r'<\w[^>]*? (?:src|href)="([^"]*)"', page)
    )
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == 6
    for figure in figures:
        assert re.search(r'<svg role="img" aria-label="[^"]{40,}"', figure)
        assert re.search(r"<figcaption>[^<]{80,}", figure)
        assert "<details>" in figure or "in the table above" in figure
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_where_the_numbers_come_from_is_told(page):
    assert '<th scope="row">warmstart.stop_probability</th><td>0.55</td>' in page
    assert "Code: commit <code>unknown</code>" in page  # the run is not a checkout
    assert re.search(r"Training played [\d,]+ episodes and sampled \d+ tokens", page)


def test_failed_episodes_are_left_out_and_counted(metrics, page):
    assert (metrics["base"]["episodes"], metrics["base"]["failed"]) == (197, 3)
    assert metrics["comparison"]["games"] == 197
    assert "Base model 197 (3 failed)" in page


def test_metrics(metrics):
    assert metrics["trained"]["reward"] == pytest.approx(0.95, abs=0.01)
    assert metrics["trained"]["reward_low"] < metrics["trained"]["reward"] < metrics["trained"]["reward_high"]
    assert metrics["trained"]["gap_to_oracle"] == pytest.approx(0.02, abs=0.01)
    assert metrics["base"]["wasted_share"] == pytest.approx(1 / 1.5, abs=0.1)
    assert metrics["bayes"]["wasted_share"] is None
    assert metrics["comparison"]["useful_questions_ratio"] == pytest.approx(10, rel=0.3)
    assert metrics["comparison"]["reward_difference_in_standard_errors"] > 10
    assert metrics["human_boards"]["humans"]["questions"] == pytest.approx(3, abs=0.5)
    assert metrics["training"]["step"] == 8
    assert metrics["training"]["useful_questions_slope"] == pytest.approx(1, abs=0.1)
    assert metrics["verdict"].startswith("Supported: ")
    assert metrics["outcome"] == "supported"


def test_the_intervention_tells_asking_more_from_using_answers_better(metrics):
    found = metrics["intervention"]
    assert found["trained"]["worth_of_asking"] == pytest.approx(0.95 - 0.78, abs=0.02)
    assert found["base"]["worth_of_a_question"] == pytest.approx(0.02, abs=0.002)
    assert found["trained"]["worth_of_a_question"] == pytest.approx(0.03, abs=0.002)
    # 0.5 questions before, 5 after; at 5 questions the trained model makes 0.05 more of the answers.
    assert found["asks_more"] == pytest.approx((5 - 1.5) * 0.02, abs=0.015)
    assert found["uses_answers_better"] == pytest.approx(5 * 0.01, abs=0.015)
    parts = found["asks_more"] + found["uses_answers_better"] + found["the_rest"]
    assert parts == pytest.approx(found["gain"], abs=1e-5)


def test_everything_is_there_as_a_table_and_a_figure_for_print(run):
    curves = pd.read_csv(run / "reports/data/training.csv")
    assert list(curves["step"]) == list(range(9))
    assert curves["useful_questions"].is_monotonic_increasing
    players = pd.read_csv(run / "reports/data/players.csv").set_index("player")
    assert players.loc["trained", "reward"] == pytest.approx(0.95, abs=0.01)
    intervention = pd.read_csv(run / "reports/data/intervention.csv")
    assert len(intervention) == 2 * (7 + 2)
    figures = {path.stem for path in (run / "reports/figures").iterdir()}
    assert figures == {"training", "intervention", "held-out", "human-boards", "kinds", "questions"}
    with Image.open(run / "reports/figures/training.png") as image:
        assert image.size[0] >= 4.5 * 300  # a column at 300 dots an inch


def test_the_short_report_has_verdict_and_table(run):
    text = (run / "reports/report.md").read_text()
    assert text.splitlines()[2].startswith("**Supported: ")
    assert re.search(r"^\| Trained model \| 0\.9\d\d \| ", text, flags=re.MULTILINE)
    assert re.search(r"^\| questions forbidden \| 0\.7\d\d \| 0\.7\d\d \|", text, flags=re.MULTILINE)
    assert all((run / "reports" / name).exists() for name in re.findall(r"!\[.*?\]\((.*?)\)", text))


def test_same_episodes_same_bytes(run):
    before = contents(run / "reports")
    assert {path.suffix for path in before} == {".html", ".json", ".csv", ".svg", ".png", ".md"}
    shutil.rmtree(run / "reports")
    assert analyze(run).returncode == 0
    assert contents(run / "reports") == before


def test_without_an_intervention_there_is_a_report_that_says_so(run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "data/episodes/intervention")
    assert analyze(tmp_path).returncode == 0
    assert "evaluate.intervention_games</code> is 0" in (tmp_path / "reports/report.html").read_text()
    assert json.loads((tmp_path / "reports/metrics.json").read_text())["intervention"] is None


def test_nasty_data_make_a_report_all_the_same(tmp_path, write_players):
    """One episode each, constant columns, a seat that earned nothing, a run still going on."""
    (tmp_path / "params.yaml").write_text("")
    players = dict(
        base=dict(reward=0.8, games=1),
        trained=dict(reward=0.8, games=1, useful=3),
        bayes=dict(reward=0.8, games=1),
    )
    write_players(tmp_path / "data/episodes/held-out", **players)
    write_players(tmp_path / "data/episodes/human-boards", humans=dict(reward=0.9, games=1))
    write_players(tmp_path / "data/rollouts", **{"step-0": dict(reward=0.8, games=2, noise=0, failed=1)})
    folder = tmp_path / "data/rollouts"
    [stranger] = make_episodes("stranger", 0.5, games=1)
    stranger.rewards, stranger.facts, stranger.turns = {"somebody": 1.0}, {}, [Turn("somebody", "", "Hello?")]
    write_shard(folder / "step-1/00000.parquet", [stranger])
    (folder / "step-1/.00001.parquet.part").write_bytes(b"half a sh")
    done = analyze(tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert metrics["outcome"] == "too little data"
    assert metrics["training"]["failed"] == 1
    page = (tmp_path / "reports/report.html").read_text()
    assert not re.search(r"\bnan\b", page, flags=re.IGNORECASE)


def test_a_damaged_shard_is_named(run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    (tmp_path / "data/rollouts/step-00003.parquet").write_bytes(b"PAR1 not really")
    done = analyze(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: data/rollouts/step-00003.parquet cannot be read as a shard")
    assert done.stderr.count("\n") == 1


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
