"""What a user can get wrong is told in one sentence: what, where, and what would be right."""

import json
import subprocess
import sys

import pytest
import yaml

from slim_rl.config import Config, MatchingConfig, load_config
from slim_rl.engines.local import LocalEngine
from slim_rl.engines.model import load_model
from slim_rl.errors import UserError
from slim_rl.games import read_games
from slim_rl.games.matching import generate_games, kind
from slim_rl.players.chat_format import qwen3_format
from slim_rl.seating import check_context
from slim_rl.training.checkpoint import save_model, work_folder
from slim_rl.training.warmstart import tiny_qwen

KIND = kind(Config())


def parameters(tmp_path, **sections):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


@pytest.mark.parametrize(
    ("section", "values", "sentence"),
    [
        (
            "train",
            {"learning_rat": 1},
            "there is no parameter train.learning_rat; is it learning_rate that was meant?",
        ),
        ("trian", {}, "there is no parameter trian; is it train that was meant?"),
        ("train", {"learning_rate": -1}, "train.learning_rate is -1: Input should be greater than 0"),
        ("board", {"size": 9}, "board.size is 9: Input should be less than or equal to 8"),
        ("board", {"scale_range": [5, 2]}, "scale_range must be two numbers with 1 <= low <= high"),
        (
            "train",
            {"filters": ["no_such"]},
            "train.filters.0 is 'no_such': Input should be 'no_failed_episode', 'reward_varies'",
        ),
        (
            "evaluate",
            {"references": ["asks-lots"]},
            "evaluate.references.0 is 'asks-lots': String should match pattern",
        ),
    ],
)
def test_wrong_parameters_are_named(tmp_path, section, values, sentence):
    with pytest.raises(UserError) as error:
        load_config(parameters(tmp_path, **{section: values}))
    assert sentence in str(error.value)
    assert "params.yaml" in str(error.value) and "\n" not in str(error.value)


def test_parameters_that_are_no_yaml(tmp_path):
    (tmp_path / "params.yaml").write_text("train: [1")
    with pytest.raises(UserError, match="is not valid YAML"):
        load_config(tmp_path / "params.yaml")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_config(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda game: "{not json", "line 2 is not a game"),
        (lambda game: json.dumps({"game_id": "x"}), "line 2 is not a game: game_state is missing"),
        (lambda game: json.dumps({**game, "game_state": {**game["game_state"], "mask1": [[1]]}}), "line 2"),
        (lambda game: json.dumps(game)[:-20], "line 2 is not a game"),
        (lambda game: "[1, 2]", "line 2 is not a game"),
        (
            lambda game: json.dumps({**game, "game_id": "matching-3-stakes-0-0"}),
            "line 2 .* stands in the file already",
        ),
        (
            lambda game: json.dumps({k: v for k, v in game.items() if k != "prompt"}),
            "line 2 .* prompt is missing",
        ),
    ],
)
def test_a_damaged_line_of_a_games_file_is_named(tmp_path, games, damage, reason):
    path = tmp_path / "games.jsonl"
    path.write_text("\n".join([json.dumps(games[0]), damage(games[1]), json.dumps(games[2])]))
    with pytest.raises(UserError, match=reason) as error:
        read_games(path, KIND)
    assert str(path) in str(error.value)


def test_an_empty_or_missing_set_of_games(tmp_path):
    (tmp_path / "games.jsonl").write_text("")
    with pytest.raises(UserError, match="is empty; at least one game is needed"):
        read_games(tmp_path / "games.jsonl", KIND)
    with pytest.raises(UserError, match="There is no games file"):
        read_games(tmp_path / "other.jsonl", KIND)


def test_a_checkpoint_without_a_tokenizer(tmp_path, model, tokenizer):
    save_model(tmp_path / "model", model, tokenizer)
    load_model(tmp_path / "model")
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        load_model(tmp_path / "model")


def test_a_checkpoint_that_is_none(tmp_path):
    with pytest.raises(UserError, match="nowhere is neither a folder nor a checkpoint"):
        load_model(tmp_path / "nowhere")


def test_a_game_too_long_for_the_models_context(tmp_path, tokenizer, chat_format, games):
    engine = LocalEngine(tiny_qwen(tokenizer, max_context_tokens=40, seed=0))
    config = load_config(parameters(tmp_path))
    with pytest.raises(UserError, match=r"matching-3-stakes-0-\d is too long .* context of 40 tokens"):
        check_context(engine.max_context_tokens, chat_format, games, config, kind(config))


def test_the_sentence_reaches_the_user_with_exit_code_1_and_nothing_is_written(tmp_path):
    parameters(tmp_path, board={"size": 99})
    (tmp_path / "stages").symlink_to(__file__.rsplit("/", 2)[0] + "/stages")
    done = subprocess.run(
        [sys.executable, "-m", "stages.games"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: params.yaml: board.size is 99: Input should be less than or equal to 8.\n"
    assert not (tmp_path / "data").exists()


def test_unfinished_work_belongs_to_its_inputs(tmp_path):
    (tmp_path / "input").write_text("one")
    first = work_folder(tmp_path / "work", {"a": 1}, tmp_path / "input")
    assert work_folder(tmp_path / "work", {"a": 1}, tmp_path / "input") == first
    (tmp_path / "input").write_text("two")
    second = work_folder(tmp_path / "work", {"a": 1}, tmp_path / "input")
    assert second != first and not first.exists()


def test_a_checkpoint_given_by_its_path_is_the_base_model(tmp_path, model, tokenizer, monkeypatch):
    from stages import base_model

    save_model(tmp_path / "mine", model, tokenizer)
    parameters(tmp_path, model={"base": str(tmp_path / "mine")})
    monkeypatch.chdir(tmp_path)
    base_model.main()
    loaded, _ = load_model(tmp_path / "models/base")
    assert all((a == b).all() for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_a_turn_too_short_for_a_proposal(tmp_path, engine, chat_format, games):
    config = load_config(parameters(tmp_path, model={"turn_tokens": 3}))
    with pytest.raises(UserError, match=r"model.turn_tokens is 3, but .*propose.* has \d+ tokens"):
        check_context(engine.max_context_tokens, chat_format, games, config, kind(config))


def test_a_model_that_the_local_engine_cannot_sample_from(model):
    model.config.model_type = "mamba"
    with pytest.raises(UserError, match="cannot sample from a 'mamba' model"):
        LocalEngine(model)


def test_a_tokenizer_without_chat_markers(tokenizer):
    class Plain:
        def get_vocab(self):
            return {"a": 0}

    with pytest.raises(UserError, match="does not have Qwen's chat markers"):
        qwen3_format(Plain(), thinking=False)


def test_boards_that_cannot_be_had():
    with pytest.raises(UserError, match=r"lower board\.stake"):
        next(generate_games(1, 0, MatchingConfig(stake=6)))
