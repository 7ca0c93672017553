"""The study of docs/write-a-study.md, outside of the repository, through all five stages."""

import json
import re
from pathlib import Path

import pytest
import yaml

from slim_rl.config import Config
from tests.test_write_a_game import TINY

GUIDE = Path(__file__).parents[1].joinpath("docs/write-a-study.md").read_text(encoding="utf-8")
STUDY, GAME = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
[PARAMETERS] = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    (tmp_path / "turns.py").write_text(STUDY)
    (tmp_path / "sums.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_study_has_at_most_80_lines_and_the_guide_300_words(workspace):
    assert len(STUDY.splitlines()) <= 80
    assert len(re.sub(r"^```.*?^```", "", GUIDE, flags=re.MULTILINE | re.DOTALL).split()) <= 300
    assert Config.model_validate(yaml.safe_load(PARAMETERS)).studies["turns"].samples == 4


@pytest.mark.slow
def test_a_study_outside_of_the_repository_goes_from_games_to_the_report(workspace, run_stage):
    games, studies = {"sums": {"train_count": 16, "eval_count": 16}}, {"turns": {"samples": 3}}
    Path("params.yaml").write_text(yaml.safe_dump({"games": games, "studies": studies, **TINY}))
    for stage in ("games", "base_model", "train", "evaluate", "analyze"):
        run_stage(stage)
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert metrics["trained"]["episodes"] == 16 * 3 and metrics["study"] == "turns"
    difference = metrics["trained"]["turn_count"] - metrics["base"]["turn_count"]
    assert metrics["comparison"]["turn_count_difference"] == pytest.approx(difference, abs=1e-5)
    page = Path("reports/report.html").read_text()
    assert metrics["verdict"] in page and "It takes fewer turns" in page and "<svg" in page
