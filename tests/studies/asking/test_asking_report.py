"""The report: what it says of a run, and what it says when there is nothing to report on."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from slim_rl.core.errors import UserError
from slim_rl.rollout.shards import read_episodes, write_shard
from slim_rl.studies.asking.boards import side_by_side
from slim_rl.studies.asking.criteria import CRITERIA, criteria
from slim_rl.studies.asking.measures import read_sample
from tests.studies.asking.made import AGENT, GAMES, PARTNER, Policy, game_of, play, sample, turn, write
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


def open_text(page):
    """What a reader sees before opening anything."""
    page = re.sub(r"<(head|style|script|svg|noscript)\b.*?</\1>", " ", page, flags=re.DOTALL)
    page = re.sub(r"<details.*?<summary>(.*?)</summary>.*?</details>", r" \1 ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_first_screen_has_verdict_numbers_dialogues_and_limits(page):
    text = open_text(page)
    assert re.search(
        r"^Does a language model learn.*? Supported: the model learnt how many cells to ask for, and which\.",
        text,
    )
    assert "This is one run with one seed." in text
    assert page.count('<div class="turn') >= 8  # of both dialogues, without a click
    limits = text.split("What was built in, and what this does not show")[1].split("The criteria")[0]
    for built_in in (
        "3 by 3 boards",
        "3 layers of width 128",
        "28,800 scripted dialogues",
        "accepts every proposal",
        "seed 0",
    ):
        assert built_in in limits
    assert re.findall(r'<h2 id="(\w+)">', page) == [
        "board", "limits", "criteria", "curves", "follows", "worth", "transfer", "players", "browser", "more",
    ]  # fmt: skip


def test_the_first_screen_has_what_rules_without_training_earn(page, metrics):
    told, both = (f"{metrics[f'base-asks-{rule}']['reward']:.3f}" for rule in ("on", "unknown"))
    tiles = open_text(page).split("One board, two dialogues")[0]
    assert f"{told} reward of the base model, told not to stop" in tiles
    assert f"with a second one, to ask for unknown scores alone, {both}" in tiles


def test_it_takes_ten_minutes_to_read(page):
    assert len(open_text(page).split()) < 1500


def test_the_board_that_is_drawn_says_what_was_asked_and_what_came_of_it(run, page):
    shown = page.split('class="shown"')[1]
    halves = shown.split('aria-label="Trained model"')
    for half, player in zip(halves, ("base", "trained"), strict=True):
        drawn = re.findall(r'<div class="turn[^>]*>(.*?)</div>', half, flags=re.DOTALL)
        [episode] = [
            episode
            for episode in read_episodes(run / PLAYED / "held-out" / player)
            if [html.unescape(text) for text in drawn] == [said_there(turn.text) for turn in episode.turns]
            and f"reward {episode.rewards[AGENT]:.3f}<" in half
        ]
        assert len(re.findall(r'<td class="[^"]*asked', half)) == episode.metrics[f"{AGENT}.cells_asked"]
        assert half.count("\u2605</td>") == 3


def test_the_board_that_is_drawn_is_typical_in_cells_asked_for_too(tmp_path):
    """Most dialogues in which nobody asks have a gain near the mean as well; they show nothing of what was learnt."""
    game = game_of(patience=(2, 5))
    players = {"base": Policy(0.3, careless=0.3), "trained": Policy(2.5, careless=0.3)}
    held_out = {
        name: sample(tmp_path / name, game, name, play(game, name, policy), chosen=False)
        for name, policy in players.items()
    }
    before, after = (one.episodes["cells_asked"].mean() for one in held_out.values())
    base, trained = side_by_side(held_out).dialogues
    assert trained.cells_asked - base.cells_asked == round(after - before) == 2


def test_a_board_is_drawn_whose_first_attempt_failed(tmp_path):
    """Both attempts stand in one shard, where few boards are played."""
    game, held_out = game_of(), {}
    for name, policy in (("base", Policy(1)), ("trained", Policy(4))):
        [played] = play(game, name, policy, 1)
        failed = replace(played, status="failed", error="TimeoutError: no answer", turns=[], rewards={})
        held_out[name] = sample(tmp_path / name, game, name, [failed, played], chosen=False)
    base, trained = side_by_side(held_out).dialogues
    assert (base.cells_asked, trained.cells_asked) == (1, 4) and base.lines and trained.lines


def said_there(text):
    return text.removeprefix("[message] ").replace("Proposal:\n", "").replace("\n", ", ")


def test_the_criteria_show_their_date_and_that_they_changed(page):
    fixed = criteria()
    assert f"sha256 <code>{fixed.sha256[:12]}" in page
    assert "They were changed after this run was evaluated" in page  # the made run recorded others
    assert re.search(r"the run began <b>(before|after)</b> they were fixed", page)


def test_the_report_needs_nothing_else_and_every_figure_is_described(page):
    assert all(source.startswith(("data:", "#")) for source in re.findall(r'<\w[^>]*? (?:src|href)="([^"]*)"', page))
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == 2
    for figure in figures:
        assert re.search(r'<svg role="img" aria-label="[^"]{40,}"', figure)
        assert re.search(r"<figcaption>[^<]{80,}", figure)
        assert "reports/data/" in figure
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_who_was_measured_and_where_the_numbers_come_from_is_told(page):
    for name in (
        "Base model",
        "Trained model",
        "Base model, told not to stop",
        "Base model, told not to stop, and to ask for unknown scores alone",
        "Asks nothing, infers",
        "Optimal asker",
    ):
        assert f'<th scope="row">{name}</th>' in page
    assert '<th scope="row">warmstart.stop_probability</th>' in page
    assert "Code: commit <code>unknown</code>" in page  # the run is not a checkout
    assert re.search(r"Training played [\d,]+ episodes and sampled \d+ tokens", page)


def test_metrics(metrics):
    assert metrics["outcome"] == "supported" and metrics["verdict"].startswith("Supported: ")
    assert metrics["comparison"]["games"] == 120
    base, trained, best = metrics["base"], metrics["trained"], metrics["optimal"]
    assert base["cells_asked"] == 1 and 2.5 < trained["cells_asked"] < 3.5  # the patience is 1 to 5, 3 on average
    assert base["rank"] == pytest.approx(0.5, abs=0.1) and trained["rank"] > 0.7
    assert trained["reward_low"] < trained["reward"] < trained["reward_high"]
    assert metrics["comparison"]["regret"] == pytest.approx(best["reward"] - trained["reward"], abs=1e-4)
    assert metrics["follows"]["patience"]["trained"] > 0.9 and metrics["follows"]["patience"]["base"] is None
    assert metrics["transfer"]["ignorant"]["trained"]["reward"] == pytest.approx(
        metrics["transfer"]["ignorant"]["trained"]["own_view"], abs=1e-6
    )
    assert metrics["training"]["step"] == 4
    assert {"humans", "bayes"} == metrics["human_boards"].keys()


def test_everything_is_there_as_a_table_and_a_figure_for_print(run):
    curves = pd.read_csv(run / "reports/data/training.csv")
    assert list(curves["step"]) == list(range(5))
    assert curves["useful_cells"].is_monotonic_increasing
    players = pd.read_csv(run / "reports/data/players.csv").set_index("player")
    assert players.loc["trained", "pointless_share"] < 0.2
    follows = pd.read_csv(run / "reports/data/follows.csv")
    boards = read_sample(run / PLAYED / "held-out/trained", ("trained",)).episodes["unknown_cells"].value_counts()
    drawn = set(follows.loc[follows["varied"] == "unknown_cells", "at"])
    assert drawn == set(boards.index[boards >= 10]) < set(boards.index)  # a few boards are no mean
    assert set(follows["player"]) == {"base", "trained", "optimal"} and set(follows["varied"]) == {
        "patience",
        "unknown_cells",
    }
    assert len(pd.read_csv(run / "reports/data/transplant.csv")) == 7
    assert {path.stem for path in (run / "reports/figures").iterdir()} == {"training", "follows"}


def test_how_often_a_model_proposes_while_its_partner_tells_scores_and_after(run, page):
    table = pd.read_csv(run / "reports/data/stopping.csv").set_index(["player", "scores_left"])["proposes"]
    for player in ("base", "trained"):
        chose = {"none": [], "some": []}
        for episode in read_episodes(run / PLAYED / "held-out" / player):
            for own in episode.turns:
                if own.seat == AGENT and (told := re.search(r"Scores left: (\d+)", own.observation[-1].text)):
                    chose["none" if told[1] == "0" else "some"].append(own.text.startswith("[propose]"))
        assert chose["some"]
        for left, proposed in chose.items():
            share = sum(proposed) / len(proposed) if proposed else float("nan")  # it never came so far
            assert table[player, left] == pytest.approx(share, abs=1e-6, nan_ok=True), (player, left)
            assert not proposed or f"{share:.0%}" in page
    with Image.open(run / "reports/figures/training.png") as image:
        assert image.size[0] >= 4.5 * 300  # a column at 300 dots an inch


def test_the_short_report_has_verdict_and_table(run):
    text = (run / "reports/report.md").read_text()
    assert text.splitlines()[2].startswith("**Supported: ")
    assert re.search(r"^\| Trained model \| 0\.9\d\d \| ", text, flags=re.MULTILINE)
    assert re.search(r"asks more \+0\.\d", text)
    assert all((run / "reports" / name).exists() for name in re.findall(r"!\[.*?\]\((.*?)\)", text))


@pytest.mark.slow
def test_same_episodes_same_bytes_in_another_process(run, copy):
    command = [sys.executable, "-m", "stages.analyze"]
    done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    written = contents(run / "reports")
    assert {path.suffix for path in written} == {".html", ".json", ".csv", ".svg", ".png", ".md"}
    assert contents(copy / "reports") == written


def test_without_a_transplant_and_with_the_same_criteria_there_is_a_report_that_says_so(copy):
    shutil.rmtree(copy / PLAYED / "transplant")
    recorded = {"version": criteria().version, "sha256": criteria().sha256}
    (copy / PLAYED / CRITERIA).write_text(json.dumps(recorded))
    (copy / "data/rollouts/began.txt").write_text("2099-01-01T00:00:00+00:00\n")
    reports = report_on(copy, GAMES)
    page = (reports / "report.html").read_text()
    assert "studies.asking.transplant_games</code> is 0" in page
    assert "They were changed" not in page and "the run began <b>after</b>" in page
    metrics = json.loads((reports / "metrics.json").read_text())
    assert metrics["transplant"] is None and metrics["outcome"] == "supported"  # it asks more


def test_what_is_left_of_the_gain_in_other_words_is_of_the_same_boards(run, metrics, page):
    rewards = {}
    for model in ("base", "trained"):
        for series in ("transfer/wordings", "held-out"):
            played = read_episodes(run / PLAYED / series / model)
            rewards[series, model] = {episode.game_id: episode.rewards[AGENT] for episode in played}
    boards = rewards["transfer/wordings", "base"].keys()
    assert len(boards) == 20 < len(rewards["held-out", "base"])
    there, here = (
        sum(rewards[series, "trained"][b] - rewards[series, "base"][b] for b in boards)
        for series in ("transfer/wordings", "held-out")
    )
    assert metrics["transfer"]["gain_kept"] == pytest.approx(there / here, abs=1e-4)
    assert f"{there / here:.0%} of the gain of training is left" in page


def test_a_partner_that_never_tells_is_not_said_to_tell(copy, page):
    told = "The partner tells a score only when it is asked for it, and at most 1 to 5 a game."
    assert told in open_text(page)
    shutil.rmtree(copy / PLAYED / "transfer/ignorant")
    games = {"matching": {**GAMES["matching"], "seating": ["policy", "ignorant"]}}
    told_pointless = re.search(r"([\d.]+)% of the cells that the trained model asked for could not", open_text(page))[1]
    assert float(told_pointless) < 20
    text = open_text((report_on(copy, games) / "report.html").read_text())
    assert "100.0% of the cells that the trained model asked for could not" in text
    assert told not in text and "The partner never knows a score." in text
    assert "its partner sees" in open_text(page) and "its partner sees" not in text
    assert "Plain: neither does." in text
    assert "free but for using up the scores that the partner tells" in open_text(page)
    assert "A question is free, and its answer never has a score." in text


def test_a_model_that_asks_for_nothing_gets_no_sentence_about_its_cells(copy, page):
    about = "of the cells that the trained model asked for could not change"
    assert about in open_text(page)
    folder = copy / PLAYED / "held-out/trained"
    shutil.rmtree(folder)
    write(folder, play(game_of(patience=(1, 5), eval_count=120), "trained", Policy(0)))
    text = open_text((report_on(copy, GAMES) / "report.html").read_text())
    assert about not in text and " \u2013 of" not in text


def test_steps_without_anything_to_learn_from_are_counted(copy, page, metrics):
    idle = "of 5 steps the rewards of no board differed, so nothing was learnt."
    assert metrics["training"]["idle_steps"] == 5 and f"In 5 {idle}" in open_text(page)  # a made policy does not sample
    for step in (0, 2, 4):
        shard = copy / f"data/rollouts/step-{step}"
        episodes = list(read_episodes(shard))
        episodes[0].rewards[AGENT] -= 0.1
        shutil.rmtree(shard)
        write(shard, episodes)
    assert f"In 2 {idle}" in open_text((report_on(copy, GAMES) / "report.html").read_text())


def test_the_temperature_of_the_games_is_told_and_that_of_training_where_it_differs(copy, page):
    assert "boards that training has not seen, at temperature 1.0." in open_text(page)
    text = open_text((report_on(copy, GAMES, evaluate={"temperature": 0.5}) / "report.html").read_text())
    assert "boards that training has not seen, at temperature 0.5 (in training 1.0)." in text


def test_nasty_data_make_a_report_all_the_same(tmp_path):
    """Three episodes each, boards that nobody knows, a seat that earned nothing, a game of another kind, a run that goes
    on, nothing of the transplant, of transfer or of the optimal asker."""
    played, rollouts, game = tmp_path / PLAYED, tmp_path / "data/rollouts", game_of()
    for player in ("base", "trained", "bayes"):
        episodes = play(game_of(patience=(1, 5)), player, Policy(1), 3)
        for number, episode in enumerate(episodes):
            episode.game_id = f"board {number} of another time"
        write(played / "held-out" / player, episodes)
    write(played / "human-boards/humans", play(game, "humans", Policy(1), 1))
    some = play(game, "policy", Policy(1), 2, purpose="train")
    some[0].status, some[0].error, some[0].turns, some[0].rewards = "failed", "TimeoutError: no answer", [], {}
    write(rollouts / "step-0", some)
    [stranger] = play(game, "stranger", Policy(1), 1, step=1)
    stranger.rewards, stranger.metrics = {"somebody": 1.0}, {}
    stranger.turns, stranger.seating = [turn("somebody", "", "Hello?")], {"somebody": "stranger"}
    others = play(game, "policy", Policy(1), 9, step=2)
    for episode in others:
        episode.game = "another"
    write(rollouts / "step-1", [stranger, *others])
    (rollouts / "step-1/.00001.parquet.part").write_bytes(b"half a sh")
    reports = report_on(tmp_path, {"matching": {}})
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
    episodes = play(game_of(), "base", Policy(1), 5)
    for episode in episodes[:2]:
        episode.status, episode.error = "failed", "TimeoutError: no answer"
    write(tmp_path / "all", episodes[:2])
    with pytest.raises(UserError, match=r"All 2 episodes in .* failed, the first with 'TimeoutError: no answer'"):
        read_sample(tmp_path / "all", ("base",))
    write(tmp_path / "base", episodes)
    write_shard(tmp_path / "base/00001.parquet", play(game_of(), "base", Policy(1), 1))
    sample = read_sample(tmp_path / "base", ("base",))
    assert (len(sample.episodes), sample.failed) == (4, 1)


def test_the_seat_of_the_player_is_measured_wherever_it_sits(tmp_path):
    """Its own metrics, of each episode in the seat that it has there."""
    first, second, third = play(game_of(), "policy", Policy(4), 3)
    second.seating = {AGENT: "scripted", PARTNER: "policy"}
    second.metrics |= {f"{PARTNER}.cells_asked": 9, f"{PARTNER}.own_view": 0.3}
    second.rewards = {AGENT: 0.1, PARTNER: 0.6}
    third.seating = {AGENT: "policy", PARTNER: "policy"}
    write(tmp_path, [first, second, third])
    episodes = read_sample(tmp_path, ("policy",)).episodes
    assert list(episodes["seat"]) == [AGENT, PARTNER, AGENT]
    assert list(episodes["reward"]) == [first.rewards[AGENT], 0.6, third.rewards[AGENT]]
    assert list(episodes["own_view"])[1] == 0.3
    assert list(episodes["cells_asked"]) == [4, 9, 4]
