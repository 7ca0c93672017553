"""Every verdict, from policies that deserve it: they play real games."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from scipy.stats import spearmanr

from slim_rl.studies.asking.evidence import evidence, pooled_evidence
from slim_rl.studies.asking.transplant import read_transplant
from slim_rl.studies.asking.verdict import judge
from tests.studies.asking.made import NUMBERS, Policy, arms, game_of, play, sample, samples

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PATIENT = dict(patience=(2, 3), spare_turns=(0, 0))
FREE: dict = {}
PRICED = dict(question_price=(1, 6))
LENIENT = dict(patience=(4, 5), spare_turns=(0, 0))
TOO_DEAR = dict(question_price=(60, 60))
SEES_ALL = dict(patience=(1, 5), p_agent=1.0)
SELDOM, NEVER = Policy(0.5, careless=0.1), Policy(0, careless=0.1)
BEST = Policy(9, "best")


@pytest.fixture(scope="module")
def verdict(tmp_path_factory):
    """verdict(parameters, base, trained): of two made policies on the same boards."""

    @cache
    def episodes(game, policy, partner, count, chosen=False):
        player = policy if isinstance(policy, str) else "made"
        policy = policy if isinstance(policy, Policy) else None
        played = play(game, player, policy, count, partner=partner)
        return sample(tmp_path_factory.mktemp("played"), game, player, played, chosen).episodes

    def verdict(parameters, base, trained, partner="scripted", bayes="bayes", optimal="optimal", count=101):
        game = game_of(**parameters)
        players = {"base": base, "base-asks-on": replace(base, cells=9)}
        players |= {"bayes": bayes, "optimal": optimal, "asks-all-random": "asks-all-random"}
        frames = {name: episodes(game, policy, partner, count) for name, policy in players.items() if policy}
        frames["trained"] = episodes(game, trained, partner, count, chosen=True)
        if frames["trained"]["reward"].mean() < frames["base"]["reward"].mean() + 0.02:
            return judge(evidence(frames, None))  # there is no gain to explain
        played = []
        for name, policy in arms(base, trained).items():
            player, _, arm = name.partition("-")
            played.append(episodes(game, policy, partner, count).assign(player=player, arm=arm))
        return judge(evidence(frames, read_transplant(pd.concat(played), frames)))

    return verdict


PROFILE = yaml.safe_load((ROOT / "conf/qwen3-4b-8gpu.yaml").read_text())["games"]["matching"]
LARGE = {name: tuple(value) if isinstance(value, list) else value for name, value in PROFILE.items()}
DEAR = LARGE | {"patience": None, "question_price": (1, 6)}


@pytest.mark.parametrize(
    ("parameters", "base", "trained", "outcome", "more"),
    [
        (PATIENT, SELDOM, BEST, "supported", {}),
        # One message that asks for all cells counts as many, and where nothing is scarce there is no choice to make.
        (FREE, SELDOM, Policy(9, compound=True), "supported", {}),
        # Without a two-step asker the trained model shows what asking can earn.
        (FREE, SELDOM, Policy(9, compound=True), "learnt to ask and not what", {"optimal": None}),
        (PRICED, Policy(3, careless=0.1), Policy(9, "best", pays=True), "supported", {}),
        (PATIENT, SELDOM, Policy(9), "learnt how many and not which", {}),
        (PATIENT, SELDOM, Policy(9, compound=True), "learnt how many and not which", {}),
        # One message that asks for everything gets as many answers as the partner has patience for.
        (PATIENT, SELDOM, Policy(9, compound=True, heeds=False), "learnt to ask and not what", {}),
        # Always for four: neither by patience nor by value.
        (LENIENT, Policy(0.5, careless=0.2), Policy(4), "learnt to ask and not what", {}),
        # The base model plays the same if it is not allowed to stop.
        (PATIENT, Policy(0.5), Policy(9), "no better than a rule", {}),
        (PATIENT, Policy(0.5), Policy(9, careless=0.75), "asks more without gain", {}),
        (PATIENT, Policy(1.5, careless=0.6), Policy(1.5), "gain not shown to come from asking", {}),
        # It asks for the same cells, but ends its games.
        (PATIENT, Policy(2, silent=0.5), Policy(2), "gain not shown to come from asking", {}),
        (PRICED, Policy(9), Policy(0.3), "gain not shown to come from asking", {}),
        (FREE, Policy(0.02, careless=0.5), Policy(0.1), "gain not shown to come from asking", {}),  # hardly asks
        (PATIENT, SELDOM, Policy(0.5, careless=0.12), "not supported", {}),
        (TOO_DEAR, SELDOM, NEVER, "nothing to learn", {}),
        (SEES_ALL, SELDOM, NEVER, "nothing to learn", {}),
        (PATIENT, Policy(1.5), NEVER, "nothing to learn", {"partner": "ignorant"}),
        (PATIENT, SELDOM, Policy(9), "asks more without gain", {"partner": "ignorant"}),
        (PATIENT, SELDOM, BEST, "invalid test: the boards leak", {"bayes": Policy(0, guesses=True)}),
        (PATIENT, SELDOM, BEST, "too little data", {"count": 60}),
        # 8 by 8, as on the clusters: all in one message, not at all, and whatever it costs.
        (LARGE, Policy(2, careless=0.1), Policy(18, "best", compound=True), "supported", {"optimal": None}),
        (LARGE, Policy(2, careless=0.1), Policy(0), "not supported", {"optimal": None}),
        (DEAR, Policy(2, careless=0.1), Policy(18, careless=0.1), "asks more without gain", {"optimal": None}),
    ],
)
def test_verdict(verdict, parameters, base, trained, outcome, more):
    found = verdict(parameters, base, trained, **more)
    assert found.outcome == outcome
    assert found.supported == found.text.startswith("Supported")


def test_a_base_model_that_cannot_end_a_game_is_named(verdict):
    """Else a broken warm start hides behind any verdict: where there is nothing to learn, all look alike."""
    broken, whole = verdict(SEES_ALL, replace(SELDOM, proposes=False), NEVER), verdict(SEES_ALL, SELDOM, NEVER)
    assert "100%" in broken.text and "100%" not in whole.text


def test_pooled_the_run_is_the_unit(run):
    """Three runs, each clearly better: together they show it only if they agree."""
    one = json.loads((run / "reports/metrics.json").read_text())["comparison"]
    same = pooled_evidence([one, {**one, "gain": one["gain"] + 0.01}, {**one, "gain": one["gain"] - 0.01}])
    assert judge(same).outcome == "supported"
    assert same.gain.mean == pytest.approx(one["gain"]) and same.gain.se == pytest.approx(0.01 / 3**0.5)
    apart = pooled_evidence([{**one, "gain": gain} for gain in (0.3, 0.01, -0.1)])
    assert judge(apart).outcome == "asks more without gain"


GOOD = {
    **dict.fromkeys(("gain", "pays", "regret", "over_asking_on", "choice", "transplanted", "asks", "worth"), 0.1),
    **dict(follows=0.5, rank_unknown=0.6, games=200, rank=0.6, leak=0.0, useful_trained=2.0, more=1.0),
    "truncated_base": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "outcome", "met"),
    [
        ({}, "supported", "111 111"),
        ({"rank_unknown": 0.5}, "supported", "111 111"),  # it chooses the kind of cell alone
        ({"over_asking_unknown": -0.01}, "supported", "111 111"),
        ({"over_asking_on": 0.0}, "no better than a rule", "111 011"),
        ({"over_asking_on": 0.0, "choice": 0.0}, "no better than a rule", "111 01"),
        ({"rank": 0.5, "follows": 0.0}, "learnt to ask and not what", "111 100"),
        ({"follows": 0.0}, "supported", "111 101"),
        ({"follows": 0.0, "choice": 0.0}, "learnt to ask and not how many", "111 10"),
        ({"follows": math.nan, "choice": 0.0}, "supported", "111 1"),
        ({"follows": math.nan, "rank": 0.5}, "learnt to ask and not what", "111 10"),
        ({"choice": math.nan, "rank": 0.5}, "learnt how many and not which", "111 110"),
        ({"more": -1.0, "rank": 0.5, "follows": 0.0}, "gains by asking less", "111 100"),
        ({"more": -1.0, "follows": 0.0}, "supported", "111 101"),
        ({"rank": 0.5}, "learnt how many and not which", "111 110"),
        ({"pays": 0.0}, "gain not shown to come from asking", "101 111"),
        ({"pays": 0.0, "asks": 0.001}, "gain not shown to come from asking", "100 111"),
        ({"useful_trained": 0.4}, "gain not shown to come from asking", "101 111"),
        ({"worth": 0.0}, "gain not shown to come from asking", "110 111"),
        ({"pays": 0.0, "asks": math.nan, "worth": math.nan}, "gain not shown to come from asking", "101 111"),
        ({"more": 0.1, "asks": math.nan, "worth": math.nan}, "gain not shown to come from asking", "110 111"),
        ({"more": -1.0, "asks": math.nan, "worth": math.nan}, "gain not shown to come from asking", "110 111"),
    ],
)  # fmt: skip
def test_the_headline_denies_no_criterion_that_is_met(changed, outcome, met):
    """It earns more, it asks, asking is why; it beats a rule, follows the limits, chooses."""
    found = judge(pooled_evidence([{**GOOD, **changed, "room": room} for room in (0.1, 0.11)]))
    assert found.outcome == outcome
    assert [criterion.met for criterion in found.criteria] == [sign == "1" for sign in met if sign != " "]
    assert ("kind" in found.text) == ("rank_unknown" in changed)


def test_a_wide_interval_does_not_say_that_the_gain_comes_without_asking():
    few, none = (
        judge(pooled_evidence([{**GOOD, "room": 0.1, "asks": 0.0}, {**GOOD, "room": 0.11, "asks": asks}])).text
        for asks in (0.2, -0.2)
    )
    assert "too few boards" in few and "gains without asking" in none


@pytest.mark.parametrize(
    ("rooms", "leaks", "outcome"),
    [
        ((0.1, 0.11), (0.08, 0.03), "invalid test: the boards leak"),
        ((0.1, 0.2), (0.0, 0.0), "too little data"),
        ((0.01, 0.012), (0.0, 0.0), "nothing to learn"),
    ],
)
def test_a_wide_interval_makes_no_run_valid(rooms, leaks, outcome):
    """The leak's and the room's."""
    found = judge(pooled_evidence([{**GOOD, "room": r, "leak": leak} for r, leak in zip(rooms, leaks, strict=True)]))
    assert found.outcome == outcome and "without gain" not in found.text


@pytest.mark.parametrize(("limit", "parameters"), [("patience", PATIENT), ("price", PRICED)])
def test_how_much_better_it_follows_is_the_difference_of_two_rank_correlations(tmp_path, limit, parameters):
    game, sign = game_of(**parameters), {"patience": 1, "price": -1}[limit]
    players = {"base": SELDOM, "trained": Policy(9, "best", pays=True), "bayes": Policy(0)}
    frames = {name: sample.episodes for name, sample in samples(tmp_path, game, players, 60).items()}
    base, trained = (spearmanr(frames[m][limit], frames[m]["question_count"]).statistic for m in ("base", "trained"))
    found = evidence(frames, None).follows
    assert found.mean == pytest.approx(sign * (trained - base)) and found.mean > 0.3
    alone = evidence(frames | {"base": frames["bayes"]}, None).follows  # who never asks follows nothing
    assert alone.mean == pytest.approx(sign * trained) and alone.high <= 1


def test_a_model_has_no_regret_to_itself(tmp_path):
    """Without a two-step asker the trained model may be the best player."""
    players = {"base": SELDOM, "trained": Policy(9, compound=True), "bayes": Policy(0)}
    frames = {name: sample.episodes for name, sample in samples(tmp_path, game_of(), players, 20).items()}
    assert math.isnan(evidence(frames, None).regret.mean)


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (-0.004, "two hand-written rules does better (0.924 against 0.920)"),
        (0, "is not shown to do worse"),
        (0.02, None),
    ],
)
def test_two_rules_without_training_are_named_with_what_they_earn(over, says):
    """Two runs with the same numbers, so that the intervals are points."""
    numbers = NUMBERS | {"over_asking_unknown": over}
    verdict = judge(pooled_evidence([numbers, numbers]))
    assert verdict.outcome == "supported"
    assert says in verdict.text if says else "hand-written" not in verdict.text
