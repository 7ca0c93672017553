"""Several runs on one page: each by itself, and pooled over seeds."""

import re

import pytest

from slim_rl.analysis.comparison import Column, Compared, Point, Run, grouped, render

COLUMNS = Column("Reward, base", "base.reward"), Column("trained", "trained.reward")
COMPARED = Compared(COLUMNS, [Point("", "base.reward", "trained.reward", "mark")], "The diamond is a mark.")


def run(name, seed, reward, selection="stakes", outcome="supported"):
    metrics = {
        "base.reward": 0.8, "base.reward_low": 0.79, "base.reward_high": 0.81, "base.reward_se": 0.005,
        "trained.reward": reward, "mark": 0.79, "verdict": "Supported: it does.", "outcome": outcome,
    }  # fmt: skip
    parameters = {"seed": float(seed), "games.game.selection": selection, "train.steps": 80}
    return Run(name, "game", "study", metrics, parameters)


RUNS = [
    run("seed-1", 1, 0.98),
    run("trap", 0, 0.90, "dialop", "gain not shown to come from asking"),
    run("seed-0", 0, 0.96),
    run("seed-2", 2, 1.0),
]


def group(runs):
    return grouped(runs, lambda study, metrics: COMPARED)


def test_runs_on_machines_with_another_number_of_cores_are_pooled():
    laptop, node = RUNS[0], RUNS[2]
    node = node._replace(parameters={**node.parameters, "cores": 8.0, "concurrency": 64.0})
    assert [[r.name for r in g.runs] for g in group([laptop, node])] == [["seed-0", "seed-1"]]


def test_runs_that_differ_only_in_their_seed_are_pooled():
    seeds, trap = group(RUNS)
    assert [r.name for r in seeds.runs] == ["seed-0", "seed-1", "seed-2"]
    assert (seeds.label, trap.label) == ("games.game.selection = stakes", "games.game.selection = dialop")
    reward = seeds.pooled("trained.reward")
    assert reward.mean == pytest.approx(0.98)
    assert (reward.low, reward.high) == pytest.approx(
        (0.98 - 4.303 * 0.02 / 3**0.5, 0.98 + 4.303 * 0.02 / 3**0.5), abs=1e-4
    )


def test_runs_of_several_games_are_told_apart_by_their_game_and_not_by_all_its_parameters():
    other = Run("other-0", "other", "study", {"verdict": "Plays better."}, {"seed": 0.0, "model.layers": 2.0})
    assert [group.label for group in group([*RUNS, other])] == [
        "game: games.game.selection = stakes",
        "other",
        "game: games.game.selection = dialop",
    ]


def test_groups_of_one_name_are_told_apart(tmp_path):
    other = run("seed-7", 7, 0.9, "dialop")
    assert [g.name for g in group([*RUNS[:1], RUNS[2], other])] == [
        "seed (games.game.selection = stakes)",
        "seed (games.game.selection = dialop)",
    ]


def test_the_page_shows_every_run_and_the_pool(tmp_path):
    page = render(group(RUNS), tmp_path)
    assert re.findall(r"<h2>(.*?)</h2>", page)[:2] == ["seed: 3 runs", "trap: 1 run"]
    heads = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert heads == ["Run", "pooled, 3 runs", "0", "1", "2", "Run", "seed 0"]
    rows = [
        re.findall(r"<td.*?>\s*([\d.]+)", row) for row in re.findall(r"<tr><th scope=.row.>.*?</tr>", page, re.DOTALL)
    ]
    assert rows == [["0.800"] * 4, ["0.980", "0.960", "0.980", "1.000"], ["0.800"], ["0.900"]]
    assert page.count("Supported: it does.") == 8 and "The diamond is a mark." in page and "nan" not in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
