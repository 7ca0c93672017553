"""Which groups are worth training on."""

import pytest

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.errors import UserError
from slim_rl.core.message import said
from slim_rl.rollout.filters import FILTERS, find_filter, first_objection, reward_varies
from slim_rl.training.config import TrainConfig


def episode(reward=0.5, status="completed", text="said", **rewards):
    rewards = rewards or ({} if status == "failed" else {"a": reward})
    return Episode("e", "g", status=status, rewards=rewards, turns=[Turn("a", (), said(text))])


@pytest.mark.parametrize(
    ("rewards", "varies"),
    [
        ([{"a": 1, "b": -1}, {"a": -1, "b": 1}], True),
        ([{"a": 0.9, "b": 0.9}] * 3, False),
        ([{"a": 0.9}, {"a": 0.8}], True),
        ([], False),
    ],
)
def test_a_group_varies_if_any_seat_does(rewards, varies):
    assert reward_varies([episode(status="failed"), *(episode(**r) for r in rewards)]) == varies


@pytest.mark.parametrize(
    ("rewards", "varies"),
    [
        ([{"agent": 0.0, "agent#2": 0.0}, {"agent": 0.0}], False),
        ([{"agent": 0.0}, {"agent": 1.0, "agent#2": 1.0}], True),
        ([{"agent": 0.5, "rival": 1.0}, {"agent": 0.5, "rival": -1.0}], False),
    ],
)
def test_only_the_policys_seats_count_also_where_an_agent_added_some(rewards, varies):
    seating = {"agent": "policy", "rival": "scripted"}
    assert reward_varies([Episode("e", "g", seating=seating, rewards=earned) for earned in rewards]) == varies


GOOD = [episode(0.0), episode(1.0, text="other")]


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("reward_varies", [episode(), episode()]),
        ("no_failed_episode", [*GOOD, episode(status="failed")]),
        ("any_success", [episode(status="truncated")] * 2),
        ("min_reward", [episode(0.0), episode(0.05)]),
        ("reasonable_length", [episode(status="truncated")] * 2 + [episode()]),
        ("responses_differ", [episode(0.0), episode(1.0)]),
        ("quality_and_diversity", [episode(0.0), episode(1.0)]),
    ],
)
def test_each_filter_keeps_a_good_group_and_drops_its_own_kind(name, dropped):
    assert find_filter(name)(GOOD) and not find_filter(name)(dropped)
    assert first_objection(dropped, [name]) == name and first_objection(GOOD, FILTERS) is None


def only_with_b(group):
    return all("b" in episode.rewards for episode in group)


def test_a_filter_of_the_users_own_is_named_by_its_import_path():
    name = f"{__name__}:only_with_b"
    assert TrainConfig(filters=[name]).filters == (name,)
    assert first_objection([episode(a=1.0)], [name]) == name
    assert first_objection([episode(b=1.0)], [name]) is None


def test_a_filter_that_does_not_exist_is_told_in_a_sentence():
    with pytest.raises(ValueError, match=r"train\.filters is 'no_such'; name one of .*reward_varies.* import path"):
        TrainConfig(filters=["no_such"])
    for name in ("no.such.module:f", f"{__name__}:f", f"{__name__}:", ":f"):
        with pytest.raises(UserError, match=r"There is no module|has no function"):
            find_filter(name)
