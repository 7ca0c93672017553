"""Several runs on one page: apart, and pooled over seeds."""

import re

import pytest

from slim_rl.analysis.comparison import Run, draw, grouped, render
from slim_rl.analysis.figures import save


def run(name, seed, reward, selection="stakes", outcome="supported"):
    metrics = {
        "base.reward": 0.8, "base.reward_low": 0.79, "base.reward_high": 0.81, "base.reward_se": 0.005,
        "trained.reward": reward, "bayes.reward": 0.79, "verdict": "Supported: it does.", "outcome": outcome,
    }  # fmt: skip
    return Run(name, metrics, {"seed": float(seed), "board.selection": selection, "train.steps": 80})


RUNS = [
    run("seed-1", 1, 0.98),
    run("trap", 0, 0.90, "dialop", "gains without asking"),
    run("seed-0", 0, 0.96),
    run("seed-2", 2, 1.0),
]


def test_runs_that_differ_in_nothing_but_their_seed_are_pooled():
    seeds, trap = grouped(RUNS)
    assert [r.name for r in seeds.runs] == ["seed-0", "seed-1", "seed-2"]
    assert (seeds.label, trap.label) == ("board.selection = stakes", "board.selection = dialop")
    reward = seeds.pooled("trained.reward")
    assert reward.mean == pytest.approx(0.98)
    assert (reward.low, reward.high) == pytest.approx(
        (0.98 - 4.303 * 0.02 / 3**0.5, 0.98 + 4.303 * 0.02 / 3**0.5), abs=1e-4
    )


def test_runs_of_several_games_are_told_apart_by_their_game_and_not_by_all_its_parameters():
    kuhn = Run("kuhn-0", {"verdict": "Plays better."}, {"seed": 0.0, "game": "kuhn", "model.layers": 2.0})
    assert [group.label for group in grouped([*RUNS, kuhn])] == [
        "kuhn",
        "matching: board.selection = stakes",
        "matching: board.selection = dialop",
    ]


def test_the_page_shows_every_run_apart_and_the_pool(tmp_path):
    groups = grouped(RUNS)
    save(draw(groups), tmp_path, "runs")
    page = render(groups, tmp_path / "runs.svg")
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', page)
    assert rows == [("seed-0", "0"), ("seed-1", "1"), ("seed-2", "2"), ("Pooled", "3 runs"), ("trap", "0")]
    assert "gains without asking" in page and "nan" not in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
