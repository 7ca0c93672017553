"""One seat: pass rates, pass@k and what the report says of them."""

import json
import re

import pandas as pd
import pytest

from slim_rl.analysis.statistics import share
from slim_rl.core.episode import Turn
from slim_rl.core.errors import UserError
from slim_rl.core.message import heard, said
from slim_rl.rollout.summary import pass_at_k
from tests import echo
from tests.studies.runs import ECHO, report_on, solved, write, write_solved

GAMES = {ECHO: {}}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The base model solves a fifth of 40 tasks now and then, the trained one most of them always."""
    folder = tmp_path_factory.mktemp("accuracy")
    write_solved(folder, base=[1] * 8 + [0] * 32, trained=[4] * 30 + [2] * 5 + [0] * 5, samples=4, failed=1)
    return report_on(folder, GAMES)


@pytest.fixture(scope="module")
def metrics(reports):
    return json.loads((reports / "metrics.json").read_text())


def test_the_interval_of_a_share_is_wilsons():
    """The values are those of Newcombe (1998, Statist. Med. 17:857), table I."""
    for passed, games, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        found = share(pd.DataFrame({"game_id": range(games), "x": [1] * passed + [0] * (games - passed)}), "x")
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_samples_of_one_task_are_worth_less_than_tasks():
    alike = pd.DataFrame({"game_id": [n // 4 for n in range(160)], "x": [n // 4 % 2 for n in range(160)]})
    apart = alike.assign(x=[n % 2 for n in range(160)])  # half of each task's samples pass
    once = share(pd.DataFrame({"game_id": range(40), "x": [n % 2 for n in range(40)]}), "x")
    assert share(alike, "x")[1:3] == pytest.approx(once[1:3])
    assert share(apart, "x").high - 0.5 < 0.6 * (once.high - 0.5)


def test_pass_at_k_is_without_bias():
    """By counting the draws of k from 10 samples, 3 of them passing, and at the limits."""
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert pass_at_k(4, 0, 4) == 0 and pass_at_k(4, 1, 4) == 1


def test_metrics(metrics):
    base, trained = metrics["base"], metrics["trained"]
    assert (base["pass_rate"], trained["pass_rate"]) == (0.05, 0.8125)
    assert base["pass_rate_low"] < 0.05 < base["pass_rate_high"] < 0.2
    assert (base["pass_at_1"], base["pass_at_2"], base["pass_at_4"]) == pytest.approx((0.05, 0.1, 0.2))
    assert trained["pass_at_4"] == pytest.approx(35 / 40)
    assert (base["episodes"], base["failed"]) == (160, 40)
    assert (base["turn_count"], base["malformed_calls"]) == (2, 0.95)
    assert metrics["comparison"]["pass_rate_difference"] == pytest.approx(0.7625)
    assert (metrics["outcome"], metrics["study"], metrics["game"]) == ("improved", "accuracy", ECHO)


@pytest.mark.parametrize(
    ("base", "trained", "outcome"),
    [
        ([1, 0] * 20, [0, 1] * 20, "no change shown"),
        ([1] * 30 + [0] * 10, [0] * 40, "worse"),
        ([1], [1], "too little data"),
    ],
)
def test_the_verdict_can_say_no(base, trained, outcome, tmp_path):
    write_solved(tmp_path, base, trained, steps=0)
    reports = report_on(tmp_path, GAMES)
    metrics = json.loads((reports / "metrics.json").read_text())
    page = (reports / "report.html").read_text()
    assert metrics["outcome"] == outcome and metrics["verdict"] in page and not re.search(r"\bnan\b", page)


def test_a_game_says_with_which_reward_a_task_is_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(echo.Echoes, "pass_reward", 0.0)
    write_solved(tmp_path, [0] * 9, [0] * 9, steps=0)
    reports = report_on(tmp_path, GAMES)
    assert json.loads((reports / "metrics.json").read_text())["base"]["pass_rate"] == 1


def test_the_page_has_curves_tables_and_no_other_file(reports):
    page = (reports / "report.html").read_text()
    assert re.findall(r'<h2 id="(\w+)">', page) == ["curves", "browser", "methods"]
    assert all(s.startswith(("data:", "#")) for s in re.findall(r'<\w[^>]*? (?:src|href)="([^"]*)"', page))
    assert "Malformed calls" in page and "160 (40)" in page
    curves = pd.read_csv(reports / "data/training.csv")
    assert curves["pass_rate"].is_monotonic_increasing and list(curves["step"]) == list(range(5))
    assert {path.stem for path in (reports / "figures").iterdir()} == {"training"}


def test_no_finished_episode_is_a_sentence(tmp_path):
    write_solved(tmp_path, [], [1], steps=0)
    with pytest.raises(UserError, match="held-out/base"):
        report_on(tmp_path, GAMES)


def one_reply(model, share):
    """Episodes with the same reply in this share of them."""
    for episode in solved(model, [1] * 20, samples=1):
        same = int(episode.game_id.removeprefix("held-")) < share * 20
        episode.turns = [Turn("solver", heard("?"), said("print(1)" if same else episode.game_id))]
        yield episode


@pytest.mark.parametrize(("base", "trained", "collapsed"), [(0.1, 0.9, True), (0.1, 0.4, False), (0.8, 0.9, False)])
def test_a_policy_that_says_the_same_everywhere_has_collapsed(base, trained, collapsed, tmp_path):
    for model, same in (("base", base), ("trained", trained)):
        write(tmp_path / f"data/episodes/{ECHO}/held-out/{model}", one_reply(model, same))
    found = json.loads((report_on(tmp_path, GAMES) / "metrics.json").read_text())
    assert (found["outcome"] == "collapsed") == collapsed
    assert found["trained"]["distinct_replies"] == 20 - trained * 20 + 1


def test_a_policy_whose_replies_do_not_depend_on_the_task_has_collapsed(tmp_path):
    for model, least in (("base", 15), ("trained", 5)):
        episodes = list(solved(model, [1] * 20))
        for number, episode in enumerate(episodes):
            episode.metrics["degenerate"] = float(number >= least)
        write(tmp_path / f"data/episodes/{ECHO}/held-out/{model}", episodes)
    found = json.loads((report_on(tmp_path, GAMES) / "metrics.json").read_text())
    assert found["outcome"] == "collapsed"
