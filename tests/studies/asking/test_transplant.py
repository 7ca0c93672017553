"""The parts of the gain, recomputed by other code from the episodes on disk."""

import json

import pyarrow.parquet as pq
import pytest


def rewards_by_board(folder):
    found = {}
    for path in folder.rglob("*.parquet"):
        for row in pq.read_table(path, columns=["game_id", "rewards", "status"]).to_pylist():
            if row["status"] != "failed":
                found[row["game_id"]] = dict(row["rewards"])["player-1"]
    return found


def mean_difference(one, other, boards):
    return sum(one[board] - other[board] for board in boards) / len(boards)


def test_the_parts_sum_to_the_gain_and_are_what_the_episodes_say(run):
    arms = ("base-given-base", "base-given-trained", "base-as-many", "trained-forbidden", "trained-given-base")
    played = {f"free {model}": f"held-out/{model}" for model in ("base", "trained")}
    played |= {arm: f"transplant/{arm}" for arm in arms}
    rewards = {name: rewards_by_board(run / "data/episodes/matching" / folder) for name, folder in played.items()}
    boards = sorted(set.intersection(*map(set, rewards.values())))
    assert len(boards) == 110
    pairs = {
        "gain": ("free trained", "free base"),
        "has_to_propose": ("base-given-base", "free base"),
        "asks_more": ("base-as-many", "base-given-base"),
        "asks_better": ("base-given-trained", "base-as-many"),
        "uses_answers_better": ("free trained", "base-given-trained"),
        "own_questions": ("free trained", "trained-given-base"),
        "same_questions": ("trained-given-base", "free base"),
        "worth_of_asking_trained": ("free trained", "trained-forbidden"),
    }
    found = json.loads((run / "reports/metrics.json").read_text())["transplant"]
    expected = {part: mean_difference(*(rewards[name] for name in names), boards) for part, names in pairs.items()}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    made_to, *parts = (found[part] for part in ("has_to_propose", "asks_more", "asks_better", "uses_answers_better"))
    assert made_to + sum(parts) == pytest.approx(found["gain"], abs=4e-6)
    assert made_to == 0  # this base model always proposes
    assert sum(parts[:2]) == pytest.approx(found["asks"], abs=3e-6)
    assert min(parts) > 0.005  # it asks for more cells and for better ones, and proposes with more care
