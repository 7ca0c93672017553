"""The game of docs/write-a-game.md, outside of the repository, through all five stages; and two games at once."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config
from slim_rl.core.errors import UserError

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/write-a-game.md").read_text(encoding="utf-8")
STAGES = ("games", "base_model", "train", "evaluate", "analyze")
TINY = {
    "threads": 1,
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


def run_all(run_stage, parameters):
    Path("params.yaml").write_text(yaml.safe_dump(parameters))
    for stage in STAGES:
        run_stage(stage)


def test_the_module_has_at_most_60_lines_and_the_parameters_are_valid(workspace):
    assert len(blocks("python")[0].splitlines()) <= 60
    assert "guess" in Config.model_validate(yaml.safe_load(blocks("yaml")[0])).games


@pytest.mark.parametrize(("base", "named"), [("Taskset", "Guesses"), ("TextGame", "Guess")])
def test_a_class_that_does_not_derive_from_its_base_is_named(base, named, workspace, run_stage):
    Path(f"without_{base}.py").write_text(blocks("python")[0].replace(f"({base})", ""))
    with pytest.raises(UserError, match=rf"^{named} of the game without_{base} does not derive from .*{base}"):
        run_all(run_stage, {"games": {f"without_{base}": {"train_count": 4, "eval_count": 4}}, **TINY})


@pytest.mark.slow
def test_a_game_outside_of_the_repository_goes_from_games_to_the_report(workspace, run_stage):
    run_all(run_stage, {"games": {"guess": {"train_count": 16, "eval_count": 16}}, **TINY})
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert 0 <= metrics["trained"]["pass_rate"] <= 1
    assert "guess" in Path("reports/report.html").read_text()


@pytest.mark.slow
def test_two_games_are_trained_at_once(workspace, run_stage):
    matching = {"size": 2, "p_agent": 0.5, "train_count": 16, "eval_count": 8, "max_turns": 6, "weight": 1}
    games = {"guess": {"train_count": 16, "eval_count": 8, "weight": 3}, "matching": matching}
    shutil.copytree(ROOT / "data/human", "data/human")
    studies = {"asking": {"transplant_games": 0, "transfer_games": 0, "human_references": ["random"]}}
    run_all(run_stage, {"games": games, "studies": studies, **TINY})
    from slim_rl.rollout.shards import read_episodes

    played = list(read_episodes(Path("data/rollouts")))
    by_group = {}
    for episode in played:
        by_group.setdefault(episode.episode_id.rpartition("/")[0], set()).add(episode.game)
    assert all(len(games) == 1 for games in by_group.values()), "a group mixes games"
    counts = list(by_group.values())
    assert counts.count({"guess"}) == 3 * counts.count({"matching"})
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert {"guess", "matching"} <= set(metrics)
