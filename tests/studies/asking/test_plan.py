"""What the study plays: series, ids and who sits opposite."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from slim_rl.games import load_games
from slim_rl.games.matching import Parameters
from slim_rl.games.matching.human import human_games
from slim_rl.games.matching.language import Limits
from slim_rl.rollout.seating import PolicyRules
from slim_rl.rollout.shards import read_episodes
from slim_rl.studies.asking import plan
from slim_rl.studies.asking.criteria import CRITERIA, criteria
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
        "held-out/base", "held-out/base-asks-on", "transplant/base-forbidden",
        "held-out/trained", "transplant/trained-forbidden",
        "transplant/base-given-trained", "transplant/base-as-many", "transplant/trained-given-base",
        "held-out/bayes", "human-boards/random",
    ]  # fmt: skip
    crossed = series["transplant/base-given-trained"].requests
    assert [request.episode_id for request in crossed] == [
        f"transplant/base-given-trained/{task.game_id}" for task in run.tasks[:2]
    ]
    assert {(r.series, r.arm, r.seating) for r in crossed} == {("transplant", "given-trained", ("base", "scripted"))}
    assert len(series["held-out/base"].requests) == 3 and len(series["human-boards/random"].requests) == 100


def test_where_scores_are_known_roughly_the_base_model_is_also_told_what_to_ask_for(evaluate):
    for p_rough, told in ((0, {"base-asks-on"}), (0.3, {"base-asks-on", "base-asks-unknown"})):
        made = matching_with(p_rough=p_rough, p_partner=1)
        names = [series.name for series in plan.series(evaluate(made, transfer_games=0))]
        assert {name for _, name in (n.split("/", 1) for n in names if n.startswith("held-out/base-"))} == told


def test_what_needs_free_play_waits_for_it(evaluate, tmp_path):
    run = replace(evaluate(count=3, transfer_games=0), folder=tmp_path)
    names = [series.name for series in plan.series(run)]
    assert "transplant/base-forbidden" in names and not any("given" in name or "as-many" in name for name in names)


def test_a_model_that_writes_sums_does_not_play_boards_with_too_many(evaluate, renderer, monkeypatch, capsys):
    sums = matching_with(patience=[1, 5], write_sums=True)
    run = evaluate(sums, transplant_games=0, transfer_games=2, human_references=["random"])
    policy = SimpleNamespace(max_context_tokens=10_000), PolicyRules(renderer, 1000, 1.0)
    monkeypatch.setattr(type(run), "policy", lambda run, player: policy)
    names = {series.name for series in plan.series(run)}
    assert {"transfer/limit/base", "transfer/limit/optimal", "human-boards/random"} <= names
    assert not any("size" in name for name in names)
    assert capsys.readouterr().out.count("Not played: write_sums") == 2  # of size 4 and 5


def test_games_that_training_did_not_have_have_their_own_boards_and_partners(evaluate, monkeypatch):
    monkeypatch.setattr(plan, "_fits", lambda run, game, tasks: game.parameters.size < 5)
    run = evaluate(matching_with(patience=[1, 5], p_rough=0.3, p_partner=1), transplant_games=0, transfer_games=2)
    series = {s.name: s for s in plan.series(run) if s.name.startswith("transfer/")}
    played = {name: {n.split("/")[2] for n in series if n.split("/")[1] == name} for name in CHANGES}
    everybody = {"base", "trained", "optimal"}
    assert played == dict.fromkeys(CHANGES, everybody) | {"size-5": set()}
    assert series["transfer/ignorant/base"].requests[0].seating == ("base", "ignorant")
    seen = series["transfer/seen/optimal"]
    assert seen.seating().games["matching"].parameters.p_agent == 0.4
    assert len(seen.requests) == 2 and seen.requests[0].task.prompt != run.tasks[0].prompt
    limit = series["transfer/limit/optimal"]
    game = limit.seating().games["matching"].taskset.load(limit.requests[0].task)
    assert game.limits.max_turns <= 6


def test_who_is_not_told_its_turns_meets_no_tighter_limit_of_them_but_a_partner_without_patience(evaluate, monkeypatch):
    monkeypatch.setattr(plan, "_fits", lambda run, game, tasks: True)
    run = evaluate(matching_with(patience=[1, 5], turns_told=False), transplant_games=0, transfer_games=2)
    names = {series.name for series in plan.series(replace(run, checkpoints={}))}
    assert "transfer/impatient/optimal" in names and "transfer/limit/optimal" not in names


def test_a_change_that_changes_nothing_or_costs_money_is_left_out(evaluate, monkeypatch):
    monkeypatch.setattr(plan, "_fits", lambda run, game, tasks: True)
    run = evaluate(
        matching_with(always_accept=False, seating=["policy", "ignorant"]), transplant_games=0, transfer_games=2
    )
    monkey = [s.name for s in plan.series(replace(run, checkpoints={})) if s.name.startswith("transfer/")]
    assert not any(change in name for name in monkey for change in ("weighs", "ignorant", "rough")) and monkey
    paid = evaluate(matching_with(seating=["policy", "service:partner"]), transplant_games=0, transfer_games=2)
    assert not any(s.name.startswith("transfer/") for s in plan.series(paid))


def test_people_sit_at_their_own_boards_and_the_partner_is_probed_without_limits(evaluate):
    game = matching_with(max_turns=6, p_agent=0.3, always_accept=False, patience=[1, 2], question_price=[1, 2])
    run = replace(evaluate(game, transfer_games=0), tasks=list(game.taskset.tasks("evaluate", 2)))
    series = {series.name: series for series in plan.series(run)}
    people = series["human-boards/own-view"].seating().games["matching"].parameters
    assert people == Parameters(size=8, selection="dialop", max_turns=6, always_accept=False)
    probe = series["partner/probe"]
    probed = probe.seating().games["matching"]
    assert probed.parameters == Parameters(max_turns=40, p_agent=0.3, always_accept=False)
    assert probed.taskset.load(probe.requests[0].task).limits == Limits(40)


def test_a_policy_of_both_seats_meets_itself_and_the_partner_in_either(evaluate):
    game = matching_with(seating=["policy", "policy"])
    run = evaluate(game, transplant_games=0, transfer_games=0, references=["bayes"])
    seatings = {series.name: series.requests[0].seating for series in plan.series(run)}
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
        (["policy", "pool"], "scripted"),
    ],
)
def test_the_partner_of_training_sits_opposite_unless_it_was_a_policy(seating, opposite):
    assert plan.partner(matching_with(seating=seating)) == opposite


def test_people_become_episodes_and_the_criteria_are_recorded(evaluate, tmp_path):
    plan.finish(replace(evaluate(), folder=tmp_path))
    games = {task.game_id: task for task in human_games(plan.HUMAN)}
    episodes = list(read_episodes(tmp_path / "human-boards/humans"))
    assert len(episodes) == len(games) == 100
    for episode in episodes:
        assert set(episode.seating.values()) == {"humans"}
        assert episode.rewards["player-1"] > 0.3 and episode.metrics["turns"] == len(episode.turns)
        assert episode.turns[0].read.startswith("You and a partner assign 8 papers")
    assert criteria().sha256 in (tmp_path / CRITERIA).read_text()
