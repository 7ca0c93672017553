"""All stages in miniature, with two games that have winners at once: against itself, and against random play."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml

from slim_rl.rollout.shards import read_episodes
from tests.settings import tiny

NIM = "textarena:Nim-v0"


def seatings(folder: str):
    return {tuple(episode.seating.values()) for episode in read_episodes(Path(folder))}


@pytest.mark.slow
def test_two_games_are_trained_at_once_from_tasks_to_reports(tmp_path, monkeypatch, run_stage):
    monkeypatch.chdir(tmp_path)
    train = dict(
        steps=3, games_per_step=4, filters=["no_failed_episode"], advantage="role", average_over="episodes",
        snapshot_every=2,
    )  # fmt: skip
    nim = {"seating": ["policy", "random"], "train_count": 16, "eval_count": 6}
    parameters = tiny("kuhn", train=train, games={"kuhn": {"weight": 2}, NIM: nim})
    Path("params.yaml").write_text(yaml.safe_dump(parameters))
    for stage in ("games", "base_model", "train", "evaluate", "analyze"):
        run_stage(stage)

    made = json.loads(Path("models/base/config.json").read_text())
    assert (made["num_hidden_layers"], made["hidden_size"], made["initializer_range"]) == (1, 32, 0.1)
    groups = defaultdict(list)
    for episode in read_episodes(Path("data/rollouts")):
        groups[episode.episode_id.rpartition("/")[0]].append((episode.game, *episode.seating.values()))
        assert all(episode.seating[seat] == "policy" for seat in episode.traces)
        assert len(episode.traces) == (2 if episode.game == "kuhn" else 1)
    kuhn, others = ("kuhn", "policy", "policy"), (NIM, "policy", "random")
    assert Counter(map(tuple, groups.values())) == {(kuhn, kuhn): 8, (others, others): 4}, "no group mixes games"
    assert {path.name for path in Path("models/snapshots").iterdir()} == {"step-00000", "step-00002"}

    solved = json.loads(Path("data/episodes/kuhn/solved.json").read_text())
    assert set(solved) == {"base", "trained", "step-00000", "step-00002"}
    assert solved["base"] == solved["step-00000"] != solved["trained"]
    for worth in solved.values():
        assert 0 <= worth["exploitability"] < 1.5 and 0 <= worth["other"] <= 1
    played = seatings("data/episodes/kuhn/matches")
    for pair in (("trained", "random"), ("base", "trained"), ("step-00002", "random")):
        assert {pair, pair[::-1]} <= played
    assert {("trained", "random"), ("base", "random")} <= seatings("data/episodes/textarena-Nim-v0/matches")
    assert not Path("data/episodes/textarena-Nim-v0/solved.json").exists()
    assert {"kuhn", NIM} <= json.loads(Path("reports/metrics.json").read_text()).keys()
    index = Path("reports/report.html").read_text()
    assert "data/kuhn/report.html" in index and Path("reports/data/textarena-Nim-v0/report.html").is_file()
