"""DialOp's own rules end to end, at a small size."""

import json
from pathlib import Path

import pytest
import yaml

from slim_rl.config import composed
from slim_rl.rollout.shards import read_episodes

ROOT = Path(__file__).parents[1]
SMALLER = {
    "cores": 1,
    "model.layers": 1, "model.hidden_size": 32, "warmstart.demonstrations": 160, "warmstart.batch": 8,
    "train.steps": 2, "train.games_per_step": 2, "train.samples_per_game": 2, "train.filters": [],
    "games.matching.train_count": 8, "games.matching.eval_count": 12,
    "studies.asking.transplant_games": 0, "studies.asking.references": ["random", "asks-all-random"],
    "studies.asking.human_references": [],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.pipeline
def test_the_small_profile_of_dialop_s_rules_goes_from_boards_to_a_report(tmp_path, monkeypatch, run_stage):
    monkeypatch.chdir(ROOT)
    values = composed("dialop-mini", SMALLER)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/human").symlink_to(ROOT / "data/human")
    Path("params.yaml").write_text(yaml.safe_dump(values))
    for stage in ("games", "base_model", "train", "evaluate", "analyze"):
        run_stage(stage)
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert {"base", "trained", "bayes", "verdict"} <= metrics.keys() and Path("reports/report.html").stat().st_size
    episodes = read_episodes(Path("data/episodes/matching/held-out"))
    answers = [turn.text for episode in episodes for turn in episode.turns if turn.seat == "player-2"]
    assert {"[accept]", "[reject]"} <= set(answers), "the partner weighs proposals"
    assert any(text.startswith("[message] I do not") for text in answers), "it does not see all scores"
