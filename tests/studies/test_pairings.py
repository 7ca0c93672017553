"""Who meets whom in a game with winners."""

from pathlib import Path

import pytest

from slim_rl.core.errors import UserError
from slim_rl.games import game_parameters, load_games
from slim_rl.studies.matches.parameters import Parameters
from slim_rl.studies.matches.plan import RANKED, series
from tests.studies.runs import CHECKPOINTS, ECHO, evaluation

DEFAULTS = Parameters()
SNAPSHOTS = {f"step-{n:05d}": Path(str(n)) for n in range(0, 60, 10)}


def planned(name, seating, study=DEFAULTS, task_count=0, **evaluate):
    """The series of a game, by the pair that plays."""
    game = load_games({name: game_parameters(name, {"seating": seating})}, seed=0)[name]
    tasks = list(game.taskset.tasks("evaluate", task_count))
    run = evaluation(game, study, tasks, snapshots=SNAPSHOTS, **evaluate)
    return {one.folder.name: one for one in series(run)}


def met(study=DEFAULTS, **evaluate):
    """The pairs of models that play each other, and everything that is played."""
    pairs = [tuple(name.split("-against-")) for name in planned("kuhn", ["policy", "policy"], study, **evaluate)]
    models = {*CHECKPOINTS, *SNAPSHOTS}
    return {pair for pair in pairs if set(pair) <= models}, set(pairs)


def test_some_snapshots_play_each_other_the_last_one_among_them():
    models, _ = met()
    playing = {name for pair in models for name in pair} - set(CHECKPOINTS)
    assert 1 < len(playing) <= RANKED and max(SNAPSHOTS) in playing


@pytest.mark.parametrize("opponents", [(), ("random",)])
def test_every_model_meets_the_opponents_from_both_seats(opponents):
    _, pairs = met(Parameters(opponents=opponents))
    assert ("scripted", "random") in pairs or opponents
    for model in (*CHECKPOINTS, *SNAPSHOTS):
        for opponent in opponents or ("random", "scripted"):
            assert {(model, opponent), (opponent, model)} <= pairs


def test_a_model_plays_only_the_seats_that_it_is_trained_in():
    played = planned("prediction", ["scripted", "policy"]).keys()
    assert {"scripted-against-trained", "random-against-base", "random-against-scripted"} <= played
    assert not [name for name in played if name.startswith(("base", "trained", "step"))]


def test_a_rule_meets_every_opponent_in_all_games_from_its_seat_if_that_is_trained():

    def rules(*seating):
        played = planned("prediction", seating, Parameters(snapshot_games=1), 3)
        return {name: len(one.requests()) for name, one in played.items() if "rule-" in name}

    names = [f"{author}-against-rule-{rule}" for author in ("random", "scripted")
             for rule in ("larger-digit", "commonest-answer")]  # fmt: skip
    assert rules("scripted", "policy") == rules("policy", "policy") == dict.fromkeys(names, 3)
    assert rules("policy", "scripted") == {}


@pytest.mark.parametrize("evaluate", [{"temperature": 0}, {"server": "serve {model} {port}"}])
def test_models_do_not_meet_where_it_would_tell_nothing_or_is_impossible(evaluate):
    assert met(**evaluate)[0] == set()


def test_requests_say_who_plays_in_which_series():
    requests = planned("kuhn", ["policy", "policy"], task_count=2)["base-against-random"].requests()
    assert [r.episode_id for r in requests] == [f"matches/base-against-random/{r.task.game_id}" for r in requests]
    assert len({r.task.game_id for r in requests}) == 2
    assert {(r.seating, r.series, r.game) for r in requests} == {(("base", "random"), "matches", "kuhn")}


def test_a_game_of_one_seat_has_no_matches():
    with pytest.raises(UserError, match=r"needs a game of two seats, but tests\.echo has solver"):
        planned(ECHO, ["policy"])
