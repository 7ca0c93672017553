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
    played = run / "data/episodes/matching"
    free = {model: rewards_by_board(played / "held-out" / model) for model in ("base", "trained")}
    crossed, as_many, forbidden, back = (
        rewards_by_board(played / "transplant" / name)
        for name in ("base-given-trained", "base-as-many", "trained-forbidden", "trained-given-base")
    )
    boards = sorted(set(free["base"]) & set(free["trained"]) & set(crossed) & set(as_many) & set(forbidden) & set(back))
    assert len(boards) == 110
    expected = {
        "gain": mean_difference(free["trained"], free["base"], boards),
        "asks_more": mean_difference(as_many, free["base"], boards),
        "asks_better": mean_difference(crossed, as_many, boards),
        "uses_answers_better": mean_difference(free["trained"], crossed, boards),
        "own_questions": mean_difference(free["trained"], back, boards),
        "same_questions": mean_difference(back, free["base"], boards),
        "worth_of_asking_trained": mean_difference(free["trained"], forbidden, boards),
    }
    found = json.loads((run / "reports/metrics.json").read_text())["transplant"]
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert found["asks_more"] + found["asks_better"] + found["uses_answers_better"] == pytest.approx(
        found["gain"], abs=3e-6
    )
    assert found["asks_more"] + found["asks_better"] == pytest.approx(found["asks"], abs=3e-6)
    # The made policy asks for more cells and for better ones, and proposes with more care.
    assert min(found["asks_more"], found["asks_better"], found["uses_answers_better"]) > 0.005
