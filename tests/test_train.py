"""The stage `train` checks first and writes later."""

import json
from pathlib import Path

import pytest
import yaml

from slim_rl.core.errors import UserError
from slim_rl.engines.model import load_model
from slim_rl.rollout.shards import read_episodes
from slim_rl.training.checkpoint import save_model
from stages.analyze import training_time
from stages.dependencies import parameters_of_the_run
from tests.settings import merged, miniature

LAST = Path("reports/training/metrics.json")


@pytest.fixture
def ready(tmp_path, monkeypatch, model, tokenizer, run_stage):
    """A folder in which `train` can start, with the curves of an earlier run; ready(...) changes its parameters."""
    monkeypatch.chdir(tmp_path)
    save_model(Path("models/base"), model, tokenizer)
    LAST.parent.mkdir(parents=True)
    LAST.write_text("an earlier run")

    def write(**changes):
        parameters = merged(miniature(cores=1, train={"steps": 1}), changes)
        Path("params.yaml").write_text(yaml.safe_dump(parameters))

    write()
    run_stage("games")
    return write


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"games": {"matching": {"seating": ["policy", "checkpoint:nowhere"]}}}, "nowhere is neither a folder"),
        ({"model": {"turn_tokens": 3}}, "model.turn_tokens is 3, but"),
        ({"train": {"advantage": "no_such_module:f"}}, "There is no module 'no_such_module'"),
        ({"train": {"filters": [f"{__name__}:no_such"]}}, "has no function 'no_such'"),
        ({"train": {"learning_rate": 1e300}}, "train.learning_rate is 1e.300: Input should be less than"),
    ],
)
def test_an_error_leaves_the_results_of_the_last_run(ready, run_stage, changes, sentence):
    ready(**changes)
    with pytest.raises(UserError, match=sentence):
        run_stage("train")
    assert LAST.read_text() == "an earlier run"
    assert not Path("data/rollouts").exists() and not Path("models/trained").exists()


def test_a_missing_base_model_leaves_the_results_of_the_last_run(ready, run_stage):
    Path("models/base").rename("models/other")
    with pytest.raises(UserError, match="models/base"):
        run_stage("train")
    assert LAST.read_text() == "an earlier run"


def test_a_run_replaces_the_results_of_the_last_one(ready, run_stage):
    run_stage("train")
    metrics = json.loads(LAST.read_text())
    assert metrics["step"] == 0 and 0 <= metrics["env"]["matching"]["reward"] <= 1
    assert Path("reports/training/plots/metrics/env/matching/reward.tsv").exists()
    assert len(list(read_episodes(Path("data/rollouts")))) == 4
    assert not Path("data/rollouts/bills.json").exists()
    run_stage("train")  # everything is there: nothing is played again, and the results are the same
    assert json.loads(LAST.read_text()) == metrics


def test_a_larger_limit_of_the_log_probs_gap_goes_on_from_the_work_that_there_is(ready, run_stage):
    ready(train={"max_logprob_gap": 1e-30})
    with pytest.raises(UserError, match=r"more than train\.max_logprob_gap"):
        run_stage("train")
    [folder] = Path(".work/train").iterdir()
    ready(train={"max_logprob_gap": 1.0})
    run_stage("train")
    assert [folder] == list(Path(".work/train").iterdir())


@pytest.mark.slow
def test_a_run_that_diverges_stops_in_a_sentence_and_goes_on_with_a_smaller_rate(ready, run_stage):
    own = {"steps": 4, "advantage": "tests.training.estimators:exploding"}
    ready(games={"matching": {"max_turns": 2}}, train={**own, "learning_rate": 10})
    for _ in range(2):  # at the same step again
        with pytest.raises(UserError, match=r"^Step 3 of the training ended: .* smaller than 10 goes on from it"):
            run_stage("train")
        assert not Path("models/trained").exists()
    [first] = Path(".work/train").rglob("rollouts/step-00000")
    played = {path.name: path.read_bytes() for path in first.rglob("*.parquet")}
    ready(games={"matching": {"max_turns": 2}}, train={**own, "learning_rate": 1e-6})
    run_stage("train")
    published = Path("data/rollouts")
    assert {path.name: path.read_bytes() for path in published.rglob("step-00000/**/*.parquet")} == played
    assert sorted({episode.step for episode in read_episodes(published)}) == [0, 1, 2, 3]
    assert all(weight.isfinite().all() for weight in load_model("models/trained")[0].parameters())
    assert training_time(parameters_of_the_run()).endswith(
        "Steps 1 to 2 were trained at the learning rate 10, which diverged later."
    )
