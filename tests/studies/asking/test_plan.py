"""What the study plays: series, ids and who sits opposite."""

from dataclasses import replace

import pytest

from slim_rl.games import load_games
from slim_rl.games.matching import Parameters
from slim_rl.games.matching.human import human_games
from slim_rl.rollout.shards import read_episodes
from slim_rl.studies.asking import plan


def matching_with(**parameters):
    return load_games({"matching": Parameters(**parameters)}, seed=0)["matching"]


def test_series_and_ids(evaluate):
    run = evaluate(count=3, references=["bayes"], human_references=["random"], intervention_games=2)
    series = {series.name: series for series in plan.series(run)}
    arms = ("forbidden", *(f"forced-{k}" for k in range(7)))
    assert list(series) == [
        "partner/probe",
        "held-out/base", *(f"intervention/base-{arm}" for arm in arms),
        "held-out/trained", *(f"intervention/trained-{arm}" for arm in arms),
        "held-out/bayes", "human-boards/random",
    ]  # fmt: skip
    forced = series["intervention/trained-forced-3"].requests
    assert [request.episode_id for request in forced] == [
        f"intervention/trained-forced-3/{task.game_id}" for task in run.tasks[:2]
    ]
    assert {(r.series, r.arm, r.seating) for r in forced} == {("intervention", "forced-3", ("trained", "scripted"))}
    assert len(series["held-out/base"].requests) == 3 and len(series["human-boards/random"].requests) == 100


def test_people_sit_at_their_own_boards_and_the_partner_is_probed_with_patience(evaluate):
    run = evaluate(matching_with(max_turns=6, p_agent=0.3, always_accept=False))
    series = {series.name: series for series in plan.series(run)}
    people = series["human-boards/bayes"].seating().games["matching"].parameters
    assert people == Parameters(size=8, selection="dialop", max_turns=6, always_accept=False)
    probed = series["partner/probe"].seating().games["matching"].parameters
    assert probed == Parameters(max_turns=40, p_agent=0.3, always_accept=False)


def test_a_policy_of_both_seats_meets_itself_and_the_partner_in_either(evaluate):
    run = evaluate(matching_with(seating=["policy", "policy"]), intervention_games=0, references=["bayes"])
    seatings = {series.name: series.requests[0].seating for series in plan.series(run)}
    assert seatings["held-out/base"] == ("base", "scripted")
    assert seatings["self-play/base"] == ("base", "base")
    assert seatings["second-seat/base"] == ("scripted", "base")
    assert not any(name.startswith("intervention") for name in seatings)


@pytest.mark.parametrize(
    ("seating", "opposite"),
    [
        (["policy", "scripted"], "scripted"),
        (["policy", "service:partner"], "service:partner"),
        (["policy", "pool"], "scripted"),
        (["scripted", "policy"], "scripted"),
    ],
)
def test_the_partner_of_training_sits_opposite_unless_it_was_a_policy(seating, opposite):
    assert plan.partner(matching_with(seating=seating)) == opposite


def test_people_become_episodes(evaluate, tmp_path):
    plan.finish(replace(evaluate(), folder=tmp_path))
    games = {task.game_id: task for task in human_games(plan.HUMAN)}
    episodes = list(read_episodes(tmp_path / "human-boards/humans"))
    assert len(episodes) == len(games) == 100
    for episode in episodes:
        assert set(episode.seating.values()) == {"humans"}
        assert episode.rewards["player-1"] > 0.3 and episode.metrics["turns"] == len(episode.turns)
        assert episode.turns[0].read.startswith("You and a partner assign 8 papers")
