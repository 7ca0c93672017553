"""What a user can get wrong is told in one sentence: what, where, and what would be right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slim_rl.config import load_config
from slim_rl.core.errors import UserError
from tests.settings import miniature

ROOT = Path(__file__).parents[1]


def parameters(tmp_path, **sections):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"games": {"matching": {}}, **sections}))
    return path


@pytest.mark.parametrize(
    ("section", "values", "sentence"),
    [
        ("train", {"learning_rat": 1}, "there is no parameter train.learning_rat; did you mean learning_rate?"),
        ("trian", {}, "there is no parameter trian; did you mean train?"),
        ("train", {"learning_rate": -1}, "train.learning_rate is -1: Input should be greater than 0"),
        ("games", {"matching": {"size": 9}}, "games.matching.size is 9: Input should be less than or equal to 8"),
        ("games", {"matching": {"sise": 3}}, "there is no parameter games.matching.sise; did you mean size?"),
        ("games", {"matching": {"scale_range": [5, 2]}}, "scale_range must be two numbers with 1 <= low <= high"),
        (
            "games",
            {"matching": {"seating": ["scripted", "policy"]}},
            "seating must begin with policy, whose questions are judged",
        ),
        ("games", {"mathcing": {}}, "there is no game 'mathcing'; name one of agent, calculator, execution, kuhn"),
        ("games", {"matching": {"seating": ["scripted"]}}, "one of seating must be policy"),
        (
            "games",
            {"matching": {"seating": ["policy", "service:partner"]}},
            "games.matching.seating has service:partner, but services has no partner; describe it there",
        ),
        (
            "evaluate",
            {
                "every_steps": 1,
                "benchmarks": {"b": {"game": "matching", "parameters": {"seating": ["policy", "service:gpt"]}}},
            },
            "evaluate.benchmarks.b.parameters.seating has service:gpt, but services has no gpt; describe it there",
        ),
        ("train", {"filters": ["no_such"]}, "train.filters is 'no_such'; name one of reward_varies, no_failed"),
        ("train", {"samples_per_game": 1}, "with train.samples_per_game 1 a group has nothing to compare"),
        ("studies", {"asking": {"references": ["asks-lots"]}}, "studies.asking.references.0 is 'asks-lots'"),
        ("studies", {"askign": {}}, "there is no study 'askign'"),
        (
            "studies",
            {"nope.x": {}},
            "there is no study 'nope.x'; name one of accuracy, asking, calls, matches, or the import",
        ),
        ("train", {"steps": True}, "steps is True, but must be a number"),
        ("games", {"matching": {"patience": [1, True]}}, "patience is [1, True], but must be a number"),
        ("train", {"filters": ["x" * 3000]}, "train.filters is 'xxx"),
        ("studies", {"json": {}}, "Python finds no module 'json.parameters'"),
        ("games", {"nope.x:y": {}}, "there is no game 'nope.x'; name one of agent, calculator, execution, kuhn"),
        ("games", {"json": {}}, "the module json is not a game: it has no Parameters and no taskset"),
        ("games", {"..x": {}}, "there is no game '..x'"),
    ],
)
def test_wrong_parameters_are_named(tmp_path, section, values, sentence):
    with pytest.raises(UserError) as error:
        load_config(parameters(tmp_path, **{section: values}))
    assert sentence in str(error.value)
    assert "params.yaml" in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 1500


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train: [1", "is not valid YAML"),
        ("train: " + "[" * 2000, "is nested too deeply to be read|is not valid YAML"),
        ("seed: " + "9" * 5000, "cannot be read"),
        ("", "games is .*Field required"),
    ],
)
def test_parameters_that_cannot_be_read(tmp_path, text, sentence):
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence) as error:
        load_config(tmp_path / "params.yaml")
    assert len(str(error.value)) < 500
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_config(tmp_path / "nothing.yaml")


def test_the_sentence_reaches_the_user_with_exit_code_1_and_nothing_is_written(tmp_path):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(miniature(games={"matching": {"size": 99}})))
    done = subprocess.run(
        [sys.executable, "-m", "stages.games"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("error: params.yaml: games.matching.size is 99: Input should be less than or equal to 8.\n")
    assert not (tmp_path / "data").exists()
