"""Every verdict, from episodes that deserve it."""

import numpy as np
import pandas as pd
import pytest

from slim_rl.studies.asking.intervention import read_intervention
from slim_rl.studies.asking.verdict import judge

NO_LEAK = dict(reward=0.78, own_view=0.78)
LEAK = dict(reward=0.97, own_view=0.71)
ASKS, SELDOM = dict(reward=0.95, useful=5), dict(reward=0.80, useful=0.5)


def episodes(player, reward, useful=0.0, own_view=0.78, games=200, arm=""):
    """Episodes whose means are about `reward` and `useful`."""
    rng = np.random.default_rng([ord(letter) for letter in player + arm])
    asked = rng.poisson(useful, games)
    return pd.DataFrame(
        {
            "player": player,
            "arm": arm,
            "game_id": [f"board-{number}" for number in range(games)],
            "reward": np.clip(reward + 0.05 * rng.standard_normal(games), 0, 1),
            "questions": asked,
            "useful_questions": asked,
            "own_view": own_view,
        }
    )


def arms(forbidden):
    """Both models with questions forbidden, and with 0 to 6 of them forced that are worth 0.02 each."""
    rewards = {"forbidden": forbidden, **{f"forced-{k}": 0.78 + 0.02 * k for k in range(7)}}
    models = ("base", "trained")
    return pd.concat([episodes(m, reward, arm=arm) for m in models for arm, reward in rewards.items()])


def gained(text):
    return "gains without asking", f"Not supported: {text}"


@pytest.mark.parametrize(
    ("base", "trained", "bayes", "forbidden", "outcome", "text"),
    [
        (SELDOM, ASKS, NO_LEAK, 0.78, "supported", "Supported: "),
        # DialOp's selection: reward rises, questions do not.
        (dict(reward=0.76, useful=0.5), dict(reward=0.89, useful=0.05), LEAK, 0.88, *gained("gains without asking")),
        (SELDOM, dict(reward=0.84, useful=0.5), NO_LEAK, 0.84, *gained("gains without asking")),
        # Twice almost nothing is almost nothing.
        (dict(reward=0.80, useful=0.02), dict(reward=0.84, useful=0.1), NO_LEAK, 0.84, *gained("gains without asking")),
        (dict(reward=0.76, useful=0.5), dict(reward=0.90, useful=5), LEAK, 0.78, *gained("gains that need no asking")),
        # It asks and earns, and earns as much when it may not ask.
        (SELDOM, ASKS, NO_LEAK, 0.93, *gained("gains that do not come from asking")),
        (
            SELDOM, dict(reward=0.78, useful=5), NO_LEAK, 0.78,
            "asks more without gain", "Not supported: asks more without gain",
        ),
        (
            SELDOM, dict(reward=0.79, useful=0.5), NO_LEAK, 0.78,
            "not supported", "Not supported: neither asks nor earns",
        ),
        ({**SELDOM, "games": 60}, ASKS, NO_LEAK, 0.78, "too little data", "Not supported: too little data"),
    ],
)  # fmt: skip
def test_verdict(base, trained, bayes, forbidden, outcome, text):
    played = {"base": base, "trained": trained, "bayes": bayes}
    frames = {player: episodes(player, **arguments) for player, arguments in played.items()}
    found = judge(*frames.values(), read_intervention(arms(forbidden), frames))
    assert found.outcome == outcome
    assert found.text.startswith(text)
    assert found.supported == text.startswith("Supported")
    assert ("boards leak" in found.text) == (bayes is LEAK)


def test_the_trap_meets_one_criterion_only():
    base = episodes("base", reward=0.76, useful=0.5)
    trained = episodes("trained", reward=0.89, useful=0.05)
    found = judge(base, trained, episodes("bayes", **LEAK))
    assert [criterion.met for criterion in found.criteria] == [False, True, False]
    assert "not beaten" in found.criteria[2].text


def test_without_all_arms_there_is_no_intervention():
    frames = {player: episodes(player, 0.8) for player in ("base", "trained")}
    some = arms(0.78)
    assert read_intervention(some[some["player"] == "base"], frames) is None
