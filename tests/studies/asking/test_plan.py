"""What the study plays: series, ids and who sits opposite."""

import asyncio
from dataclasses import replace

import pytest

from slim_rl.games import load_games
from slim_rl.games.matching import Parameters
from slim_rl.games.matching.human import human_games
from slim_rl.games.matching.rules import Limits
from slim_rl.rollout.shards import read_episodes
from slim_rl.studies.asking import plan
from slim_rl.studies.asking.transfer import CHANGES
from tests.studies.asking.made import Policy, play, write


def matching_with(**parameters):
    return load_games({"matching": Parameters(**parameters)}, seed=0)["matching"]


@pytest.fixture
def run(evaluate, tmp_path):
    """An evaluation on 3 boards; of the first two there is free play of both models."""
    run = replace(
        evaluate(count=3, references=["bayes"], human_references=["random"], transfer_games=0), folder=tmp_path
    )
    for player, policy in (("base", Policy(1)), ("trained", Policy(3))):
        write(tmp_path / "held-out" / player, play(run.game, player, policy, 2))
    return run


def test_series_and_ids(run):
    series = {series.name: series for series in plan.series(run)}
    assert list(series) == [
        "partner/probe",
        "held-out/base", "held-out/base-asks-on", "held-out/base-asks-planned", "transplant/base-forbidden",
        "held-out/trained", "transplant/trained-forbidden",
        "transplant/base-given-base", "transplant/base-given-trained", "transplant/base-as-many", "transplant/trained-given-base",
        "held-out/bayes", "human-boards/random",
    ]  # fmt: skip
    crossed = series["transplant/base-given-trained"].requests()
    assert [request.episode_id for request in crossed] == [
        f"transplant/base-given-trained/{task.game_id}" for task in run.tasks[:2]
    ]
    assert {(r.series, r.arm, r.seating) for r in crossed} == {("transplant", "given-trained", ("base", "scripted"))}
    assert len(series["held-out/base"].requests()) == 3 and len(series["human-boards/random"].requests()) == 100


def test_where_scores_are_known_roughly_the_base_model_is_also_told_what_to_ask_for(evaluate):
    always = {"base-asks-on", "base-asks-planned"}
    for p_rough, rules in ((0, always), (0.3, always | {"base-asks-unknown"})):
        made = matching_with(p_rough=p_rough, p_partner=1)
        names = [series.name for series in plan.series(evaluate(made, transfer_games=0))]
        assert {name for _, name in (n.split("/", 1) for n in names if n.startswith("held-out/base-"))} == rules


def test_on_a_first_run_all_series_are_there_and_the_exchange_comes_after_free_play(evaluate, tmp_path):
    planned = {one.name: one for one in plan.series(replace(evaluate(count=3), folder=tmp_path))}
    exchanged = planned["transplant/base-given-trained"]
    assert exchanged.after == ("held-out/base", "held-out/trained") and exchanged.requests() == []
    assert len(planned["transplant/base-forbidden"].requests()) == 3


def test_changed_games_have_their_own_partners_and_those_that_change_nothing_or_cost_money_are_left_out(evaluate):
    def transferred(**parameters):
        run = evaluate(matching_with(**parameters), transplant_games=0, transfer_games=2)
        return {one.name: one for one in plan.series(run) if one.name.startswith("transfer/")}

    series = transferred(patience=[1, 5])
    everybody = ("base", "trained", "optimal")
    assert set(series) == {f"transfer/{change}/{player}" for change in CHANGES for player in everybody}
    assert series["transfer/ignorant/base"].requests()[0].seating == ("base", "ignorant")
    wordings = series["transfer/wordings/optimal"]
    assert (
        asyncio.run(wordings.seating()).games["matching"].parameters.wordings == "held-out"
        and len(wordings.requests()) == 2
    )
    free = {name.split("/")[1] for name in transferred(seating=["policy", "ignorant"])}
    assert free == {"wordings", "reordered"}  # nobody told it how many scores are left
    assert transferred(seating=["policy", "service:partner"]) == {}


def test_people_sit_at_their_own_boards_and_the_partner_is_probed_without_limits(evaluate):
    game = matching_with(max_turns=6, p_agent=0.3, always_accept=False, patience=[1, 2], question_price=[1, 2])
    run = replace(evaluate(game, transfer_games=0), tasks=list(game.taskset.tasks("evaluate", 2)))
    series = {series.name: series for series in plan.series(run)}
    people = asyncio.run(series["human-boards/own-view"].seating()).games["matching"].parameters
    assert people == Parameters(size=8, selection="dialop", max_turns=6, always_accept=False)
    probe = series["partner/probe"]
    probed = asyncio.run(probe.seating()).games["matching"]
    assert probed.parameters == Parameters(max_turns=40, p_agent=0.3, always_accept=False)
    assert probed.taskset.load(probe.requests()[0].task).limits == Limits(40)


def test_a_policy_of_both_seats_meets_itself_and_the_partner_in_either(evaluate):
    game = matching_with(seating=["policy", "policy"])
    run = evaluate(game, transplant_games=0, transfer_games=0, references=["bayes"])
    seatings = {series.name: series.requests()[0].seating for series in plan.series(run)}
    assert seatings["held-out/base"] == ("base", "scripted")
    assert seatings["self-play/base"] == ("base", "base")
    assert seatings["second-seat/base"] == ("scripted", "base")
    assert not any(name.startswith("transplant") for name in seatings)


@pytest.mark.parametrize(
    ("seating", "opposite"),
    [
        (["policy", "scripted"], "scripted"),
        (["policy", "ignorant"], "ignorant"),
        (["policy", "service:partner"], "service:partner"),
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
        assert episode.rewards["player-1"] > 0.3 and episode.metrics["turn_count"] == len(episode.turns)
        assert episode.turns[0].read.startswith("You and a partner assign 8 papers")
