"""Advantage estimators: the built-in ones against their formulas, and one of the user's own."""

import itertools
import math

import numpy as np
import pytest
import torch

from slim_rl.core.episode import Episode, TokenTrace
from slim_rl.core.errors import UserError
from slim_rl.training.advantages import Played, estimate, find_estimator, metrics
from slim_rl.training.advantages.group import group_advantages
from slim_rl.training.config import TrainConfig

ROLE = TrainConfig(advantage="role")

NUMBERS = itertools.count()


def played(*rewards, game="kuhn", group=0, sampled=2):
    """A sequence for each (seat, reward)."""
    trace = TokenTrace([5] + [6] * sampled, [0] + [1] * sampled, [0.0] * (sampled + 1))
    return [
        Played(group, Episode(str(next(NUMBERS)), "g", game, rewards={seat: reward}, traces={seat: trace}), seat)
        for seat, reward in rewards
    ]


def test_advantages_compare_with_the_group_alone():
    rewards = torch.tensor([1.0, 3.0, 10.0, 10.0, 13.0])
    groups = torch.tensor([7, 7, 2, 2, 2])
    assert group_advantages(rewards, groups, False).tolist() == [-1, 1, -1, -1, 2]
    expected = [-1 / math.sqrt(2), 1 / math.sqrt(2), -1 / math.sqrt(3), -1 / math.sqrt(3), 2 / math.sqrt(3)]
    assert group_advantages(rewards, groups, True).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("reward", [0.8, 0.9, 0.87])
def test_a_group_that_earned_the_same_has_no_advantage(reward):
    groups = torch.tensor([0] * 16 + [1, 1])
    rewards = torch.tensor([reward] * 16 + [0.0, 1.0])
    assert group_advantages(rewards, groups, True).tolist()[:16] == [0] * 16


def test_seats_of_a_group_are_compared_with_themselves():
    sequences = played(("a", 1.0), ("b", 8.0), ("a", 3.0), ("b", 6.0)) + played(("a", 5.0), group=1)
    config = TrainConfig(divide_by_std=False)
    assert estimate(config, sequences, {}) == [-1.0, 1.0, 1.0, -1.0, 0.0]


def test_a_role_of_a_game_is_compared_with_what_it_earned_before():
    """SPIRAL: b starts at 0; the advantage is R - b; then b becomes 0.95 b + 0.05 R."""
    state = {}
    values = estimate(ROLE, played(("a", 1.0), ("b", -1.0), ("a", 1.0), ("a", 2.0)), state)
    assert values == pytest.approx([1.0, -1.0, 1 - 0.05, 2 - (0.95 * 0.05 + 0.05)])
    assert estimate(ROLE, played(("a", 1.0), ("b", -2.0), game="nim"), state) == [1.0, -2.0]
    kuhn, nim = {"kuhn/a": 0.95 * 0.0975 + 0.05 * 2, "kuhn/b": -0.05}, {"nim/a": 0.05, "nim/b": -0.1}
    assert state == pytest.approx(kuhn | nim)
    assert estimate(ROLE, played(("b", 1.0)), state) == pytest.approx([1.05])
    assert metrics(state) == {f"advantage/{role}": value for role, value in state.items()}


def growing(played, config, state):
    """More for later tokens; the state counts steps."""
    state["steps"] = state.get("steps", 0) + 1
    return [torch.arange(sum(p.episode.traces[p.seat].loss_mask)) * p.episode.rewards[p.seat] for p in played]


def too_few(played, config, state):
    return [0.0]


def too_long(played, config, state):
    return [[0.0] * 9 for _ in played]


def forgetful(played, config, state):
    state["rewards"] = torch.zeros(3)
    return [0.0 for _ in played]


def overflowing(played, config, state):
    return [np.float32("inf") for _ in played]


def unsure(played, config, state):
    return [torch.tensor([1.0, float("nan")]) for _ in played]


def test_an_estimator_of_the_users_own_may_give_a_value_for_each_token():
    state, config = {}, TrainConfig(advantage=f"{__name__}:growing")
    sequences = played(("a", 2.0), sampled=3) + played(("b", 1.0), sampled=1)
    assert estimate(config, sequences, state) == [[0.0, 2.0, 4.0], [0.0]]
    estimate(config, sequences, state)
    assert state == {"steps": 2} and metrics(state) == {"advantage/steps": 2}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("too_few", "gave 1 values for 2 sequences"),
        ("too_long", "gave 9 values for the 2 sampled tokens of the seat a in the episode "),
        ("forgetful", "is not JSON"),
        ("overflowing", "gave an advantage that cannot be used: inf is no finite number"),
        ("unsure", "gave an advantage that cannot be used: .*nan.* is no finite number"),
        ("no_such", "has no function 'no_such'"),
    ],
)
def test_what_is_wrong_with_an_estimator_is_told_in_a_sentence(name, sentence):
    config = TrainConfig(advantage=f"{__name__}:{name}")
    with pytest.raises(UserError, match=sentence):
        estimate(config, played(("a", 2.0), ("a", 1.0)), {})


def test_an_estimator_that_does_not_exist():
    with pytest.raises(ValueError, match=r"train\.advantage is 'rolle'; name one of group, role, or the import path"):
        TrainConfig(advantage="rolle")
    with pytest.raises(UserError, match="There is no module 'no_such_module'"):
        find_estimator("no_such_module:estimate")
