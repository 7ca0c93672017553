"""The stages in miniature, up to the evaluation, for games with winners."""

import json
from pathlib import Path

import pytest
import yaml

from slim_rl.rollout.shards import read_episodes
from tests.settings import tiny

pytestmark = pytest.mark.slow


@pytest.fixture
def pipeline(tmp_path, monkeypatch, run_stage):
    """Runs four stages with these parameters in a folder of its own; gives the folder."""
    monkeypatch.chdir(tmp_path)

    def run(parameters):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters))
        for stage in ("games", "base_model", "train", "evaluate"):
            run_stage(stage)
        return tmp_path

    return run


def seatings(folder: Path):
    return {tuple(episode.seating.values()) for episode in read_episodes(folder)}


def test_kuhn_poker_against_itself(pipeline):
    train = dict(
        steps=3, games_per_step=4, filters=["no_failed_episode"], advantage="role", average_over="episodes",
        snapshot_every=2,
    )  # fmt: skip
    folder = pipeline(tiny("kuhn", train=train))
    made = json.loads((folder / "models/base/config.json").read_text())
    assert (made["num_hidden_layers"], made["hidden_size"], made["initializer_range"]) == (1, 32, 0.1)
    rollouts = list(read_episodes(folder / "data/rollouts"))
    assert len(rollouts) == 3 * 4 * 2 and seatings(folder / "data/rollouts") == {("policy", "policy")}
    assert sum(len(episode.traces) == 2 for episode in rollouts) == 24
    assert {path.name for path in (folder / "models/snapshots").iterdir()} == {"step-00000", "step-00002"}
    solved = json.loads((folder / "data/episodes/kuhn/solved.json").read_text())
    assert set(solved) == {"base", "trained", "step-00000", "step-00002"}
    assert solved["base"] == solved["step-00000"] != solved["trained"]
    for worth in solved.values():
        assert 0 <= worth["exploitability"] < 1.5 and 0 <= worth["other"] <= 1
    played = seatings(folder / "data/episodes/kuhn/matches")
    for pair in (("trained", "random"), ("base", "trained"), ("step-00002", "random")):
        assert {pair, pair[::-1]} <= played
    assert (folder / "reports/training").exists()


def test_a_game_of_textarena_against_random_play(pipeline):
    nim = {"seating": ["policy", "random"]}
    folder = pipeline(tiny("textarena:Nim-v0", games={"textarena:Nim-v0": nim}))
    rollouts = list(read_episodes(folder / "data/rollouts"))
    assert {tuple(e.seating.values()) for e in rollouts} == {("policy", "random")}
    assert all([e.seating[seat] for seat in e.traces] == ["policy"] for e in rollouts)
    played = seatings(folder / "data/episodes/textarena-Nim-v0/matches")
    assert {("trained", "random"), ("base", "random")} <= played
    assert not (folder / "data/episodes/textarena-Nim-v0/solved.json").exists()
    assert list((folder / "models/snapshots").iterdir()) == []
