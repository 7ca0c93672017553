"""Who beats whom: shares, ratings and the verdict of games whose outcome is known."""

import re

import numpy as np
import pandas as pd
import pytest

from slim_rl.analysis.comparison import draw, grouped, render
from slim_rl.analysis.figures import save
from slim_rl.analysis.findings import plain
from slim_rl.analysis.matches import elo, read_matches
from slim_rl.analysis.report import Provenance, draw_matches, render_matches
from slim_rl.errors import UserError
from slim_rl.rollout.episode import Episode
from slim_rl.rollout.store import write_shard
from stages import compare

SEATS = ("first", "second")


def play(folder, one, other, rewards, failed=0):
    """A series of games between two, of which the first seat earns `rewards`."""
    episodes = []
    for number, reward in enumerate(rewards):
        facts = {"turns": 5, "drawn": int(reward == 0), "first.illegal_moves": 0, "second.illegal_moves": 1}
        earned = dict(zip(SEATS, (float(reward), -float(reward)), strict=True))
        status = "failed" if number < failed else "completed"
        if status == "failed":
            earned, facts = {}, {}
        name = f"{one}-against-{other}"
        episodes.append(
            Episode(f"{name}/{number}", f"g{number}", "game", {}, 0, status, rewards=earned, facts=facts)
        )
    write_shard(folder / "matches" / name / "00000.parquet", episodes)


@pytest.fixture
def found(tmp_path):
    won, lost, drawn = [1] * 50, [-1] * 50, [0] * 50
    for model, against_random, against_perfect in (("base", lost, lost), ("trained", won, drawn)):
        for opponent, rewards in (("random", against_random), ("scripted", against_perfect)):
            play(tmp_path, model, opponent, rewards, failed=10 * (model == "base"))
            play(tmp_path, opponent, model, [-r for r in rewards])
    play(tmp_path, "random", "scripted", lost)
    rollouts = [
        Episode(
            f"t{s}/{g}",
            f"g{g}",
            "game",
            {},
            s,
            rewards={"first": 1.0, "second": -1.0},
            facts={"turns": 3.0, "drawn": 0.0},
        )
        for s in range(4)
        for g in range(6)
    ]
    write_shard(tmp_path / "rollouts/00000.parquet", rollouts)
    return read_matches(tmp_path, tmp_path / "rollouts")


def test_shares_are_of_the_games_that_ended_from_each_seat(found):
    lost = found.share("lost", "base", "random", "first")
    assert (lost.mean, lost.games) == (1.0, 40)
    assert found.share("lost", "base", "random", "second").games == 50
    never = found.share("lost", "trained", "random", "second")
    assert never.mean == 0 and 0.05 < never.high < 0.1  # never in 50 games is not never
    assert found.reward("trained", "scripted", "first").mean == 0


def test_several_runs_are_compared_by_opponent_and_seat(found, tmp_path):
    metrics = pd.json_normalize(plain(found.metrics)).iloc[0].to_dict()
    runs = [
        compare.run({"Experiment": f"seed-{seed}", "seed": seed, "bayes.reward": "None", **metrics})
        for seed in (0, 1)
    ]  # as DVC tells them, with what only other games have
    groups = grouped(runs)
    save(draw(groups), tmp_path, "runs")
    page = render(groups, tmp_path / "runs.svg")
    assert page.count('<th scope="col">Reward against random play as second: base</th>') == 1
    rewards = re.findall(r"<td>\s*([-+]?\d.\d+)", page)
    random, perfect = ["-1.000", "1.000", "+2.000"], ["-1.000", "0.000", "+1.000"]
    assert rewards == 3 * (2 * random + 2 * perfect)  # two runs and the pool; from either seat
    assert "Bayesian" not in page and "nan" not in page


def test_the_verdict_tells_where_training_helped(found):
    assert (
        found.verdict
        == "The trained model plays better than the base model against everybody, from every seat."
    )
    worse = found.played.replace({"player": {"base": "trained", "trained": "base"}})
    worse = worse.replace({"opponent": {"base": "trained", "trained": "base"}})
    assert "plays worse against" in type(found)(worse, found.training).verdict


def test_ratings_are_those_that_the_games_were_drawn_from():
    """Four players 200 points apart, 2,000 games a pair by the model's own odds."""
    rng, strength, rows = np.random.default_rng(0), {"random": 0, "b": 200, "c": 400, "d": 600}, []
    for one in strength:
        for other in strength:
            if one < other:
                odds = 1 / (1 + 10 ** ((strength[other] - strength[one]) / 400))
                for game, won in enumerate(rng.random(2000) < odds):
                    for p, q, w in ((one, other, won), (other, one, not won)):
                        rows.append(
                            {
                                "game_id": game,
                                "player": p,
                                "opponent": q,
                                "won": int(w),
                                "drawn": 0,
                                "lost": int(not w),
                            }
                        )
    rated = elo(pd.DataFrame(rows)).set_index("player")
    assert list(rated.index) == ["d", "c", "b", "random"]
    for player, truth in strength.items():
        assert abs(rated.loc[player, "elo"] - truth) < 25
        assert rated.loc[player, "low"] - 10 <= truth <= rated.loc[player, "high"] + 10
    assert rated.loc["random", "elo"] == 0


def test_the_page_says_what_was_found_and_needs_no_network(found, tmp_path):
    for name, figure in draw_matches(found).items():
        save(figure, tmp_path / "figures", name)
    provenance = Provenance({"seed": 0}, "abc", {})
    page = render_matches("matches.html.j2", found, "tictactoe", tmp_path / "figures", provenance)
    assert (
        found.verdict in page
        and "Perfect player" in page
        and "http" not in page.replace("http://www.w3.org", "")
    )
    assert "| Trained model | Random play | first | 100.0 %" in render_matches(
        "matches.md.j2", found, "tictactoe", tmp_path / "figures", provenance
    )


def test_no_games_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="no finished games"):
        read_matches(tmp_path, tmp_path)
