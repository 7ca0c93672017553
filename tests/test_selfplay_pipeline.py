"""The stages in miniature, up to the evaluation, for games with winners."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from slim_rl.rollout.store import read_episodes
from stages import base_model, evaluate, games, train

TINY = {
    "threads": 1,
    "games": {"train_count": 16, "eval_count": 6, "format": "parquet"},
    "model": {"layers": 1, "hidden_size": 32, "initializer_range": 0.1},
    "warmstart": {"demonstrations": 320, "batch": 8, "warmup_steps": 5},
    "evaluate": {"opponents": ["random"], "snapshot_games": 2, "ranked": 1},
}


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """Runs the four stages with these parameters in a folder of its own; gives the folder."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)

    def run(**parameters):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump({**TINY, **parameters}))
        for stage in (games, base_model, train, evaluate):
            stage.main()
        return tmp_path

    yield run
    torch.set_num_threads(threads)


def seatings(folder: Path):
    return {tuple(episode.seating.values()) for episode in read_episodes(folder)}


def test_kuhn_poker_against_itself(pipeline):
    folder = pipeline(
        game="kuhn",
        seating={"players": ["policy", "policy"]},
        train=dict(
            steps=3, games_per_step=4, samples_per_game=2, filters=["no_failed_episode"], advantage="role",
            average_over="episodes", snapshot_every=2,
        ),
    )  # fmt: skip
    made = json.loads((folder / "models/base/config.json").read_text())
    assert (made["num_hidden_layers"], made["hidden_size"], made["initializer_range"]) == (1, 32, 0.1)
    rollouts = list(read_episodes(folder / "data/rollouts"))
    assert len(rollouts) == 3 * 4 * 2 and seatings(folder / "data/rollouts") == {("policy", "policy")}
    assert sum(len(episode.traces) == 2 for episode in rollouts) == 24
    assert {path.name for path in (folder / "models/snapshots").iterdir()} == {"step-00000", "step-00002"}
    solved = json.loads((folder / "data/episodes/solved.json").read_text())
    assert set(solved) == {"base", "trained", "step-00000", "step-00002"}
    assert solved["base"] == solved["step-00000"] != solved["trained"]
    for worth in solved.values():
        assert 0 <= worth["exploitability"] < 1.5 and 0 <= worth["other"] <= 1
    for pair in (("trained", "random"), ("base", "trained"), ("step-00002", "random")):
        for one, other in (pair, pair[::-1]):
            matches = folder / f"data/episodes/matches/{one}-against-{other}"
            assert seatings(matches) == {(one, other)}
    assert (folder / "reports/training").exists()


def test_a_game_of_textarena_against_random_play(pipeline):
    folder = pipeline(
        game="textarena:Nim-v0",
        seating={"players": ["policy", "random"], "alternate": True},
        train=dict(steps=2, games_per_step=2, samples_per_game=2, filters=[]),
    )
    played = list(read_episodes(folder / "data/rollouts"))
    assert {tuple(e.seating.values()) for e in played} == {("policy", "random"), ("random", "policy")}
    assert all([e.seating[seat] for seat in e.traces] == ["policy"] for e in played)
    assert {path.name for path in (folder / "data/episodes/matches").iterdir()} >= {
        "trained-against-random", "random-against-trained", "base-against-trained",
    }  # fmt: skip
    assert not (folder / "data/episodes/solved.json").exists()
    assert list((folder / "models/snapshots").iterdir()) == []
