"""Benchmarks during training: when they are played, what is logged, and the same curve after a kill."""

import copy
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from slim_rl.config import Config
from slim_rl.core.episode import Episode
from slim_rl.core.errors import UserError
from slim_rl.rollout.seating import PolicyRules
from slim_rl.rollout.shards import read_episodes
from slim_rl.training.benchmarks import Benchmarks, scores
from slim_rl.training.checkpoint import save_model
from slim_rl.training.config import BenchmarkConfig, TrainConfig
from stages.train import wandb_curves
from tests.settings import merged, setting, tiny
from tests.training.short import local, same_weights, train

CONFIG = TrainConfig(steps=4, games_per_step=2, samples_per_game=2, filters=(), learning_rate=1e-3, advantage="role")
PLAYED = {"seating": ["policy", "random"], "max_turns": 4}
BENCHMARK = {"game": "tictactoe", "parameters": PLAYED, "tasks": 3, "samples": 2}


def trained(model, folder, every_steps=2):
    """The log of a run with a benchmark of another game than it is trained on."""
    played = {"held": BenchmarkConfig.model_validate(BENCHMARK)}
    rules = partial(PolicyRules, setting("kuhn").renderer, 8)
    benchmarks = Benchmarks(played, every_steps, 0, rules, {}, 16, folder / "benchmarks")
    return train(CONFIG, local(CONFIG, model), folder, benchmarks=benchmarks)


@pytest.fixture(scope="module")
def whole(taught, tmp_path_factory):
    """The folder, log and model of a run that nothing interrupted."""
    folder, model = tmp_path_factory.mktemp("whole"), copy.deepcopy(taught)
    return folder, trained(model, folder), model


def held(log):
    return {step: {k: v for k, v in metrics.items() if k.startswith("held/")} for step, metrics in enumerate(log)}


def test_they_are_played_first_at_intervals_and_last(whole):
    folder, log, _ = whole
    assert [step for step, found in held(log).items() if found] == [0, 2, 4]
    assert len(log) == 5 and set(log[4]) == set(held(log)[4]) and "reward" in log[3]
    assert {"held/pass_rate", "held/pass_rate_low", "held/problems_passed", "held/pass_at_2"} <= set(log[0])
    folders = sorted(folder.glob("benchmarks/held/*"))
    assert [folder.name for folder in folders] == ["step-00000", "step-00002", "step-00004"]
    played = list(read_episodes(folders[0]))
    assert {episode.game for episode in played} == {"tictactoe"} and len(played) == 6
    assert len({episode.game_id for episode in played}) == 3
    assert not any(episode.traces for episode in played), "what is not trained on needs no tokens"


def test_a_killed_run_has_the_same_curve(taught, whole, tmp_path, killed):
    with killed("benchmark"):
        trained(copy.deepcopy(taught), tmp_path)
    for when in ("after a kill", "once it is finished"):
        assert held(trained(copy.deepcopy(taught), tmp_path)) == held(whole[1]), when


def test_benchmarks_change_nothing_of_the_training(taught, whole, tmp_path):
    model = copy.deepcopy(taught)
    trained(model, tmp_path, every_steps=4)
    assert same_weights(model, whole[2])


def test_scores():
    def of(task, *rewards):
        return [Episode("e", f"t{task}", rewards={"a": r, "b": -r} if r is not None else {}) for r in rewards]

    found = scores(of(0, 1, 0, 0, 0) + of(1, 1, 1, 1, 1) + of(2, 0, 0, None, 0) + of(3, 0, 0, 0, 0), {"a"}, 1.0)
    assert found["pass_rate"] == pytest.approx((0.25 + 1) / 4)
    assert (found["pass_at_1"], found["pass_at_2"]) == pytest.approx((0.3125, (0.5 + 1) / 4))
    assert "pass_at_4" not in found and (found["problems"], found["problems_passed"], found["failed"]) == (4, 2, 1)
    assert 0 < found["pass_rate_low"] < found["pass_rate"] < found["pass_rate_high"] < 1
    assert found["reward"] == pytest.approx((0.25 + 1) / 4)
    wilson = scores([e for n in range(263) for e in of(n, int(n < 81))], {"a"}, 1.0)
    assert (wilson["pass_rate_low"], wilson["pass_rate_high"]) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert scores(of(0, None), {"a"}, 1.0) == {"failed": 1.0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evaluate": {"every_steps": 2}}, "is the interval of evaluate.benchmarks; give both or neither"),
        ({"evaluate": {"benchmarks": {"b": BENCHMARK}}}, "give both or neither"),
        ({"evaluate": {"every_steps": 2, "benchmarks": {"b": {"game": "khun"}}}}, "there is no game 'khun'"),
        ({"evaluate": {"every_steps": 2, "benchmarks": {"b": BENCHMARK}}, "train": {"backend": "slime"}},
         "evaluate.every_steps needs train.backend: local"),
        *(({"train": {"backend": "slime", **train}}, rf"train\.{next(iter(train))}.* needs train\.backend: local")
          for train in ({"optimizer": "muon"}, {"averaging_decay": 0.9})),
    ],
)  # fmt: skip
def test_what_the_parameters_do_not_allow(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config.model_validate(merged({"games": {"kuhn": {"seating": ["policy", "policy"]}}}, changes))


def test_the_stage_logs_them(tmp_path, monkeypatch, taught, run_stage):
    monkeypatch.chdir(tmp_path)
    save_model(Path("models/base"), taught, setting("kuhn").tokenizer)
    benchmark = {"game": "kuhn", "parameters": {"seating": ["random", "policy"]}, "tasks": 2}
    parameters = tiny("kuhn", train={"steps": 2}, evaluate={"every_steps": 1, "benchmarks": {"kuhn_eval": benchmark}})
    Path("params.yaml").write_text(yaml.safe_dump(parameters))
    for stage in ("games", "train"):
        run_stage(stage)
    metrics = json.loads(Path("reports/training/metrics.json").read_text())
    assert metrics["step"] == 2 and 0 <= metrics["kuhn_eval"]["pass_rate"] <= 1
    rates = Path("reports/training/plots/metrics/kuhn_eval/pass_rate.tsv").read_text().splitlines()
    assert [line.split()[0] for line in rates[1:]] == ["0", "1", "2"]
    assert Path("reports/training/plots/metrics/reward.tsv").exists()


class Wandb(SimpleNamespace):
    """Stands in for the package, and for its runs."""

    def init(self, **options):
        self.opened.append(options)
        return self

    def log(self, metrics, step):
        self.logged.append((step, metrics))

    def __enter__(self):
        return self

    def __exit__(self, *error): ...


def test_weights_and_biases_gets_the_same_curves(tmp_path, monkeypatch):
    fake = Wandb(opened=[], logged=[])
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with wandb_curves("mine", tmp_path) as log:
        log({"reward": 1.0})
        log({"loss": 2.0})
    assert fake.logged == [(0, {"reward": 1.0}), (1, {"loss": 2.0})]
    assert fake.opened == [{"project": "mine", "id": tmp_path.name, "dir": str(tmp_path), "resume": "allow"}]
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused = pytest.raises(UserError, match=r"train\.wandb_project needs the package wandb")
    with refused, wandb_curves("mine", tmp_path):
        pass
    with wandb_curves(None, tmp_path) as log:
        log({})
