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
import yaml
from huggingface_hub import ModelCard
from PIL import Image

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.players.config import ModelConfig
from slim_rl.rollout.shards import read_episodes, write_shard
from slim_rl.studies.asking.boards import sample_of_dialogues, typical_board
from slim_rl.studies.asking.measures import read_sample
from stages.card import model_card
from tests.studies.asking.made import AGENT, GAMES, PARTNER, Policy, game_of, play, sample, samples, turn, write
from tests.studies.runs import report_on

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PLAYED = Path("data/episodes/matching")
GOLDEN = Path(__file__).with_name("golden.txt")


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


def test_the_page_reads_as_it_did(page):
    """What a reader sees before opening anything. Where a change is meant, remove golden.txt and run this test."""
    text = re.sub(r"<(head|style|script|svg|noscript|form)\b.*?</\1>", " ", page, flags=re.DOTALL)
    text = re.sub(r"<details.*?<summary>(.*?)</summary>.*?</details>", r" \1 ", text, flags=re.DOTALL)
    blocks = re.split(r"</(?:p|li|h\d|dt|dd|tr|div|figcaption)>", text)
    lines = (" ".join(html.unescape(re.sub(r"<[^>]+>", " ", block)).split()) for block in blocks)
    shown = "".join(f"{line}\n" for line in lines if line)
    if not GOLDEN.exists():
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()
    assert len(shown.split()) <= 1200


def test_the_board_that_is_drawn_is_typical_in_its_questions_too(tmp_path):
    """Most dialogues in which nobody asks have a gain near the mean as well; they show nothing of what was learnt."""
    players = {"base": Policy(0.3, careless=0.3), "trained": Policy(2.5, careless=0.3)}
    held_out = samples(tmp_path, game_of(patience=(2, 5)), players)
    asked = [one.episodes.set_index("game_id")["question_count"] for one in held_out.values()]
    board = typical_board(held_out)
    assert asked[1][board] - asked[0][board] == round(asked[1].mean() - asked[0].mean()) == 2


def test_a_board_is_drawn_whose_first_attempt_failed(tmp_path):
    """Both attempts stand in one shard, where few boards are played."""
    game, held_out = game_of(), {}
    for name, policy in (("base", Policy(1)), ("trained", Policy(4))):
        [played] = play(game, name, policy, 1)
        failed = replace(played, status="failed", error="TimeoutError: no answer", turns=[], rewards={})
        held_out[name] = sample(tmp_path / name, game, name, [failed, played], chosen=False)
    shown = json.loads(sample_of_dialogues(held_out, None, held_out["base"]))["episodes"]
    assert [len(episode["extra"]["asked"]) for episode in shown[:2]] == [1, 4] and shown[0]["turns"]


def test_the_report_needs_nothing_else_and_every_figure_is_described(page):
    assert all(source.startswith(("data:", "#")) for source in re.findall(r'<\w[^>]*? (?:src|href)="([^"]*)"', page))
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == 3
    for figure in figures:
        assert re.search(r'<svg role="img" aria-label="[^"]{40,}"', figure)
        assert re.search(r"<figcaption>[^<]{80,}", figure)
        assert "reports/data/" in figure
    assert "prefers-color-scheme: dark" in page and "@media print" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_metrics(metrics):
    assert metrics["outcome"] == "supported" and metrics["verdict"].startswith("Supported: ")
    assert metrics["comparison"]["games"] == 120
    base, trained, best = metrics["base"], metrics["trained"], metrics["optimal"]
    assert base["question_count"] == 1 and 2.5 < trained["question_count"] < 3.5  # the patience is 1 to 5, 3 on average
    assert base["rank"] == pytest.approx(0.5, abs=0.1) and trained["rank"] > 0.7
    assert trained["reward_low"] < trained["reward"] < trained["reward_high"]
    assert metrics["comparison"]["regret"] == pytest.approx(best["reward"] - trained["reward"], abs=1e-4)
    assert metrics["follows"]["patience"]["trained"] > 0.9 and metrics["follows"]["patience"]["base"] is None
    assert metrics["transfer"]["ignorant"]["trained"]["reward"] == pytest.approx(
        metrics["transfer"]["ignorant"]["trained"]["own_view"], abs=1e-6
    )
    assert metrics["training"]["step"] == 4
    assert {"humans", "bayes"} == metrics["human_boards"].keys()


def test_the_card_of_the_model_has_what_the_hub_reads(run, metrics, tmp_path):
    card = ModelCard.load(run / "reports/model-card.md")
    [result] = card.data.eval_results
    assert result.metric_value == round(metrics["trained"]["reward"], 4) and card.data.library_name == "transformers"
    assert card.data.base_model is None and "made from scratch" in card.text, "tiny is no model of the hub"
    assert metrics["verdict"] in card.text and f"| base | {metrics['base']['reward']:.3f} | " in card.text
    named = Config(model={"base": "Qwen/Qwen3-0.6B"}, games=GAMES)
    assert "\nbase_model: Qwen/Qwen3-0.6B\n" in model_card(named, {"matching": metrics}, "")
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    own = model_card(named.model_copy(update={"model": ModelConfig(base=str(tmp_path))}), {"matching": metrics}, "")
    assert "\nlicense: apache-2.0\n" in own and "its licence, apache-2.0, holds" in own
    assert yaml.safe_load(own.split("```yaml")[1].split("```")[0])["model"] == {"base": str(tmp_path)}


@pytest.mark.parametrize("front_matter", ["license: [", "- mit", "1: 2", "license: \a"])
def test_a_base_model_whose_own_card_cannot_be_read_has_no_known_licence(tmp_path, front_matter):
    (tmp_path / "README.md").write_text(f"---\n{front_matter}\n---\n")
    own = model_card(Config(model={"base": str(tmp_path)}, games=GAMES), {}, "")
    assert "\nlicense: " not in own and "; its licence holds for this model, too" in own


def test_a_gguf_file_that_this_environment_cannot_read_has_no_known_licence(tmp_path, monkeypatch):
    """As after `make` has made `.venv` anew, without the extra `gguf`."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    for name in ("mine.gguf", "gone.gguf"):
        (tmp_path / "mine.gguf").touch()
        own = model_card(Config(model={"base": str(tmp_path / name)}, games=GAMES), {}, "")
        assert f"{name}; its licence holds" in own and "\nbase_model: " not in own, "a file is no model of the hub"


def test_everything_is_there_as_a_table_and_a_figure_for_print(run):
    curves = pd.read_csv(run / "reports/data/training.csv")
    assert list(curves["step"]) == list(range(5))
    assert curves["useful_cells"].is_monotonic_increasing
    players = pd.read_csv(run / "reports/data/players.csv").set_index("player")
    assert players.loc["trained", "rank"] > 0.7
    follows = pd.read_csv(run / "reports/data/follows.csv")
    boards = read_sample(run / PLAYED / "held-out/trained", ("trained",)).episodes["unknown_cells"].value_counts()
    drawn = set(follows.loc[follows["varied"] == "unknown_cells", "at"])
    assert drawn == set(boards.index[boards >= 10]) < set(boards.index)  # a few boards are no mean
    assert set(follows["player"]) == {"base", "trained", "optimal"} and set(follows["varied"]) == {
        "patience",
        "unknown_cells",
    }
    assert len(pd.read_csv(run / "reports/data/transplant.csv")) == 8
    assert {path.stem for path in (run / "reports/figures").iterdir()} == {"training", "follows", "question-reward"}
    with Image.open(run / "reports/print/training.png") as image:
        assert image.size[0] >= 4.5 * 300  # a column at 300 dots an inch


@pytest.mark.slow
def test_same_episodes_same_bytes_in_another_process(run, copy):
    command = [sys.executable, "-m", "stages.analyze"]
    done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    written = contents(run / "reports")
    assert {path.suffix for path in written} == {".html", ".json", ".csv", ".svg", ".png", ".md"}
    assert contents(copy / "reports") == written


def test_a_run_without_a_transplant_of_which_two_steps_had_nothing_to_learn_from(copy, metrics):
    shutil.rmtree(copy / PLAYED / "transplant")
    (copy / "data/rollouts/began.txt").write_text("2099-01-01T00:00:00+00:00\n")
    assert metrics["training"]["idle_steps"] == 5  # a made policy does not sample
    for step in (0, 2, 4):
        shard = copy / f"data/rollouts/step-{step}"
        episodes = list(read_episodes(shard))
        episodes[0].rewards[AGENT] -= 0.1
        shutil.rmtree(shard)
        write(shard, episodes)
    reports = report_on(copy, GAMES)
    assert "the run began <b>after</b>" in (reports / "report.html").read_text()
    found = json.loads((reports / "metrics.json").read_text())
    assert found["training"]["idle_steps"] == 2
    assert found["transplant"] is None and found["outcome"] == "supported", "asking more is the criterion then"


def test_what_is_left_of_the_gain_in_other_words_is_of_the_same_boards(run, metrics):
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


@pytest.mark.parametrize(
    ("game", "more"),
    [
        ({"seating": ["policy", "ignorant"]}, {}),
        (
            {"patience": None, "question_price": [1, 6], "p_rough": 0.5, "p_partner": 1},
            {"evaluate": {"temperature": 0.5}},
        ),
        ({"patience": None}, {"model": {"base": "Qwen/Qwen3-0.6B"}}),
    ],
)
def test_pages_of_other_games_and_of_a_model_that_asks_for_nothing(copy, game, more):
    for left_out in ("transfer", "held-out/trained"):
        shutil.rmtree(copy / PLAYED / left_out)
    write(copy / PLAYED / "held-out/trained", play(game_of(patience=(1, 5), eval_count=120), "trained", Policy(0)))
    page = (report_on(copy, {"matching": {**GAMES["matching"], **game}}, **more) / "report.html").read_text()
    assert not re.search(
        r"\bnan\b|\bNone\b", re.sub(r"<details.*</details>|<script.*</script>", "", page, flags=re.DOTALL)
    )


def test_nasty_data_make_a_report_all_the_same(tmp_path):
    """Three episodes each, boards that nobody knows, a seat that earned nothing, a game of another kind, a run that goes
    on, nothing of the transplant, of transfer or of the two-step asker."""
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
    assert "Training played 2 episodes" in page
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
    second.metrics |= {f"{PARTNER}.question_count": 9, f"{PARTNER}.own_view": 0.3}
    second.rewards = {AGENT: 0.1, PARTNER: 0.6}
    third.seating = {AGENT: "policy", PARTNER: "policy"}
    write(tmp_path, [first, second, third])
    episodes = read_sample(tmp_path, ("policy",)).episodes
    assert list(episodes["seat"]) == [AGENT, PARTNER, AGENT]
    assert list(episodes["reward"]) == [first.rewards[AGENT], 0.6, third.rewards[AGENT]]
    assert list(episodes["own_view"])[1] == 0.3
    assert list(episodes["question_count"]) == [4, 9, 4]
