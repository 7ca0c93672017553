"""Who beats whom: shares, ratings and the verdict of games whose outcome is known."""

import json
import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import ModelCard

from slim_rl.analysis.comparison import grouped, render
from slim_rl.core.errors import UserError
from slim_rl.players.config import ModelConfig
from slim_rl.studies.matches.exact import solve
from slim_rl.studies.matches.measures import Matches, elo
from slim_rl.training.checkpoint import save_model
from slim_rl.training.tiny import tiny_qwen
from stages.compare import compared, runs
from tests.settings import setting
from tests.studies.runs import report_on, write, write_matches

GAMES = {"kuhn": {"seating": ["policy", "policy"]}}
WON, LOST, DRAWN = [1] * 50, [-1] * 50, [0] * 50
RESULTS = {
    ("base", "random"): LOST,
    ("base", "scripted"): LOST,
    ("trained", "random"): WON,
    ("trained", "scripted"): DRAWN,
    ("random", "scripted"): LOST,
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matches")
    write_matches(folder, RESULTS, failed=10)
    worth = {"exploitability": 0.5, "value_first": -0.1, "other": 1e-6}
    solved = {name: worth for name in ("base", "step-00002", "trained")}
    (folder / "data/episodes/kuhn/solved.json").write_text(json.dumps(solved))
    return report_on(folder, GAMES)


@pytest.fixture(scope="module")
def metrics(reports):
    return json.loads((reports / "metrics.json").read_text())


def test_shares_are_of_the_games_that_ended_from_each_seat(reports, metrics):
    table = pd.read_csv(reports / "data/players.csv").set_index(["player", "opponent", "seat"])
    lost = table.loc["base", "random", "first"]
    assert (lost["lost"], lost["games"]) == (1.0, 40)
    assert table.loc["base", "random", "second"]["games"] == 50
    never = table.loc["trained", "random", "second"]
    assert never["lost"] == 0 and 0.05 < never["lost_high"] < 0.1  # never in 50 games is not never
    assert metrics["trained"]["scripted"]["first"]["reward"] == 0


def test_the_model_card_has_the_reward_against_each_opponent_from_each_seat(reports):
    card = ModelCard.load(reports / "model-card.md")
    assert (
        "| trained, scripted player, first | 0.000 | " in card.text
        and "| base, random play, first | -1.000 | " in card.text
    )
    assert [result.metric_value for result in card.data.eval_results] == [1, 1, 0, 0]


def test_several_runs_are_compared_by_opponent_and_seat(metrics, tmp_path):
    files = [{"reports/metrics.json": json.dumps(metrics), "run.yaml": f"seed: {seed}"} for seed in (0, 1)]
    groups = grouped([run for of in files for run in runs("seed", lambda path, of=of: of[str(path)])], compared)
    page = render(groups, tmp_path)
    assert page.count('<th scope="row">Reward against random play as second: base</th>') == 1
    rewards = re.findall(r"<td[^>]*>\s*([-+]?\d.\d+)", page)
    random, perfect = ["-1.000", "1.000", "+2.000"], ["-1.000", "0.000", "+1.000"]
    worth = ["0.500", "0.500", "0.000", "0.000", "-0.100", "-0.100"]
    rows = 2 * random + 2 * perfect + worth  # from either seat
    assert rewards == [number for number in rows for _ in range(3)]  # the pool and two runs
    assert "Bayesian" not in page and "nan" not in page


def test_the_verdict_tells_where_training_helped(metrics, tmp_path):
    better = "The trained model plays better than the base model against every opponent, from every seat."
    assert metrics["verdict"] == better
    swapped = {"base": "trained", "trained": "base"}
    write_matches(tmp_path, {(swapped.get(a, a), b): earned for (a, b), earned in RESULTS.items()})
    verdict = json.loads((report_on(tmp_path, GAMES) / "metrics.json").read_text())["verdict"]
    assert "plays worse against random play as first" in verdict


HALF = WON[:25] + LOST[:25]


@pytest.mark.parametrize(
    ("trained", "rules", "said"),
    [
        (WON, {"rule-bluff": LOST, "rule-call-all": DRAWN}, "better than every simple rule"),
        (WON, {"rule-bluff": LOST, "rule-call-all": WON}, "not shown to play better than the simple rule “call all”"),
        (HALF, {"rule-bluff": WON}, "plays worse than the simple rule “bluff”"),
    ],
)
def test_the_page_says_whether_training_beats_the_best_simple_rule(trained, rules, said, tmp_path):
    against = {(rule, "random"): earned for rule, earned in rules.items()}
    write_matches(tmp_path, {("base", "random"): LOST, ("trained", "random"): trained, **against})
    reports = report_on(tmp_path, GAMES)
    metrics = json.loads((reports / "metrics.json").read_text())
    page = " ".join((reports / "report.html").read_text().split())
    assert said in metrics["verdict"] and metrics["verdict"] in page
    best = metrics["comparison"]["random"]["first"]["best_rule_difference"]
    assert best == np.mean(trained) - max(np.mean(earned) for earned in rules.values())
    assert all(f"A rule: {rule[5:].replace('-', ' ')}</th><td>Random play" in page for rule in rules)
    assert set(pd.read_csv(reports / "data/learning.csv")["player"]) == {"base", "trained"}


def test_without_other_opponents_the_models_are_measured_against_each_other(tmp_path):
    write_matches(tmp_path, {("base", "trained"): LOST})
    reports = report_on(tmp_path, GAMES)
    metrics = json.loads((reports / "metrics.json").read_text())
    assert metrics["verdict"].startswith("The trained model plays better than the base model")
    assert metrics["comparison"]["each other"]["first"]["reward_difference"] == 2
    assert not re.search(r"\bnan\b", (reports / "report.html").read_text())


def test_ratings_are_those_that_the_games_were_drawn_from():
    """Four players 200 points apart, 2,000 games a pair by the model's own odds."""
    rng, strength, rows = np.random.default_rng(0), {"random": 0, "b": 200, "c": 400, "d": 600}, []
    for one, other in combinations(sorted(strength), 2):
        odds = 1 / (1 + 10 ** ((strength[other] - strength[one]) / 400))
        for game, won in enumerate(rng.random(2000) < odds):
            for p, q, w in ((one, other, won), (other, one, not won)):
                outcome = {"won": int(w), "drawn": 0, "lost": int(not w)}
                rows.append({"game_id": game, "player": p, "opponent": q, **outcome})
    rated = elo(pd.DataFrame(rows)).set_index("player")
    assert list(rated.index) == ["d", "c", "b", "random"]
    for player, truth in strength.items():
        assert abs(rated.loc[player, "elo"] - truth) < 25
        assert rated.loc[player, "low"] - 10 <= truth <= rated.loc[player, "high"] + 10
    assert rated.loc["random", "elo"] == 0


def test_a_snapshot_that_is_a_checkpoint_is_drawn_once():
    """The step that a snapshot of the first and of the last weights has; both played fewer games."""
    names = ["base", "step-00000", "step-00004", "trained"]
    played = [
        {"player": name, "opponent": "random", "seat": "first", "game_id": "g", "reward": 1.0, "won": 1,
         "drawn": 0, "lost": 0, "unfinished": 0, "illegal_moves": 0.0}
        for name in names
    ]  # fmt: skip
    found = Matches(pd.DataFrame([*played, {**played[0], "player": "random"}]), pd.DataFrame({"step": [0, 3]}))
    assert list(found.learning["player"]) == ["step-00000", "trained"]


def test_the_page_says_what_was_found_and_needs_no_network(reports, metrics):
    page = (reports / "report.html").read_text()
    assert metrics["verdict"] in page and "Scripted player" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "in the game's own units" in page and "says something" in " ".join(page.split())


def test_no_games_is_a_sentence(tmp_path):
    write(tmp_path / "data/rollouts", [])
    with pytest.raises(UserError, match="no finished games"):
        report_on(tmp_path, GAMES)


def test_an_exact_solution_is_of_the_model_with_its_system_prompt(tmp_path):
    played = setting("kuhn")
    model = tiny_qwen(played.tokenizer, 512, seed=0, layers=1, hidden_size=32)
    save_model(tmp_path / "base", model, played.tokenizer)
    found = [
        solve(played.game.taskset, {"base": tmp_path / "base"}, ModelConfig(system_prompt=prompt), 1.0)["base"]
        for prompt in (None, None, "Bluff.")
    ]
    assert found[0] == found[1] != found[2]
