"""Every verdict, from episodes that deserve it."""

import pytest

from slim_rl.analysis.measures import read_players
from slim_rl.analysis.verdict import judge

NO_LEAK = dict(reward=0.78, own_view=0.78)
LEAK = dict(reward=0.97, own_view=0.71)


@pytest.mark.parametrize(
    ("base", "trained", "bayes", "verdict"),
    [
        (dict(reward=0.80, useful=0.5), dict(reward=0.95, useful=5), NO_LEAK, "Supported: "),
        # DialOp's selection: reward rises, questions do not.
        (
            dict(reward=0.76, useful=0.5),
            dict(reward=0.89, useful=0.05),
            LEAK,
            "Not supported: gains without asking",
        ),
        (
            dict(reward=0.80, useful=0.5),
            dict(reward=0.84, useful=0.5),
            NO_LEAK,
            "Not supported: gains without asking",
        ),
        # Twice almost nothing is almost nothing.
        (
            dict(reward=0.80, useful=0.02),
            dict(reward=0.84, useful=0.1),
            NO_LEAK,
            "Not supported: gains without asking",
        ),
        (
            dict(reward=0.76, useful=0.5),
            dict(reward=0.90, useful=5),
            LEAK,
            "Not supported: gains that need no asking",
        ),
        (
            dict(reward=0.80, useful=0.5),
            dict(reward=0.78, useful=5),
            NO_LEAK,
            "Not supported: asks more without gain",
        ),
        (
            dict(reward=0.80, useful=0.5),
            dict(reward=0.79, useful=0.5),
            NO_LEAK,
            "Not supported: neither asks nor earns",
        ),
        (
            dict(reward=0.80, useful=0.5, games=60),
            dict(reward=0.95, useful=5),
            NO_LEAK,
            "Not supported: too little data",
        ),
    ],
)
def test_verdict(base, trained, bayes, verdict, write_players, tmp_path):
    players = read_players(write_players(tmp_path, base=base, trained=trained, bayes=bayes))
    found = judge(*(players[name].episodes for name in ("base", "trained", "bayes")))
    assert found.text.startswith(verdict)
    assert found.supported == verdict.startswith("Supported")
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
