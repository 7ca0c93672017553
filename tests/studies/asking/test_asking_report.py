"""The report: what it says of a run, and what it says when there is nothing to report on."""

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

from slim_rl.core.errors import UserError
from slim_rl.rollout.shards import read_episodes, write_shard
from slim_rl.studies.asking.measures import read_players, read_sample
from tests.studies.asking.made import AGENT, GAMES, PARTNER, make_episodes, turn, write, write_players
from tests.studies.runs import report_on

ROOT = Path(__file__).parents[3]
PLAYED = Path("data/episodes/matching")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def page(run):
    return (run / "reports/report.html").read_text()


@pytest.fixture(scope="module")
def metrics(run):
    return json.loads((run / "reports/metrics.json").read_text())


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("reports"))
    return tmp_path


def test_the_verdict_comes_first_and_the_sections_in_the_order_in_which_a_sceptic_asks(page):
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert re.search(r"Does a language model learn to ask questions.*?\?\s+Supported: ", text.split("</h1>")[0])
    assert "The no-question Bayesian player is beaten" in text
    assert "forbidden to ask, the trained model earns less by 0.1" in text
    assert re.findall(r'<h2 id="(\w+)">', page) == [
        "curves", "worth", "players", "uses", "compared", "browser", "methods",
    ]  # fmt: skip


def test_the_report_needs_nothing_else_and_every_figure_is_described(page):
    assert all(source.startswith(("data:", "#")) for source in re.findall(r'<\w[^>]*? (?:src|href)="([^"]*)"', page))
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == 5
    for figure in figures:
        assert re.search(r'<svg role="img" aria-label="[^"]{40,}"', figure)
        assert re.search(r"<figcaption>[^<]{80,}", figure)
        assert "<details>" in figure or "in the table above" in figure
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_who_was_measured_and_where_the_numbers_come_from_is_told(page):
    for name in ("Base model", "Trained model", "No-question Bayes", "Asks 4, most useful first", "People"):
        assert f'<th scope="row">{name}</th>' in page
    assert '<th scope="row">warmstart.stop_probability</th><td>0.55</td>' in page
    assert "Code: commit <code>unknown</code>" in page  # the run is not a checkout
    assert re.search(r"Training played [\d,]+ episodes and sampled \d+ tokens", page)


def test_metrics(metrics, page):
    assert (metrics["base"]["episodes"], metrics["base"]["failed"], metrics["comparison"]["games"]) == (197, 3, 197)
    assert "Base model 197 (3 failed)" in page
    assert metrics["trained"]["reward"] == pytest.approx(0.95, abs=0.01)
    assert metrics["trained"]["reward_low"] < metrics["trained"]["reward"] < metrics["trained"]["reward_high"]
    assert metrics["trained"]["gap_to_oracle"] == pytest.approx(0.02, abs=0.01)
    assert metrics["base"]["wasted_share"] == pytest.approx(1 / 1.5, abs=0.1)
    assert metrics["bayes"]["wasted_share"] is None
    assert metrics["comparison"]["useful_questions_ratio"] == pytest.approx(10, rel=0.3)
    assert metrics["comparison"]["reward_difference_in_standard_errors"] > 10
    assert metrics["human_boards"]["humans"]["questions"] == pytest.approx(3, abs=0.5)
    assert metrics["training"]["step"] == 8
    assert metrics["training"]["useful_questions"] == pytest.approx(8, abs=1)
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
    assert figures == {"training", "intervention", "held-out", "human-boards", "uses"}
    with Image.open(run / "reports/figures/training.png") as image:
        assert image.size[0] >= 4.5 * 300  # a column at 300 dots an inch


def test_the_short_report_has_verdict_and_table(run):
    text = (run / "reports/report.md").read_text()
    assert text.splitlines()[2].startswith("**Supported: ")
    assert re.search(r"^\| Trained model \| 0\.9\d\d \| ", text, flags=re.MULTILINE)
    assert re.search(r"^\| questions forbidden \| 0\.7\d\d \| 0\.7\d\d \|", text, flags=re.MULTILINE)
    assert all((run / "reports" / name).exists() for name in re.findall(r"!\[.*?\]\((.*?)\)", text))


def test_same_episodes_same_bytes_in_another_process(run, copy):
    command = [sys.executable, "-m", "stages.analyze"]
    done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    written = contents(run / "reports")
    assert {path.suffix for path in written} == {".html", ".json", ".csv", ".svg", ".png", ".md"}
    assert contents(copy / "reports") == written


def test_without_an_intervention_there_is_a_report_that_says_so(copy):
    shutil.rmtree(copy / PLAYED / "intervention")
    reports = report_on(copy, GAMES)
    assert "studies.asking.intervention_games</code> is 0" in (reports / "report.html").read_text()
    assert json.loads((reports / "metrics.json").read_text())["intervention"] is None


def test_nasty_data_make_a_report_all_the_same(tmp_path):
    """One episode each, constant columns, a seat that earned nothing, a game of another kind, a run that goes on."""
    played, rollouts = tmp_path / PLAYED, tmp_path / "data/rollouts"
    few = dict(reward=0.8, games=1)
    write_players(played / "held-out", base=few, trained={**few, "useful": 3}, bayes=few)
    write_players(played / "human-boards", humans=few)
    write(rollouts / "step-0", make_episodes("policy", 0.8, games=2, noise=0, failed=1))
    [stranger] = make_episodes("stranger", 0.5, games=1)
    stranger.rewards, stranger.metrics = {"somebody": 1.0}, {}
    stranger.turns, stranger.seating = [turn("somebody", "", "Hello?")], {"somebody": "stranger"}
    write(rollouts / "step-1", [stranger, *make_episodes("policy", 0.5, games=9, game="another")])
    (rollouts / "step-1/.00001.parquet.part").write_bytes(b"half a sh")
    reports = report_on(tmp_path, GAMES)
    metrics = json.loads((reports / "metrics.json").read_text())
    assert metrics["outcome"] == "too little data"
    assert metrics["training"]["failed"] == 1
    page = (reports / "report.html").read_text()
    assert "Training played 3 episodes" in page
    assert not re.search(r"\bnan\b", page, flags=re.IGNORECASE)


def test_a_damaged_shard_or_a_missing_folder_is_named(copy):
    damaged = copy / "data/rollouts/step-3/00000.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"^data/rollouts/step-3/00000.parquet cannot be read as a shard"):
        report_on(copy, GAMES)
    damaged.write_bytes(whole)
    for missing in (PLAYED / "human-boards", "data/rollouts", PLAYED / "held-out/bayes"):
        shutil.rmtree(copy / missing)
        with pytest.raises(UserError, match=f"^There are no episodes in {missing} to analyze"):
            report_on(copy, GAMES)


def test_failed_episodes_count_unless_they_were_played_again_with_success(tmp_path):
    write_players(tmp_path / "failed", base=dict(reward=0.8, games=5, failed=5))
    with pytest.raises(UserError, match=r"All 5 episodes in .* failed, the first with 'TimeoutError: no answer'"):
        read_players(tmp_path / "failed")
    write_players(tmp_path, base=dict(reward=0.8, games=5, failed=2))
    write_players(tmp_path / "again", base=dict(reward=0.8, games=5))
    write_shard(tmp_path / "base/00001.parquet", [next(read_episodes(tmp_path / "again/base"))])
    sample = read_sample(tmp_path / "base", ("base",))
    assert (len(sample.episodes), sample.failed) == (4, 1)


def test_the_seat_of_the_player_is_measured_wherever_it_sits(tmp_path):
    """Its own questions and metrics, of each episode in the seat that it has there."""
    first, second, third = make_episodes("policy", 0.8, useful=4, wasted=1, games=3, noise=0)
    other = {"questions": 9, "own_view": 0.3}
    second.seating = {AGENT: "scripted", PARTNER: "policy"}
    second.metrics |= {f"{PARTNER}.{name}": value for name, value in other.items()}
    second.rewards = {AGENT: 0.1, PARTNER: 0.6}
    third.seating = {AGENT: "policy", PARTNER: "policy"}
    write(tmp_path, [first, second, third])
    episodes = read_sample(tmp_path, ("policy",)).episodes
    assert list(episodes["seat"]) == [AGENT, PARTNER, AGENT]
    assert list(episodes["reward"]) == [0.8, 0.6, 0.8]
    assert list(episodes["own_view"]) == [0.78, 0.3, 0.78]
    assert list(episodes["questions"] > 0) == [True, False, True]  # the second only answers
