"""The game of docs/write-a-game.md, outside of the repository. `test_package` takes it through all stages."""

import re
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config
from slim_rl.core.errors import UserError

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/write-a-game.md").read_text(encoding="utf-8")
TINY = {
    "cores": 1,
    "model": {"layers": 1, "hidden_size": 32, "context_tokens": 512, "turn_tokens": 32},
    "warmstart": {"demonstrations": 96, "batch": 8, "warmup_steps": 2},
    "train": {"steps": 2, "games_per_step": 4, "samples_per_game": 4, "filters": ["no_failed_episode"]},
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A folder outside of the repository that holds the guide's module and is on Python's path."""
    (tmp_path / "guess.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_module_has_at_most_60_lines_and_the_parameters_are_valid(workspace):
    assert len(blocks("python")[0].splitlines()) <= 60
    assert "guess" in Config.model_validate(yaml.safe_load(blocks("yaml")[0])).games


def test_the_guide_s_player_is_asked_for_each_turn(workspace, monkeypatch, capsys):
    answers = iter(["none", "3", "7"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    exec(blocks("python")[1], {})
    assert capsys.readouterr().out.startswith("{'solver': ")


@pytest.mark.parametrize(("base", "named"), [("Taskset", "Guesses"), ("TextGame", "Guess")])
def test_a_class_that_does_not_derive_from_its_base_is_named(base, named, workspace, run_stage):
    Path(f"without_{base}.py").write_text(blocks("python")[0].replace(f"({base})", ""))
    parameters = {"games": {f"without_{base}": {"train_count": 4, "eval_count": 4}}, **TINY}
    Path("params.yaml").write_text(yaml.safe_dump(parameters))
    with pytest.raises(UserError, match=rf"^{named} of the game without_{base} does not derive from .*{base}"):
        for stage in ("games", "base_model", "train"):
            run_stage(stage)
