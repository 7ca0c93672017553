"""The code that dvc.yaml lists for a stage is the code that the stage imports."""

import re
from pathlib import Path

import grimp
import pytest
import yaml

ROOT = Path(__file__).parents[1]
EVERY = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
STAGES = {name: stage for name, stage in EVERY.items() if not stage.get("always_changed")}
BY_NAME = {"slim_rl.games": "slim_rl.games.**", "slim_rl.training.advantages": "slim_rl.training.advantages.*"}
"""Modules that are imported by their names, not by a statement."""
PART_OF_A_STUDY = re.compile(r'load_study\([^)"]*\)?, "(\w+)"\)')


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("slim_rl", "stages", cache_dir=None, exclude_type_checking_imports=True)


def imports(graph: grimp.ImportGraph, stage: str) -> set[Path]:
    """The files of all modules that a stage imports, directly or not."""
    found, todo = set(), {f"stages.{stage}"}
    while todo:
        module = todo.pop()
        found.add(module)
        new = set(graph.find_modules_directly_imported_by(module))
        parts = PART_OF_A_STUDY.findall(path_of(module).read_text())
        patterns = [BY_NAME[module]] if module in BY_NAME else []
        for pattern in (*patterns, *(f"slim_rl.studies.*.{part}" for part in parts)):
            new |= graph.find_matching_modules(pattern)
        todo |= new - found
    return {path_of(module) for module in found}


def path_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_depends_on_the_users_own_code(stage):
    [written] = EVERY["own_code"]["outs"]
    assert EVERY["own_code"]["always_changed"] and written in STAGES[stage]["deps"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_code_that_a_stage_depends_on(graph, stage):
    listed = {ROOT / path for path in STAGES[stage]["deps"] if path.startswith(("slim_rl/", "stages/"))}
    imported = imports(graph, stage)
    missing = {path for path in imported if not any(path.is_relative_to(dep) for dep in listed)}
    assert {str(path.relative_to(ROOT)) for path in missing} == set(), "dvc.yaml lacks these"
    needless = {dep for dep in listed if not any(path.is_relative_to(dep) for path in imported)}
    assert {str(path.relative_to(ROOT)) for path in needless} == set(), "the stage does not import these"
