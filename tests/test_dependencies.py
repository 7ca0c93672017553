"""What a stage depends on: data/code/STAGE.txt names all that it imports, and nothing that its parameters do not use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config, checked, composed, load_config
from stages.dependencies import SECTIONS, lines
from tests.settings import merged
from tests.workspaces import environment, fresh_copy

ROOT = Path(__file__).parents[1]
SMALL = {"games": {"kuhn": {"seating": ["policy", "policy"]}}}


@pytest.fixture
def tree(tmp_path):
    """A copy of our code, and listed(): the list of each stage."""
    for name in ("slim_rl", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(SMALL))

    def listed() -> dict[str, list[str]]:
        command = [sys.executable, "-m", "stages.code"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        return {stage: (tmp_path / f"data/code/{stage}.txt").read_text().splitlines() for stage in SECTIONS}

    return tmp_path, listed


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.slow
def test_new_folders_and_comments_change_nothing_and_a_game_only_what_plays_it(tree):
    folder, listed = tree
    package = folder / "slim_rl"
    before = listed()
    write(package / "games/chess/__init__.py", "PIECES = 32\n")
    write(package / "studies/luck/plan.py", "LUCK = 1\n")
    write(package / "training/advantages/mean.py", "def estimate(): ...\n")
    for path in package.rglob("*.py"):
        path.write_text(path.read_text() + "\n# A comment.\n")
    for path in (package / "games/tictactoe/__init__.py", package / "studies/asking/plan.py"):
        path.write_text(path.read_text() + "\nA = 1\n")
    assert listed() == before
    game, template = package / "games/kuhn/__init__.py", package / "studies/matches/report.html.j2"
    game.write_text(game.read_text() + "\nA = 1\n")
    template.write_text("Hello.")
    after = listed()
    differ = {stage: {line.split()[1] for line in set(after[stage]) - set(before[stage])} for stage in SECTIONS}
    page = str(template.relative_to(folder))
    assert differ == {stage: {"slim_rl.games.kuhn", *[page] * (stage == "analyze")} for stage in SECTIONS}


@pytest.mark.parametrize(
    ("parameters", "stages"),
    [
        ({"model": {"base": "mine"}}, {"base_model"}),
        ({"games": {"kuhn": {"seating": ["policy", "checkpoint:mine"]}}}, {"train", "evaluate"}),
    ],
)
def test_a_checkpoint_that_is_replaced_in_its_place_is_another_one(parameters, stages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights, config = tmp_path / "mine/model.safetensors", Config.model_validate(merged(SMALL, parameters))
    write(weights, "0")
    before = {stage: lines(stage, config) for stage in SECTIONS}
    write(weights, "1")
    assert {stage for stage in SECTIONS if lines(stage, config) != before[stage]} == stages


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"games": {"kuhn": {"eval_count": 7}}}, {"games", "evaluate", "analyze"}),
        ({"train": {"steps": 7}}, {"train", "analyze"}),
        ({"train": {"checkpoint_minutes": 7, "max_logprob_gap": 7, "wandb_project": "w"}}, {"analyze"}),
        ({"studies": {"matches": {"snapshot_games": 7}}}, {"evaluate", "analyze"}),
        ({"studies": {"asking": {"transfer_games": 7}}}, {"analyze"}),
        ({"slime": {"save_every": 7}}, {"analyze"}),
        ({"services": {"s": {"model": "m", "max_cost_dollars": 7, "max_concurrent": 7}}}, {"analyze"}),
        ({"services": {"s": {"model": "n"}}}, {"train", "evaluate", "analyze"}),
        ({"evaluate": {"temperature": 0.5}}, {"evaluate", "analyze"}),
        ({"seed": 7}, set(SECTIONS)),
    ],
)
def test_a_parameter_belongs_to_the_stages_that_read_it(change, stages, monkeypatch):
    monkeypatch.setattr("stages.dependencies.dependencies", lambda names: [])  # code, which stays the same
    base = merged(SMALL, {"services": {"s": {"model": "m"}}})
    one, other = (Config.model_validate(values) for values in (base, merged(base, change)))
    assert {stage for stage in SECTIONS if lines(stage, one) != lines(stage, other)} == stages


def test_held_out_tasks_belong_to_training_where_slime_evaluates_on_them(monkeypatch):
    monkeypatch.setattr("stages.dependencies.dependencies", lambda names: [])
    one, other = (
        Config(
            games={"kuhn": {"eval_count": count}}, train={"backend": "slime"}, slime={"evaluate_every": 5}
        ) for count in (7, 8)
    )  # fmt: skip
    assert lines("train", one) != lines("train", other) and lines("base_model", one) == lines("base_model", other)


@pytest.mark.parametrize(("stage", "part"), [("train", None), ("evaluate", "plan"), ("analyze", "reporting")])
def test_every_module_and_package_that_a_stage_imports_is_listed(stage, part, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = (
        f"import sys, json, stages.{stage} as s\nfrom slim_rl.config import composed, checked\n"
        "from slim_rl.games import load_games\nload_games(checked(composed(), '').games, 0)\n"
        f"part = {part!r}\nif part:\n    from slim_rl.studies import load_study; load_study('asking', part)\n"
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('slim_rl', 'stages')]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    if part is None:  # what a study's parameters allow does not change what is trained
        loaded = {name for name in loaded if not name.startswith("slim_rl.studies.asking")}
    listed = {line.split()[1] for line in lines(stage, checked(composed(), "")) if line.startswith("module ")}
    assert loaded - listed == set()


def test_files_and_functions_that_the_parameters_name_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(
        tmp_path / "cards/inner/game.py",
        "from cards.rules import *\nfrom slim_rl.games.kuhn import Parameters, taskset\n",
    )
    write(tmp_path / "cards/rules.py", f"HERE, LETTERS = __file__, {'ä' * 200!r}\n")  # too long for a file name
    write(tmp_path / "cards/other.py", "")
    write(
        tmp_path / "pieces.py",
        "import typing\nif typing.TYPE_CHECKING:\n    import cards.other\ndef keep(*_): import pieces_too\n",
    )
    write(tmp_path / "pieces_too.py", "import yaml\n")
    tasks = Path("tasks.jsonl")
    tasks.write_text((ROOT / "data/mbpp/mbpp.jsonl").read_text())
    games = {"cards.inner.game": {"seating": ["policy", "policy"]}, "execution": {"file": str(tasks)}}
    config = Config(games=games, train={"advantage": "pieces:keep", "filters": ["pieces:keep", "no_failed_episode"]})
    found = {" ".join(line.split()[:2]) for line in lines("train", config)}
    own = {"cards", "cards.inner", "cards.inner.game", "cards.rules", "pieces", "pieces_too"}
    assert {line for line in found if line.startswith(("module cards", "module pieces"))} == {f"module {n}" for n in own} - {
        "module cards", "module cards.inner",  # no file
    }  # fmt: skip
    assert {"file tasks.jsonl", "package yaml", "package torch"} <= found
    before = lines("games", config)
    tasks.write_text(tasks.read_text() + "\n")
    assert lines("games", config) != before


@pytest.mark.slow
@pytest.mark.pipeline
def test_dvc_exp_run_sets_parameters_over_a_profile(tmp_path):
    copy = fresh_copy(tmp_path, {"profile": "kuhn", "train": {"steps": 3}})
    command = ["dvc", "exp", "run", "-S", "train.steps=10", "-S", "+games.kuhn.max_turns=5", "code"]
    subprocess.run(command, cwd=copy, env=environment(), check=True, capture_output=True)
    config = load_config(copy / "run.yaml")
    assert (config.train.steps, config.train.games_per_step, config.games["kuhn"].max_turns) == (10, 64, 5)
