"""Every verdict, from episodes that deserve it."""

import pytest

from slim_rl.analysis.intervention import read_intervention
from slim_rl.analysis.measures import read_players
from slim_rl.analysis.verdict import judge

NO_LEAK = dict(reward=0.78, own_view=0.78)
LEAK = dict(reward=0.97, own_view=0.71)
ASKS, SELDOM = dict(reward=0.95, useful=5), dict(reward=0.80, useful=0.5)


@pytest.mark.parametrize(
    ("base", "trained", "bayes", "forbidden", "outcome", "text"),
    [
        (SELDOM, ASKS, NO_LEAK, 0.78, "supported", "Supported: "),
        # DialOp's selection: reward rises, questions do not.
        (
            dict(reward=0.76, useful=0.5),
            dict(reward=0.89, useful=0.05),
            LEAK,
            0.88,
            "gains without asking",
            "Not supported: gains without asking",
        ),
        (
            SELDOM,
            dict(reward=0.84, useful=0.5),
            NO_LEAK,
            0.84,
            "gains without asking",
            "Not supported: gains without asking",
        ),
        # Twice almost nothing is almost nothing.
        (
            dict(reward=0.80, useful=0.02),
            dict(reward=0.84, useful=0.1),
            NO_LEAK,
            0.84,
            "gains without asking",
            "Not supported: gains without asking",
        ),
        (
            dict(reward=0.76, useful=0.5),
            dict(reward=0.90, useful=5),
            LEAK,
            0.78,
            "gains without asking",
            "Not supported: gains that need no asking",
        ),
        # It asks and earns, and earns as much when it may not ask.
        (
            SELDOM,
            ASKS,
            NO_LEAK,
            0.93,
            "gains without asking",
            "Not supported: gains that do not come from asking",
        ),
        (
            SELDOM,
            dict(reward=0.78, useful=5),
            NO_LEAK,
            0.78,
            "asks more without gain",
            "Not supported: asks more without gain",
        ),
        (
            SELDOM,
            dict(reward=0.79, useful=0.5),
            NO_LEAK,
            0.78,
            "not supported",
            "Not supported: neither asks nor earns",
        ),
        (
            dict(reward=0.80, useful=0.5, games=60),
            ASKS,
            NO_LEAK,
            0.78,
            "too little data",
            "Not supported: too little data",
        ),
    ],
)
def test_verdict(base, trained, bayes, forbidden, outcome, text, write_players, write_intervention, tmp_path):
    players = read_players(write_players(tmp_path / "held-out", base=base, trained=trained, bayes=bayes))
    arms = read_players(write_intervention(tmp_path / "arms", 0.02, 0.02, forbidden))
    episodes = [players[name].episodes for name in ("base", "trained", "bayes")]
    found = judge(*episodes, read_intervention(arms, players))
    assert found.outcome == outcome
    assert found.text.startswith(text)
    assert found.supported == text.startswith("Supported")
    assert ("boards leak" in found.text) == (bayes is LEAK)


def test_the_trap_meets_one_criterion_only(write_players, tmp_path):
    players = read_players(
        write_players(
            tmp_path, base=dict(reward=0.76, useful=0.5), trained=dict(reward=0.89, useful=0.05), bayes=LEAK
        )
    )
    found = judge(*(players[name].episodes for name in ("base", "trained", "bayes")))
    assert [criterion.met for criterion in found.criteria] == [False, True, False]
    assert "not beaten" in found.criteria[2].text
