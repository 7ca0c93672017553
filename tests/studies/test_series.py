"""Checkpoints as an evaluation plays them: in this process, or in a server that speaks SGLang's interface."""

import asyncio
import json
import shutil
import sys
from contextlib import chdir, contextmanager, nullcontext

import pytest
import yaml

from slim_rl.analysis.comparison import grouped
from slim_rl.config import checked
from slim_rl.engines import sglang
from slim_rl.evaluation.config import EvaluateConfig
from slim_rl.evaluation.series import Models, rounds
from slim_rl.players.config import ModelConfig
from slim_rl.rollout.collect import collect
from slim_rl.rollout.shards import read_frame
from slim_rl.rollout.store import Store
from slim_rl.training.checkpoint import save_model
from slim_rl.training.tiny import tiny_qwen
from stages import analyze, compare, evaluate, games
from tests.studies.runs import ECHO, evaluation, solved, write
from tests.workspaces import ROOT

SERVER = f"{sys.executable} {ROOT}/tests/sglang_server.py --model {{model}} --port {{port}}"


@pytest.mark.slow
def test_through_a_server_as_in_this_process(model, tokenizer, matching, tasks, tmp_path):
    save_model(tmp_path / "model", model, tokenizer)

    async def play(name, server):
        checkpoints = {"trained": tmp_path / "model"}
        run = evaluation(matching, None, tasks, tmp_path, checkpoints, temperature=0.0, server=server)
        series = run.series(f"{name}/trained", tasks, ("trained", "scripted"))
        async with run.models:
            return await collect(series.requests(), (await series.seating()).play, Store(series.folder), concurrency=8)

    for here, there in zip(asyncio.run(play("here", None)), asyncio.run(play("there", SERVER)), strict=True):
        assert here.turns == there.turns and here.rewards == there.rewards


def test_a_series_is_played_in_a_later_round_than_those_it_comes_after(matching, tasks):
    run = evaluation(matching)
    first, last = run.series("a/x", tasks, ()), run.series("b/y", tasks, (), after=("a/x", "c/z"))
    other = run.series("c/z", tasks, (), after=("a/x",))
    names = [list(one) for one in rounds({"g/a/x": first, "h/a/x": first, "g/c/z": other, "g/b/y": last})]
    assert names == [["g/a/x", "h/a/x"], ["g/c/z"], ["g/b/y"]]


def test_one_server_at_a_time_and_none_at_the_end(model, tokenizer, tmp_path, monkeypatch):
    events = []

    @contextmanager
    def serving(command, checkpoint):
        events.append(f"start {checkpoint.name}")
        yield "http://127.0.0.1:1"
        events.append(f"stop {checkpoint.name}")

    async def close(engine):
        events.append("close")

    monkeypatch.setattr(sglang, "serving", serving)
    monkeypatch.setattr(sglang.SGLangEngine, "close", close)
    for name in ("base", "trained"):
        save_model(tmp_path / name, model, tokenizer)

    async def load():
        async with Models(EvaluateConfig(server="serve {model} {port}"), ModelConfig(), None) as models:
            for name in ("base", "base", "trained"):
                models.load(tmp_path / name)

    asyncio.run(load())
    assert events == ["start base", "stop base", "start trained", *["close"] * 3, "stop trained"]


@pytest.mark.parametrize(("backend", "expected"), [("local", 2048), ("slime", 512)])
def test_on_a_server_a_model_trained_here_has_its_own_context(tokenizer, tmp_path, monkeypatch, backend, expected):
    monkeypatch.setattr(sglang, "serving", lambda command, checkpoint: nullcontext("http://127.0.0.1:1"))
    save_model(tmp_path, tiny_qwen(tokenizer, max_context_tokens=2048, seed=0), tokenizer)
    given = {"model": {"base": str(tmp_path)}, "train": {"backend": backend}, "games": {"kuhn": {}}}
    config = checked({**given, "evaluate": {"server": "serve {model} {port}"}}, "the test")
    engine, _ = Models(config.evaluate, config.model, config.context_limit).load(tmp_path)
    assert engine.max_context_tokens == expected


@pytest.fixture(scope="module")
def two_games(tmp_path_factory, tokenizer):
    """A folder in which two games, each with its own study, were evaluated and reported on."""
    folder = tmp_path_factory.mktemp("two")
    model = tiny_qwen(tokenizer, max_context_tokens=2048, seed=0)
    for name in ("base", "trained"):
        save_model(folder / "models" / name, model, tokenizer)
    parameters = {
        "cores": 1,
        "games": {
            "kuhn": {"seating": ["policy", "policy"], "train_count": 3, "eval_count": 3},
            ECHO: {"max_turns": 2, "train_count": 4, "eval_count": 4},
        },
        "model": {"turn_tokens": 16, "context_tokens": 2048},
        "studies": {"accuracy": {"samples": 2}, "matches": {"opponents": ["random"]}},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(parameters))
    write(folder / "data/rollouts/echo", solved("policy", [1] * 4, 2, 0, "train/0"))
    with chdir(folder):
        games.main()
        evaluate.main()
        analyze.main()
    return folder


@pytest.mark.slow
def test_each_game_is_played_as_its_study_says(two_games):
    episodes = two_games / "data/episodes"
    series = sorted(str(path.relative_to(episodes)) for path in episodes.glob("*/*/*"))
    pairs = ["base-against-random", "base-against-trained", "random-against-base"]
    pairs += ["random-against-trained", "trained-against-base", "trained-against-random"]
    solved = [f"{ECHO}/held-out/{model}" for model in ("base", "trained")]
    assert series == sorted([*(f"kuhn/matches/{pair}" for pair in pairs), *solved])
    assert (episodes / "kuhn/solved.json").exists()
    frame = read_frame(episodes / ECHO)
    assert set(frame["episode_id"]) >= {
        f"held-out/base/echo-evaluate-{n}#{sample}" for n in range(4) for sample in (0, 1)
    }
    assert len(frame) == 2 * 4 * 2 and set(frame["seat.solver"]) == {"base", "trained"}
    seats = read_frame(episodes / "kuhn/matches/random-against-trained")
    first, second = (column for column in seats if column.startswith("seat."))
    assert set(seats[first]) == {"random"} and set(seats[second]) == {"trained"} and set(seats["series"]) == {"matches"}


@pytest.mark.slow
def test_each_game_has_its_report_and_one_page_links_them(two_games):
    metrics = json.loads((two_games / "reports/metrics.json").read_text())
    assert set(metrics) == {"kuhn", ECHO}
    assert (metrics["kuhn"]["study"], metrics[ECHO]["study"]) == ("matches", "accuracy")
    page = (two_games / "reports/report.html").read_text()
    for game in metrics:
        assert f'<a href="data/{game}/report.html">{game}</a>' in page and metrics[game]["verdict"] in page
        folder = two_games / "reports/data" / game
        assert metrics[game]["verdict"] in (folder / "report.html").read_text()
    assert (two_games / "reports/figures").is_dir()


@pytest.mark.slow
def test_runs_of_several_games_are_compared_game_by_game(two_games):
    settings = yaml.safe_dump({"seed": 0, "games": {"kuhn": {"eval_count": 3}}})
    found = list(
        compare.runs("two", lambda path: settings if path.suffix == ".yaml" else (two_games / path).read_text())
    )
    assert [(run.game, run.study) for run in found] == [("kuhn", "matches"), (ECHO, "accuracy")]
    assert found[1].metrics["base.episodes"] == 8
    assert [group.label for group in grouped(found, compare.compared)] == ["kuhn", ECHO]


@pytest.mark.slow
def test_what_was_played_is_not_played_again(two_games, monkeypatch):
    """DVC removes the outputs of a stage before it runs it again."""
    before = {path: path.read_bytes() for path in (two_games / "data/episodes").rglob("*.parquet")}
    shutil.rmtree(two_games / "data/episodes")
    shards = {path: path.stat().st_mtime_ns for path in (two_games / ".work").rglob("*.parquet")}
    monkeypatch.setattr(Models, "load", lambda *_: pytest.fail("a model is loaded though nothing is left to play"))
    with chdir(two_games):
        evaluate.main()
    assert {path: path.read_bytes() for path in before} == before
    assert {path: path.stat().st_mtime_ns for path in (two_games / ".work").rglob("*.parquet")} == shards
